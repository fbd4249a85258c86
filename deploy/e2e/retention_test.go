package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestB16_MaxHoldCountsFromTheDeletionAndIsAnEventAndAMetric(t *testing.T) {
	f := newFixture(t)
	const maxHold = 6 * time.Second
	wf := f.workflow("wf", podNode("pod", "Running"), podNode("undeleted", "Running"))
	undeleted := f.pod(wf, "undeleted", inPhase(corev1.PodSucceeded))
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	f.waitAge(maxHold+time.Second, pod) // its age does not count
	d := f.newReconciler(daemonOptions{name: "max-hold", policy: func(p *finalizer.Policy) {
		soon(p)
		p.MaxHold = maxHold
	}})
	f.waitReadyz(d)
	f.deletePod("pod")
	deletion := f.live("pod").DeletionTimestamp.Time
	f.waitFor("gone", gone, pod)
	requests := f.requests(d.userAgent)
	wantWritesOf(t, requests, "pod", "patch")
	for _, r := range ofPod(requests, "pod") {
		if early := deletion.Add(maxHold).Sub(r.received); early > 0 && r.writes() {
			t.Errorf("released %s early", early)
		}
	}
	e := f.wantEvent(pod, "ForcedRelease")
	if e.Type != corev1.EventTypeWarning || !strings.Contains(e.Note, "max-hold") {
		t.Errorf("the event: %+v", e)
	}
	if n := f.samples(d, metricForced, "reason"); n[word(pb.HoldReason_HOLD_REASON_MAX_HOLD)] != 1 {
		t.Errorf("%s: %v", metricForced, n)
	}
	f.wantUntouched(undeleted)
}

// clusterNode makes a cluster node of the test's own, Ready since long, without a
// kubelet.
func (f *fixture) clusterNode(name string) string {
	f.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name + "." + f.ns}}
	made, err := f.plane.admin.CoreV1().Nodes().Create(f.ctx, node, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.setReady(made.Name, corev1.ConditionTrue, time.Hour)
	return made.Name
}

func (f *fixture) setReady(node string, ready corev1.ConditionStatus, since time.Duration) {
	f.t.Helper()
	now, err := f.plane.admin.CoreV1().Nodes().Get(f.ctx, node, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	now.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: ready, Reason: "Test", LastTransitionTime: metav1.NewTime(time.Now().Add(-since)),
	}}
	if _, err := f.plane.admin.CoreV1().Nodes().UpdateStatus(f.ctx, now, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func runsOn(node string) podOption {
	return func(p *corev1.Pod) {
		inPhase(corev1.PodRunning)(p)
		p.Spec.NodeName = node
	}
}

func TestB20_PodsOfALostClusterNodeAreReleased(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf", podNode("gone", "Running"), podNode("unready", "Running"), podNode("unknown", "Running"),
		podNode("briefly", "Running"), podNode("ready", "Running"), podNode("undeleted", "Running"))
	pods := map[string]*corev1.Pod{}
	for _, name := range []string{"gone", "unready", "unknown", "briefly", "ready", "undeleted"} {
		pods[name] = f.pod(wf, name, runsOn(f.clusterNode(name)))
	}
	on := func(name string) string { return pods[name].Spec.NodeName }
	f.setReady(on("unready"), corev1.ConditionFalse, 10*time.Minute)
	f.setReady(on("unknown"), corev1.ConditionUnknown, 10*time.Minute) // as the node controller says when the kubelet is silent
	f.setReady(on("undeleted"), corev1.ConditionFalse, 10*time.Minute)
	f.setReady(on("briefly"), corev1.ConditionFalse, time.Minute)
	if err := f.plane.admin.CoreV1().Nodes().Delete(f.ctx, on("gone"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gone", "unready", "unknown", "briefly", "ready"} {
		if err := f.plane.admin.CoreV1().Pods(f.ns).Delete(f.ctx, name, *metav1.NewDeleteOptions(2)); err != nil {
			t.Fatal(err)
		}
		pods[name] = f.live(name)
	}
	d := f.newReconciler(daemonOptions{name: "node-lost", policy: soon})
	lost := []*corev1.Pod{pods["gone"], pods["unready"], pods["unknown"]}
	f.waitFor("released", released, lost...)
	for _, pod := range lost {
		f.wantNotBefore(d, pod, pod.DeletionTimestamp.Time) // its grace period
		f.wantEvent(pod, "NodeLost")
	}
	for _, door := range d.doors() {
		f.eventually("what may yet be lost is told", func() (bool, error) {
			return slices.Equal(f.listed(door, pb.HoldReason_HOLD_REASON_NODE_LOST), []string{"briefly"}), nil
		})
		got, err := door.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: "briefly"})
		if err != nil {
			t.Fatal(err)
		}
		// Not Ready for a minute of five.
		if left := time.Until(got.GetPod().GetReleaseTime().AsTime()); left < 3*time.Minute || left > 4*time.Minute+time.Second {
			t.Errorf("%s: released in %s: %v", door.name, left, got)
		}
	}
	f.stays("held", held, 2*time.Second, pods["briefly"], pods["ready"], pods["undeleted"])
	for _, name := range []string{"briefly", "ready", "undeleted"} {
		wantWritesOf(t, f.requests(d.userAgent), name)
	}
}

func TestB35_ATerminatingNamespaceIsReleasedWithoutFurtherConditions(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf", podNode("finished", "Running"), podNode("runs", "Running"), podNode("stuck", "Running"))
	f.pod(wf, "finished", inPhase(corev1.PodSucceeded))
	f.pod(wf, "runs", runsUntilDeleted(time.Second))
	f.pod(wf, "unowned", inPhase(corev1.PodFailed), withoutOwner)
	f.patchWorkflow(wf, map[string]any{"metadata": map[string]any{"finalizers": []string{"example.com/keep"}}})
	d := f.newReconciler(daemonOptions{name: "namespace"})
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_NOT_CAPTURED, 2)
	if err := f.plane.admin.CoreV1().Namespaces().Delete(f.ctx, f.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the pods are gone", func() (bool, error) {
		left, err := f.plane.admin.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0, err
	})
	f.patchWorkflow(wf, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	f.eventually("the namespace is gone", func() (bool, error) {
		_, err := f.plane.admin.CoreV1().Namespaces().Get(f.ctx, f.ns, metav1.GetOptions{})
		return err != nil, nil
	})
}

func TestB37_AYoungPodWhoseWorkflowNeverExistedIsLeftAloneUntilMinAge(t *testing.T) {
	f := newFixture(t)
	const minAge = 8 * time.Second
	d := f.newReconciler(daemonOptions{name: "young", minAge: minAge})
	f.waitReadyz(d)
	never := workflow{"never", "5d1f9a52-0000-4000-8000-000000000000"}
	pod := f.pod(never, "pod", inPhase(corev1.PodSucceeded)) // the garbage collector deletes it at once
	f.waitTerminating(pod)
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_ORPHANED, 1)
	f.waitFor("gone", gone, pod)
	f.wantNotBefore(d, pod, pod.CreationTimestamp.Add(minAge))
}

// wantNotBefore fails unless the daemon released the pod by one write and not
// before that time.
func (f *fixture) wantNotBefore(d *daemon, pod *corev1.Pod, due time.Time) {
	f.t.Helper()
	requests := f.requests(d.userAgent)
	wantWritesOf(f.t, requests, pod.Name, "patch")
	for _, r := range onlyWrites(ofPod(requests, pod.Name)) {
		if early := due.Sub(r.received); early > 0 {
			f.t.Errorf("pod %s was released %s early", pod.Name, early)
		}
	}
}

func TestB46_APodWhoseNodeIsNotStoredYetIsKeptUntilItIsOldEnough(t *testing.T) {
	f := newFixture(t)
	const minAge = 8 * time.Second
	wf := f.workflow("wf")
	f.patchStatus(wf, retryStatus())
	d := f.newReconciler(daemonOptions{name: "unstored", minAge: minAge})
	f.waitReadyz(d)
	removed, stored := f.pod(wf, "removed", inPhase(corev1.PodSucceeded)), f.pod(wf, "stored", inPhase(corev1.PodSucceeded))
	f.deletePod("removed")
	f.deletePod("stored")
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_NOT_CAPTURED, 2)
	f.setNodes(wf, podNode("stored", "Running"))
	f.waitFor("gone", gone, removed)
	f.wantNotBefore(d, removed, removed.CreationTimestamp.Add(minAge))
	f.wantHeld(stored)
	// The name is free for the next attempt.
	again := f.pod(wf, "removed", inPhase(corev1.PodRunning))
	f.stays("held", held, 2*time.Second, again, stored)
}

const metricForced = "finalizerd_forced_releases_total"
