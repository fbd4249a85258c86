package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// foundingLimit is what the founding case may take on a busy machine.
const foundingLimit = 10 * time.Second

// readInterval is the default of --workflow-read-interval.
const readInterval = 3 * time.Second

// finishedPods are pods of a workflow that have ended; every other one has its
// result stored.
func (f *fixture) finishedPods(name string, n int) (workflow, []*corev1.Pod) {
	f.t.Helper()
	var nodes []node
	for i := range n {
		nodes = append(nodes, podNode(fmt.Sprintf("%s-%d", name, i), []string{"Succeeded", "Running"}[i%2]))
	}
	wf := f.workflow(name, nodes...)
	f.podsNamed(wf, name, n, inPhase(corev1.PodSucceeded))
	pods := make([]*corev1.Pod, n)
	for i := range n {
		pods[i] = f.live(fmt.Sprintf("%s-%d", name, i))
	}
	return wf, pods
}

func (f *fixture) deleteWorkflowBy(wf workflow, policy metav1.DeletionPropagation) {
	f.t.Helper()
	if err := f.plane.workflows.Namespace(f.ns).Delete(f.ctx, wf.name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		f.t.Fatal(err)
	}
}

// The founding case: a workflow's pods finish, everything that could release them
// is down, the workflow is deleted, the pods hang in Terminating; the service
// starts and within seconds the pods are gone.
func TestB32_PodsThatTheDeletionOfTheirWorkflowLeftHangingAreGoneWithinSeconds(t *testing.T) {
	for _, test := range []struct {
		policy        metav1.DeletionPropagation
		workflowReads int
	}{
		{metav1.DeletePropagationBackground, 3}, // a live NotFound of each
		{metav1.DeletePropagationForeground, 0}, // the watch shows them being deleted
	} {
		t.Run(string(test.policy), func(t *testing.T) {
			f := newFixture(t)
			var pods []*corev1.Pod
			var workflows []workflow
			for i := range 3 {
				wf, of := f.finishedPods(fmt.Sprintf("wf%d", i), 8)
				workflows, pods = append(workflows, wf), append(pods, of...)
			}
			for _, wf := range workflows {
				f.deleteWorkflowBy(wf, test.policy)
			}
			f.waitTerminating(pods...)
			f.waitAge(3*time.Second, pods...)
			for _, pod := range pods {
				f.wantHeld(pod)
			}

			d := f.newReconciler(daemonOptions{name: "founding", policy: soon})
			f.waitReadyz(d)
			ready := time.Now()
			f.waitFor("gone", gone, pods...)
			if took := time.Since(ready); took > foundingLimit {
				t.Errorf("the pods were gone %s after the service was ready", took)
			}
			requests := f.requests(d.userAgent)
			for _, pod := range pods {
				wantWritesOf(t, requests, pod.Name, "patch")
			}
			if podReads, workflowReads := ownReads(requests); podReads != 0 || workflowReads != test.workflowReads {
				t.Errorf("%d reads of pods and %d of workflows, want 0 and %d", podReads, workflowReads, test.workflowReads)
			}
			f.eventually("the workflows are gone", func() (bool, error) {
				left, err := f.plane.workflows.Namespace(f.ns).List(f.ctx, metav1.ListOptions{})
				return err == nil && len(left.Items) == 0, err
			})
		})
	}
}

func TestB11_PodsThatOrphanPropagationLeftAreReportedAndReleasedByPolicyOnly(t *testing.T) {
	f := newFixture(t)
	wf, pods := f.finishedPods("wf", 4)
	f.deleteWorkflowBy(wf, metav1.DeletePropagationOrphan)
	f.waitFor("without an owner", func(now *corev1.Pod) bool { return held(now) && len(now.OwnerReferences) == 0 }, pods...)
	f.deletePod(pods[0].Name)

	d := f.newReconciler(daemonOptions{name: "report-unowned", policy: soon})
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_UNOWNED, len(pods))
	for _, door := range d.doors() {
		if got := f.listed(door, pb.HoldReason_HOLD_REASON_UNOWNED); len(got) != len(pods) {
			t.Errorf("%s: listed %v", door.name, got)
		}
	}
	f.stays("held", held, 3*time.Second, pods...)
	if w := onlyWrites(f.requests(d.userAgent)); len(w) > 0 {
		t.Errorf("it wrote %v", w)
	}
	d.stop()

	d = f.newReconciler(daemonOptions{name: "release-unowned", policy: func(p *finalizer.Policy) {
		soon(p)
		p.ReleaseUnowned = true
	}})
	f.waitFor("gone", gone, pods[0])
	f.waitFor("released", leftReleased, pods[1:]...)
	requests := f.requests(d.userAgent)
	for _, pod := range pods {
		wantWritesOf(t, requests, pod.Name, "patch")
	}
}

// The counterpart: what is not stored stays, whoever deletes it.
func TestB15_AFinishedPodThatIsDeletedByHandStaysUntilItsNodeIsStored(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf", podNode("pod", "Running"))
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	d := f.newReconciler(daemonOptions{name: "by-hand", policy: soon})
	f.deletePod("pod")
	f.waitTerminating(pod)
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_NOT_CAPTURED, 1)
	f.stays("held", held, 5*time.Second, pod)
	f.setNodes(wf, podNode("pod", "Succeeded").with("taskResultSynced", false))
	f.stays("held", held, 2*time.Second, pod)
	f.setNodes(wf, podNode("pod", "Succeeded").with("taskResultSynced", true))
	f.waitFor("gone", gone, pod)
	wantWritesOf(t, f.requests(d.userAgent), "pod", "patch")
}

func TestB15_FinishedPodsThatPodGCDeletesStayUntilTheirNodesAreStored(t *testing.T) {
	t.Parallel()
	plane := newControlPlane(t, "--terminated-pod-gc-threshold", "1")
	f := newFixtureOn(t, plane)
	wf := f.workflow("wf", podNode("a", "Running"), podNode("b", "Running"), podNode("c", "Running"))
	var pods []*corev1.Pod
	for _, name := range []string{"a", "b", "c"} {
		pods = append(pods, f.pod(wf, name, inPhase(corev1.PodSucceeded)))
	}
	d := f.newReconciler(daemonOptions{name: "pod-gc", policy: soon})
	f.waitReadyz(d)
	var collected []*corev1.Pod
	f.eventually("pod GC deletes two of three", func() (bool, error) { // each 20 s
		collected = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return f.live(p.Name).DeletionTimestamp == nil })
		return len(collected) == 2, nil
	})
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_NOT_CAPTURED, 3)
	f.stays("held", held, 5*time.Second, pods...)
	f.setNodes(wf, podNode("a", "Succeeded"), podNode("b", "Failed"), podNode("c", "Error"))
	f.waitFor("gone", gone, collected...)
	f.waitFor("released", released, pods...)
}

// newControlPlane starts a control plane for one test, which may do with it what
// would disturb the others.
func newControlPlane(t *testing.T, args ...string) *controlPlane {
	t.Helper()
	plane, err := startControlPlane(t.Context(), suite.program, filepath.Join(t.TempDir(), "plane"), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.stop)
	return plane
}

// 2,000 orphans of 20 workflows, while the pods of another are held on.
func TestB26_ManyOrphansCostOneWriteEachAndOneReadAWorkflow(t *testing.T) {
	f := newFixture(t)
	const workflows, each = 20, 100
	kept := f.pod(f.workflow("kept", podNode("kept", "Running")), "kept", inPhase(corev1.PodSucceeded))
	f.deletePod("kept")
	var gone []workflow
	for i := range workflows {
		wf := f.workflow(fmt.Sprintf("wf%d", i))
		f.podsNamed(wf, wf.name, each, inPhase(corev1.PodSucceeded))
		gone = append(gone, wf)
	}
	for _, wf := range gone {
		f.deleteWorkflow(wf)
	}
	count := func() (terminating, all int) {
		list, err := f.plane.admin.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			if p.DeletionTimestamp != nil {
				terminating++
			}
		}
		return terminating, len(list.Items)
	}
	f.eventuallySlowly("the garbage collector has deleted them", func() (bool, error) {
		n, _ := count()
		return n == workflows*each+1, nil
	})
	f.waitAge(3*time.Second, kept)
	d := f.newReconciler(daemonOptions{name: "many", policy: soon})
	f.waitReadyz(d)
	start := time.Now()
	f.eventuallySlowly("all but one are gone", func() (bool, error) {
		_, n := count()
		return n == 1, nil
	})
	took := time.Since(start)
	t.Logf("%d pods in %s", workflows*each, took)
	f.wantHeld(kept)
	requests := f.requests(d.userAgent)
	wantNoConflict(t, requests)
	perPod := map[string]int{}
	for _, r := range onlyWrites(requests) {
		perPod[r.name]++
	}
	for name, n := range perPod {
		if n != 1 {
			t.Errorf("%s: %d writes", name, n)
		}
	}
	podReads, workflowReads := ownReads(requests)
	// One read a workflow, and one more each time that it has become too old to be
	// relied on: by then a busy machine has not released all. The kept pod has reads
	// of its own.
	perWorkflow := 1 + int(took/readInterval)
	if len(perPod) != workflows*each || podReads > 2 || workflowReads > (workflows+1)*perWorkflow {
		t.Errorf("%d pods written to, %d reads of pods, %d of workflows", len(perPod), podReads, workflowReads)
	}
}
