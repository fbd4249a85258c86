package e2e

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// verifying is a release whose capture the service has to verify itself.
func (f *fixture) verifying(pod string) *pb.ReleasePodRequest {
	return &pb.ReleasePodRequest{Namespace: f.ns, Pod: pod}
}

// wantRefused fails unless the release is refused as not captured for the reason.
func (f *fixture) wantRefused(d *daemon, pod *corev1.Pod, reason string) {
	f.t.Helper()
	_, err := d.ReleasePod(f.ctx, f.verifying(pod.Name))
	if info := wantError(f.t, err, codes.FailedPrecondition, "POD_NOT_CAPTURED"); info.GetMetadata()["hold_reason"] != reason {
		f.t.Errorf("refused with metadata %v, want hold_reason %s", info.GetMetadata(), reason)
	}
	f.wantHeld(pod)
}

// wantReleased fails unless the release is done for the reason.
func (f *fixture) wantReleased(d *daemon, pod *corev1.Pod, reason pb.HoldReason) {
	f.t.Helper()
	got, err := d.ReleasePod(f.ctx, f.verifying(pod.Name))
	if err != nil {
		f.t.Fatal(err)
	}
	wantResult(f.t, got.GetResult(), pb.Outcome_OUTCOME_RELEASED, reason)
	if now := f.live(pod.Name); now != nil && slices.Contains(now.Finalizers, fin) {
		f.t.Errorf("pod %s still carries FIN", pod.Name)
	}
}

func TestB06_NothingIrreversibleRestsOnAStaleCache(t *testing.T) {
	f := newFixture(t)
	g := newGate(t, suite.config)
	d := f.newDaemon(daemonOptions{name: "stale", config: g.config})
	running, ending := f.workflow("running", podNode("kept", "Running"), podNode("done", "Running")), f.workflow("ending")
	kept := f.pod(running, "kept", inPhase(corev1.PodSucceeded))
	done := f.pod(running, "done", inPhase(corev1.PodSucceeded))
	left := f.pod(ending, "left", inPhase(corev1.PodSucceeded))
	f.waitPods(d, running, 2)
	f.waitPods(d, ending, 1)
	g.freeze()

	// Created since: the cache knows neither, and concludes nothing from that.
	unseen := f.workflow("unseen", podNode("new", "Running"))
	fresh := f.pod(unseen, "new", inPhase(corev1.PodRunning))
	f.wantRefused(d, fresh, "NOT_CAPTURED")
	got, err := d.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: "new"})
	if err != nil || got.GetPod().GetUid() != string(fresh.UID) || !got.GetPod().GetHeld() {
		t.Errorf("a pod that the cache does not know: %v, %v", got, err)
	}

	f.wantRefused(d, kept, "NOT_CAPTURED")
	f.setNodes(running, podNode("done", "Succeeded"))
	f.wantReleased(d, done, captured)
	f.wantRefused(d, kept, "NOT_CAPTURED")

	if err := suite.workflows.Namespace(f.ns).Delete(f.ctx, ending.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.wantReleased(d, left, pb.HoldReason_HOLD_REASON_ORPHANED)
}

func TestB15_AFinishedPodThatIsDeletedStaysUntilItsCapture(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Running"))
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	f.deletePod("pod")
	f.waitSeen(d, wf, "the pod terminating", func(p *pb.Progress) bool { return p.GetTerminating() == 1 })
	f.wantRefused(d, pod, "NOT_CAPTURED")
	deleted, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, deleted.GetResults()[0], pb.Outcome_OUTCOME_NOT_CAPTURED, pb.HoldReason_HOLD_REASON_NOT_CAPTURED)
	f.wantHeld(pod)
	if w := onlyWrites(f.requests(d.userAgent)); len(w) > 0 {
		t.Errorf("refusals wrote: %v", w)
	}

	// A result that is not synced yet is not captured either.
	f.setNodes(wf, podNode("pod", "Succeeded").with("taskResultSynced", false))
	f.wantRefused(d, pod, "NOT_CAPTURED")
	f.setNodes(wf, podNode("pod", "Succeeded").with("taskResultSynced", true))
	f.wantReleased(d, pod, captured)
	if now := f.live("pod"); now != nil {
		t.Errorf("the pod is still there: %v", now.ObjectMeta)
	}
}

func TestB19_ThePhaseAloneSaysThatAPodIsTerminal(t *testing.T) {
	running := []corev1.ContainerStatus{{Name: "main", Image: "busybox", State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()},
	}}}
	for name, statuses := range map[string][]corev1.ContainerStatus{
		"Failed with containers that still run": running,
		"Failed without any container status":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			d := f.newDaemon(daemonOptions{name: "terminal", minAge: time.Millisecond})
			wf := f.workflow("wf")
			pod := f.pod(wf, "pod", inPhase(corev1.PodRunning))
			f.patchStatus(wf, map[string]any{"phase": "Failed"})
			f.waitPods(d, wf, 1)
			f.wantRefused(d, pod, "NOT_CAPTURED") // its Workflow has ended, the pod has not
			body := mustJSON(map[string]any{"status": map[string]any{"phase": "Failed", "containerStatuses": statuses}})
			if _, err := suite.admin.CoreV1().Pods(f.ns).Patch(f.ctx, "pod", types.MergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
				t.Fatal(err)
			}
			f.wantReleased(d, pod, pb.HoldReason_HOLD_REASON_WORKFLOW_COMPLETED)
		})
	}
}

func TestB21_ARunningPodRunsOnUnlessForced(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Running"))
	pod := f.pod(wf, "pod", inPhase(corev1.PodRunning))
	f.waitPods(d, wf, 1)
	for _, door := range d.doors() {
		for _, request := range []*pb.DeleteWorkflowPodsRequest{
			{All: true}, {NodeIds: []string{"pod"}}, {Pods: []*pb.PodRef{{Name: "pod", Uid: string(pod.UID)}}},
		} {
			request.Namespace, request.Workflow = f.ns, wf.name
			got, err := door.DeleteWorkflowPods(f.ctx, request)
			if err != nil {
				t.Fatal(err)
			}
			wantResult(t, got.GetResults()[0], pb.Outcome_OUTCOME_NOT_CAPTURED, pb.HoldReason_HOLD_REASON_NOT_CAPTURED)
		}
	}
	f.wantRefused(d, pod, "NOT_CAPTURED")
	f.wantUntouched(pod)
	if w := onlyWrites(f.requests(d.userAgent)); len(w) > 0 {
		t.Errorf("refusals wrote: %v", w)
	}

	forced, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, forced.GetResults()[0], pb.Outcome_OUTCOME_DELETING, pb.HoldReason_HOLD_REASON_FORCED)
	if now := f.live("pod"); now == nil || now.DeletionTimestamp == nil || len(now.Finalizers) > 0 {
		t.Errorf("after the forced delete: %+v", now)
	}
}

func TestB18_APodThatNeverStartedIsReleasedByADelete(t *testing.T) {
	for name, option := range map[string]podOption{
		"unscheduled":                      func(*corev1.Pod) {},
		"gated":                            func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}} },
		"scheduled, Pending, nothing runs": inPhase(corev1.PodPending),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			d := suite.shared
			wf := f.workflow("wf", podNode("pod", "Pending"))
			pod := f.pod(wf, "pod", option)
			f.waitPods(d, wf, 1)
			f.wantRefused(d, pod, "NOT_CAPTURED") // it may yet run
			got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true})
			if err != nil {
				t.Fatal(err)
			}
			if r := got.GetResults()[0]; r.GetHoldReason() != pb.HoldReason_HOLD_REASON_NEVER_STARTED {
				t.Errorf("got %v", r)
			}
			if now := f.live("pod"); now != nil && (now.DeletionTimestamp == nil || slices.Contains(now.Finalizers, fin)) {
				t.Errorf("after the delete: %+v", now.ObjectMeta)
			}
		})
	}
}

func TestB43_ACleanUpByNameNeverReachesTheSuccessorBeforeItsTime(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	longAgo := metav1.NewTime(time.Now().Add(-time.Hour)).UTC().Format(time.RFC3339)
	// The stored node is still that of the first attempt, which is captured.
	wf := f.workflow("wf", podNode("pod", "Failed").with("startedAt", longAgo).with("finishedAt", longAgo))
	first := f.pod(wf, "pod", inPhase(corev1.PodFailed))
	successor := f.replace(wf, first, inPhase(corev1.PodRunning))
	cleanUp := f.verifying("pod")
	cleanUp.MarkCompleted = true

	for _, state := range []node{
		podNode("pod", "Failed").with("startedAt", longAgo).with("finishedAt", longAgo),
		podNode("pod", "Pending").with("startedAt", nil).with("finishedAt", nil),
		podNode("pod", "Running"),
	} {
		f.setNodes(wf, state)
		_, err := d.ReleasePod(f.ctx, cleanUp)
		wantError(t, err, codes.FailedPrecondition, "POD_NOT_CAPTURED")
		f.wantUntouched(successor)
	}
	f.setNodes(wf, podNode("pod", "Succeeded").with("finishedAt", metav1.Now().UTC().Format(time.RFC3339)))
	got, err := d.ReleasePod(f.ctx, cleanUp)
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, got.GetResult(), pb.Outcome_OUTCOME_RELEASED, captured)
	if now := f.live("pod"); now.UID != successor.UID || now.Labels[labelDone] != "true" || len(now.Finalizers) > 0 {
		t.Errorf("after the clean-up: %+v", now.ObjectMeta)
	}
}

func TestB45_CaptureAssertedWithoutAUIDIsInvalid(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Running"))
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	for _, door := range d.doors() {
		_, err := door.ReleasePod(f.ctx, f.releasing("pod", ""))
		wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
		wantViolation(t, err, "pod_uid")
		_, err = door.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Captured: true})
		wantViolation(t, err, "captured")
		_, err = door.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, NodeIds: []string{"pod"}, Captured: true})
		wantViolation(t, err, "captured")
		_, err = door.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Pods: []*pb.PodRef{{Name: "pod"}}, Captured: true})
		wantViolation(t, err, "pods[0].uid")
	}
	f.wantUntouched(pod)
	if all := f.requests(d.userAgent); len(all) > 0 {
		t.Errorf("invalid requests reached the API server: %v", all)
	}
}
