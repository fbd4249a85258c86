package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// deleteWorkflow deletes in the background: the garbage collector follows.
func (f *fixture) deleteWorkflow(wf workflow) {
	f.t.Helper()
	background := metav1.DeletePropagationBackground
	if err := f.plane.workflows.Namespace(f.ns).Delete(f.ctx, wf.name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		f.t.Fatal(err)
	}
}

// pack is how Argo stores large node status.
func pack(nodes ...node) string {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(mustJSON(nodesOf(nodes))) // a buffer takes all
	_ = w.Close()
	return base64.StdEncoding.EncodeToString(packed.Bytes())
}

func TestCaptureIsReadFromTheStoredWorkflow(t *testing.T) {
	const notCaptured, unknown = "NOT_CAPTURED", "CAPTURE_UNKNOWN"
	tests := map[string]struct {
		status  map[string]any
		refused string // hold reason; empty: released as captured
	}{
		"nodes as they are":                      {map[string]any{"nodes": nodesOf([]node{podNode("pod", "Error")})}, ""},
		"no status at all":                       {map[string]any{}, notCaptured},
		"compressed nodes":                       {map[string]any{"compressedNodes": pack(podNode("pod", "Succeeded"))}, ""},
		"compressed nodes that are not captured": {map[string]any{"compressedNodes": pack(podNode("pod", "Running"))}, notCaptured},
		"compressed nodes that are garbage":      {map[string]any{"compressedNodes": "bm90IGd6aXA="}, unknown},
		"offloaded nodes":                        {map[string]any{"offloadNodeStatusVersion": "fnv:1", "nodes": nodesOf([]node{podNode("pod", "Succeeded")})}, unknown},
		"nodes that are no object":               {map[string]any{"nodes": "odd"}, unknown},
		"an omitted node":                        {map[string]any{"nodes": nodesOf([]node{podNode("pod", "Omitted")})}, ""},
		"a running daemon":                       {map[string]any{"nodes": nodesOf([]node{podNode("pod", "Running").with("daemoned", true)})}, notCaptured},
		"a container set of which one container runs": {map[string]any{"nodes": nodesOf([]node{
			podNode("pod", "Succeeded"),
			{"id": "c1", "type": "Container", "phase": "Succeeded", "boundaryID": "pod"},
			{"id": "c2", "type": "Container", "phase": "Running", "boundaryID": "pod"},
		})}, notCaptured},
		"a container set that is done": {map[string]any{"nodes": nodesOf([]node{
			podNode("pod", "Succeeded"),
			{"id": "c1", "type": "Container", "phase": "Succeeded", "boundaryID": "pod"},
			{"id": "c2", "type": "Container", "phase": "Failed", "boundaryID": "pod"},
		})}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			d := suite.shared
			wf := f.workflow("wf")
			pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
			f.waitPods(d, wf, 1)
			f.patchWorkflow(wf, map[string]any{"status": nil})
			f.patchWorkflow(wf, map[string]any{"status": test.status})
			if test.refused != "" {
				f.wantRefused(d, pod, test.refused)
				return
			}
			f.wantReleased(d, pod, captured)
			f.wantCounts("a verified release", f.requests(d.userAgent), count{Writes: 1, WorkflowReads: 1})
		})
	}
}

func TestB33_PodsOfAWorkflowUIDThatIsGoneAreOrphans(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("one", "Running"), podNode("two", "Running"))
	one := f.pod(wf, "one", inPhase(corev1.PodSucceeded))
	f.pod(wf, "two", inPhase(corev1.PodSucceeded))
	f.waitPods(d, wf, 2)
	f.deleteWorkflow(wf)
	f.waitSeen(d, wf, "the garbage collector's deletions", func(p *pb.Progress) bool { return p.GetTerminating() == 2 })
	view, err := d.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if p := view.GetPod(); !p.GetHeld() || !p.GetReleasable() || p.GetHoldReason() != pb.HoldReason_HOLD_REASON_ORPHANED {
		t.Errorf("GetPod: %v", p)
	}
	f.wantReleased(d, one, pb.HoldReason_HOLD_REASON_ORPHANED)
	// A new workflow of the name does not own the old one's pods.
	again := f.workflow("wf", podNode("two", "Running"))
	scoped, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: "wf", WorkflowUid: string(again.uid), All: true, Force: true})
	if err != nil || len(scoped.GetResults()) != 0 {
		t.Errorf("all pods of the new UID: %v, %v", scoped, err)
	}
	got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: "wf", All: true, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, got.GetResults()[0], pb.Outcome_OUTCOME_DELETED, pb.HoldReason_HOLD_REASON_ORPHANED)
}

func TestAPodWhoseWorkflowIsBeingDeletedIsReleasable(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Running"))
	f.patchWorkflow(wf, map[string]any{"metadata": map[string]any{"finalizers": []string{"example.com/keep"}}})
	pod := f.pod(wf, "pod", inPhase(corev1.PodRunning))
	f.waitPods(d, wf, 1)
	f.wantRefused(d, pod, "NOT_CAPTURED")
	f.deleteWorkflow(wf)
	f.wantReleased(d, pod, pb.HoldReason_HOLD_REASON_WORKFLOW_DELETING)
}

func TestB35_APodWhoseNamespaceIsBeingDeletedIsReleasableAndTheNamespaceGoes(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Running"))
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	f.waitPods(d, wf, 1)
	if err := suite.admin.CoreV1().Namespaces().Delete(f.ctx, f.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the namespace's end is seen", func() (bool, error) {
		got, err := d.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: "pod"})
		return got.GetPod().GetHoldReason() == pb.HoldReason_HOLD_REASON_NAMESPACE_TERMINATING, err
	})
	f.wantReleased(d, pod, pb.HoldReason_HOLD_REASON_NAMESPACE_TERMINATING)
	f.eventually("the namespace goes", func() (bool, error) {
		_, err := suite.admin.CoreV1().Namespaces().Get(f.ctx, f.ns, metav1.GetOptions{})
		return err != nil, nil
	})
}

func TestCaptureOnceSeenHoldsForThatUIDWhateverARetryDoesToTheNode(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Succeeded"))
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	f.waitPods(d, wf, 1)
	view, err := d.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: "pod"})
	if err != nil || !view.GetPod().GetReleasable() {
		t.Fatalf("GetPod: %v, %v", view, err)
	}
	f.setNodes(wf, podNode("pod", "Pending"))
	f.wantReleased(d, pod, captured)
}

func TestAddFinalizerRefusesCompletedPods(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	f.pod(wf, "pod", withFinalizers(), withLabel(labelDone, "true"))
	f.waitPods(d, wf, 1)
	for _, door := range d.doors() {
		_, err := door.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: "pod"})
		wantError(t, err, codes.FailedPrecondition, "POD_COMPLETED")
	}
}
