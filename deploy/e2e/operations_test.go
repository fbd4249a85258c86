package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

func TestB08_TheReconcilerKeepsToItsNamespacesAndItsInstanceExactly(t *testing.T) {
	f := newFixture(t)
	longer, err := f.plane.admin.CoreV1().Namespaces().Create(f.ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.ns + "x"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second, other := f.beside(), &fixture{t: f.t, ctx: f.ctx, plane: f.plane, ns: longer.Name}
	var mine, foreign []*corev1.Pod
	for _, in := range []*fixture{f, second, other} {
		wf := in.workflow("wf", podNode("mine", "Succeeded"), podNode("default", "Succeeded"), podNode("longer", "Succeeded"))
		instances := map[string]string{"mine": "a", "longer": "ab"}
		for _, name := range []string{"mine", "default", "longer"} {
			var options []podOption
			if id := instances[name]; id != "" {
				options = append(options, withLabel(labelInstance, id))
			}
			pod := in.pod(wf, name, append(options, inPhase(corev1.PodSucceeded))...)
			if name == "mine" && in != other {
				mine = append(mine, pod)
			} else {
				foreign = append(foreign, pod)
			}
		}
	}
	d := f.newReconciler(daemonOptions{name: "scoped", instanceID: "a", policy: soon, namespaces: []string{f.ns, second.ns}})
	f.waitFor("released", leftReleased, mine[0])
	second.waitFor("released", leftReleased, mine[1])
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_OTHER_INSTANCE, 4)
	for _, pod := range foreign {
		in := &fixture{t: f.t, ctx: f.ctx, plane: f.plane, ns: pod.Namespace}
		in.stays("held", shown, time.Second, pod)
	}
	if r := other.requests(d.userAgent); len(r) > 0 {
		t.Errorf("requests about a namespace that is not served: %v", r)
	}
	for _, door := range d.doors() {
		_, err := door.ReleasePod(f.ctx, other.verifying("mine"))
		wantError(t, err, codes.FailedPrecondition, "NAMESPACE_NOT_SERVED")
		_, err = door.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: other.ns})
		wantError(t, err, codes.FailedPrecondition, "NAMESPACE_NOT_SERVED")
		page, err := door.ListPods(f.ctx, &pb.ListPodsRequest{})
		if err != nil || len(page.GetPods()) != 4 {
			t.Errorf("%s: all pods: %v, %v", door.name, page, err)
		}
	}
}

func TestB40_MetricsTellWhatIsHeldAndWhyAndWhatWasDone(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf", podNode("deleted", "Running"), podNode("runs", "Running"), podNode("stored", "Succeeded"), podNode("hidden", "Running"), podNode("forced", "Running"))
	odd := f.workflow("odd")
	f.patchStatus(odd, map[string]any{"offloadNodeStatusVersion": "fnv:1"})
	f.pod(wf, "runs", inPhase(corev1.PodRunning))
	deleted := f.pod(wf, "deleted", inPhase(corev1.PodSucceeded))
	stored, hidden := f.pod(wf, "stored", inPhase(corev1.PodSucceeded)), f.pod(wf, "hidden", inPhase(corev1.PodSucceeded))
	f.pod(odd, "unknown", inPhase(corev1.PodSucceeded))
	forced := f.pod(wf, "forced", inPhase(corev1.PodSucceeded))
	f.deletePod("deleted")
	labelled(f, wf, hidden)
	d := f.newReconciler(daemonOptions{name: "metrics", policy: soon})
	f.waitFor("released", released, stored)
	f.waitFor("shown again", shown, hidden)
	got, err := d.ReleasePod(f.ctx, &pb.ReleasePodRequest{Namespace: f.ns, Pod: "forced", PodUid: string(forced.UID), Force: true})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, got.GetResult(), pb.Outcome_OUTCOME_RELEASED, pb.HoldReason_HOLD_REASON_FORCED)
	f.wantEvent(forced, "ForcedRelease")
	f.waitAge(3*time.Second, deleted)

	want := map[string]float64{"NOT_CAPTURED": 3, "CAPTURE_UNKNOWN": 1}
	f.eventually("the held pods are counted by reason", func() (bool, error) {
		now := f.samples(d, metricHeld, "reason")
		maps.DeleteFunc(now, func(_ string, n float64) bool { return n == 0 })
		return maps.Equal(now, want), nil
	})
	oldest := f.samples(d, "finalizerd_held_oldest_seconds", "reason")
	if age := oldest["NOT_CAPTURED"]; age < 3 || age > time.Since(deleted.CreationTimestamp.Time).Seconds()+1 || oldest["CAPTURED"] != 0 {
		t.Errorf("ages: %v", oldest)
	}
	for metric, n := range map[string]string{
		"finalizerd_unknown_captures": "1", "finalizerd_unhidden_total": "1", "finalizerd_held_terminating_pods": "1",
		"finalizerd_admission_blocks_total": "0",
	} {
		if got := f.metric(d, metric); got != n {
			t.Errorf("%s is %q, want %s", metric, got, n)
		}
	}
	if n := f.samples(d, metricForced, "reason"); n["FORCED"] != 1 || n["MAX_HOLD"] != 0 {
		t.Errorf("%s: %v", metricForced, n)
	}
	if n := f.samples(d, "finalizerd_releases_total", "reason"); n["CAPTURED"] != 1 || n["FORCED"] != 1 || len(n) != 2 {
		t.Errorf("finalizerd_releases_total by reason: %v", n)
	}
	if n := f.samples(d, "finalizerd_releases_total", "origin"); n["reconcile"] != 1 || n["call"] != 1 {
		t.Errorf("finalizerd_releases_total by origin: %v", n)
	}
}

func TestB44_AHiddenPodIsShownInOnePatchAndItsControllerIsToldWhy(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf", podNode("held", "Running"), podNode("bare", "Pending"), podNode("stored", "Running"), podNode("done", "Running"))
	pods := map[string]*corev1.Pod{}
	d := f.newReconciler(daemonOptions{name: "hidden", policy: soon})
	f.waitReadyz(d)
	for _, name := range []string{"held", "bare", "stored", "done"} {
		pods[name] = f.pod(wf, name, inPhase(corev1.PodSucceeded))
	}
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_NOT_CAPTURED, 4)
	// A late clean-up by name: the label, and for some FIN too.
	late := time.Now()
	labelled(f, wf, pods["held"])
	labelled(f, wf, pods["done"])
	for _, name := range []string{"bare", "stored"} {
		f.patchPod(pods[name], map[string]any{"metadata": map[string]any{"finalizers": nil, "labels": map[string]any{labelDone: "true"}}})
	}
	// In time for two of them the controller stores the result after all.
	f.setNodes(wf, podNode("stored", "Succeeded"), podNode("done", "Succeeded"))
	for _, name := range []string{"held", "bare"} {
		f.waitFor("shown again", shown, pods[name])
		e := f.wantEvent(pods[name], "Hidden")
		if e.Type != corev1.EventTypeWarning {
			t.Errorf("the event: %+v", e)
		}
	}
	f.waitFor("released", labelledAndReleased, pods["done"])
	f.stays("as it was", labelledAndReleased, 2*time.Second, pods["stored"])
	requests := f.requests(d.userAgent)
	for name, writes := range map[string][]string{"held": {"patch"}, "bare": {"patch"}, "done": {"patch"}, "stored": nil} {
		wantWritesOf(t, requests, name, writes...)
		for _, r := range onlyWrites(ofPod(requests, name)) {
			if early := late.Add(3 * time.Second).Sub(r.received); name != "done" && early > 0 {
				t.Errorf("%s was shown %s early", name, early)
			}
		}
	}
	// Taken up again by its controller, each is released as any other.
	f.setNodes(wf, podNode("held", "Succeeded"), podNode("bare", "Succeeded"))
	f.waitFor("released", leftReleased, pods["held"], pods["bare"])
}

func TestBulkWorkIsAnEventOnTheWorkflow(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf", podNode("a", "Succeeded"), podNode("b", "Succeeded"))
	f.pod(wf, "a", inPhase(corev1.PodSucceeded))
	f.pod(wf, "b", inPhase(corev1.PodSucceeded))
	d := f.newDaemon(daemonOptions{name: "bulk-events", namespaces: []string{f.ns}})
	f.waitPods(d, wf, 2)
	if _, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the event is there", func() (bool, error) {
		found := f.eventsOn(wf.uid, "PodsDeleted")
		return len(found) == 1 && found[0].Regarding.Kind == "Workflow" && found[0].Type == corev1.EventTypeNormal && found[0].Note != "", nil
	})
	all, err := f.plane.admin.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, e := range all.Items {
		reasons = append(reasons, e.Reason)
	}
	if !slices.Equal(reasons, []string{"PodsDeleted"}) {
		t.Errorf("events: %v", reasons)
	}
}
