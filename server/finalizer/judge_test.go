package finalizer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var judgeNow = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// evidence is a succeeded pod, ten minutes old, of a running workflow that has
// its node as Running: nothing gives leave.
func evidence(change ...func(*Evidence)) Evidence {
	wf := Workflow{Key: flowA, Exists: true, UID: flowUID(flowA), Phase: "Running", StartedAt: judgeNow.Add(-11 * time.Minute)}
	wf.SetNodes(map[string]Node{"node-p": {Type: "Pod", Phase: "Running", StartedAt: judgeNow.Add(-10 * time.Minute)}})
	e := Evidence{
		Pod:      podOf(flowA, "p", func(p *Pod) { p.CreatedAt = judgeNow.Add(-10 * time.Minute) }),
		Workflow: wf, Now: judgeNow,
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

// stored makes the pod's node, leaving the others.
func stored(n Node) func(*Evidence) {
	return func(e *Evidence) {
		nodes := map[string]Node{}
		for id, other := range e.Workflow.Nodes {
			nodes[id] = other
		}
		nodes["node-p"] = n
		e.Workflow.SetNodes(nodes)
	}
}

func noNode(e *Evidence) { e.Workflow.SetNodes(nil) }

// retried is a workflow that had completed and was set to run again just now.
func retried(e *Evidence) {
	e.Workflow.CompletedOnce, e.Workflow.StartedAt = true, e.Now
}

// retriedBeforePod is one that was retried that long before the pod was created.
func retriedBeforePod(d time.Duration) func(*Evidence) {
	return func(e *Evidence) {
		e.Workflow.CompletedOnce, e.Workflow.StartedAt = true, e.Pod.CreatedAt.Add(-d)
	}
}

func resubmitted(e *Evidence) { e.Workflow.Resubmitted = true }

// restarting is a pod that failed before it ran, and that its controller makes anew.
func restarting(e *Evidence) {
	stored(Node{Type: "Pod", Phase: "Pending", RestartingPod: e.Pod.UID})(e)
	e.Pod.Status = &PodStatus{Phase: "Failed", NodeName: "n1"}
}

// begunBy is what the stored status tells of the workflow's begin.
func begunBy(phase string, start time.Time) func(*Evidence) {
	return onFlow(func(w *Workflow) { w.Phase, w.StartedAt = phase, start })
}

func child(phase string) func(*Evidence) {
	return func(e *Evidence) {
		nodes := map[string]Node{fmt.Sprint("child-", len(e.Workflow.Nodes)): {Type: "Container", Phase: phase, BoundaryID: "node-p"}}
		for id, n := range e.Workflow.Nodes {
			nodes[id] = n
		}
		e.Workflow.SetNodes(nodes)
	}
}

func onPod(f func(*Pod)) func(*Evidence) { return func(e *Evidence) { f(&e.Pod) } }

func onFlow(f func(*Workflow)) func(*Evidence) { return func(e *Evidence) { f(&e.Workflow) } }

func aged(d time.Duration) func(*Evidence) {
	return func(e *Evidence) { e.Pod.CreatedAt = e.Now.Add(-d) }
}

func ending(e *Evidence) {
	e.Pod.DeletedAt, e.Pod.GraceSeconds = e.Now.Add(-time.Minute), 30
}

func startedAfterPod(d time.Duration) func(*Evidence) {
	return func(e *Evidence) { stored(Node{Type: "Pod", Phase: "Pending", StartedAt: e.Pod.CreatedAt.Add(d)})(e) }
}

func finishedBeforePod(d time.Duration) func(*Evidence) {
	return func(e *Evidence) { stored(Node{Type: "Pod", Phase: "Failed", FinishedAt: e.Pod.CreatedAt.Add(-d)})(e) }
}

func yes() *bool { b := true; return &b }
func no() *bool  { return new(bool) }

func TestJudge(t *testing.T) {
	keep := Verdict{Reason: ReasonNotCaptured}
	unsure := Verdict{Reason: ReasonNotCaptured, NeedsStatus: true}
	unknown := Verdict{Reason: ReasonCaptureUnknown}
	offloaded := onFlow(func(w *Workflow) { w.Unknown = "offloaded"; w.Nodes = nil })
	completed := onFlow(func(w *Workflow) { w.Completed = true })
	policy := DefaultPolicy()
	for _, c := range []struct {
		name   string
		change []func(*Evidence)
		want   Verdict
	}{
		{"B15 a finished pod whose node still runs is kept", nil, keep},
		{"B15 a finished terminating pod whose node still runs is kept however old it is", []func(*Evidence){aged(1000 * time.Hour), startedAfterPod(0), ending}, keep},
		{"B21 a running pod is kept although its deletion is asked for", []func(*Evidence){onPod(running), func(e *Evidence) { e.Deleting = true }}, keep},

		{"a succeeded node is captured", []func(*Evidence){stored(Node{Type: "Pod", Phase: "Succeeded"})}, release(ReasonCaptured)},
		{"a failed node is captured", []func(*Evidence){stored(Node{Type: "Pod", Phase: "Failed"})}, release(ReasonCaptured)},
		{"an errored node is captured", []func(*Evidence){stored(Node{Type: "Pod", Phase: "Error"})}, release(ReasonCaptured)},
		{"a node with taskResultSynced true is captured", []func(*Evidence){stored(Node{Phase: "Succeeded", Synced: yes()})}, release(ReasonCaptured)},
		{"a node with taskResultSynced false is not captured", []func(*Evidence){stored(Node{Phase: "Succeeded", Synced: no()})}, keep},
		{"a skipped node is captured whatever taskResultSynced says", []func(*Evidence){stored(Node{Phase: "Skipped", Synced: no()})}, release(ReasonCaptured)},
		{"an omitted node is captured", []func(*Evidence){stored(Node{Phase: "Omitted"})}, release(ReasonCaptured)},
		{"a daemon that runs is not captured", []func(*Evidence){stored(Node{Phase: "Running"}), onPod(running)}, keep},
		{"a pending node is not captured", []func(*Evidence){stored(Node{Phase: "Pending"})}, keep},
		{"an unknown phase is not captured", []func(*Evidence){stored(Node{Phase: "Finished"})}, keep},

		{"a container set with all containers captured is captured", []func(*Evidence){stored(Node{Phase: "Succeeded"}), child("Succeeded"), child("Skipped")}, release(ReasonCaptured)},
		{"a container set with one container uncaptured is kept", []func(*Evidence){stored(Node{Phase: "Succeeded"}), child("Succeeded"), child("Running")}, keep},
		{"a container of another pod's set does not matter", []func(*Evidence){stored(Node{Phase: "Succeeded"}), onFlow(func(w *Workflow) {
			w.SetNodes(map[string]Node{"node-p": {Phase: "Succeeded"}, "x": {Type: "Container", Phase: "Running", BoundaryID: "node-q"}})
		})}, release(ReasonCaptured)},
		{"a step inside the pod's boundary is no container", []func(*Evidence){onFlow(func(w *Workflow) {
			w.SetNodes(map[string]Node{"node-p": {Phase: "Succeeded"}, "x": {Type: "Pod", Phase: "Running", BoundaryID: "node-p"}})
		})}, release(ReasonCaptured)},

		{"B43 a node that finished before the pod was created is an earlier attempt's", []func(*Evidence){finishedBeforePod(time.Minute)}, keep},
		{"a node that finished before the pod by the clock tolerance is this attempt's", []func(*Evidence){finishedBeforePod(5 * time.Second)}, release(ReasonCaptured)},
		{"a node that finished before the pod by more than the clock tolerance is not", []func(*Evidence){finishedBeforePod(5*time.Second + 1)}, keep},

		{"a pod without node ID is never captured", []func(*Evidence){onPod(func(p *Pod) { p.NodeID = "" }), stored(Node{Phase: "Succeeded"}), onFlow(func(w *Workflow) { w.SetNodes(map[string]Node{"": {Phase: "Succeeded"}}) })}, keep},
		{"a terminating pod without node ID is not taken for one whose node was removed", []func(*Evidence){onPod(func(p *Pod) { p.NodeID = "" }), ending}, keep},

		{"B34 an offloaded node status is never captured", []func(*Evidence){stored(Node{Phase: "Succeeded"}), onFlow(func(w *Workflow) { w.Unknown = "offloaded" })}, unknown},
		{"B34 an offloaded node status proves no removed node", []func(*Evidence){offloaded, ending}, unknown},
		{"B34 an offloaded node status and a pod known from metadata only", []func(*Evidence){offloaded, ending, onPod(bare)}, Verdict{Reason: ReasonCaptureUnknown, NeedsStatus: true}},
		{"a remembered capture outlives an offloaded node status", []func(*Evidence){offloaded, func(e *Evidence) { e.Remembered = true }}, release(ReasonCaptured)},
		{"a remembered capture outlives a node that a retry reset", []func(*Evidence){stored(Node{Phase: "Pending"}), func(e *Evidence) { e.Remembered = true }}, release(ReasonCaptured)},

		{"a workflow that is gone makes orphans", []func(*Evidence){onFlow(func(w *Workflow) { *w = Workflow{Key: flowA} }), onPod(running)}, release(ReasonOrphaned)},
		{"B33 a workflow of the same name with another UID makes orphans", []func(*Evidence){onFlow(func(w *Workflow) { w.UID = "another" })}, release(ReasonOrphaned)},
		{"B33 a captured node of another UID's workflow is an orphan's, not captured", []func(*Evidence){stored(Node{Phase: "Succeeded"}), onFlow(func(w *Workflow) { w.UID = "another" })}, release(ReasonOrphaned)},
		{"a workflow being deleted gives leave", []func(*Evidence){onFlow(func(w *Workflow) { w.Deleting = true }), onPod(running)}, release(ReasonWorkflowDeleting)},
		{"B35 a terminating namespace gives leave before all else", []func(*Evidence){onFlow(func(w *Workflow) { w.NamespaceTerminating, w.Exists = true, false }), onPod(running)}, release(ReasonNamespaceTerminating)},
		{"B7 a pod of another kind is never releasable, not even in a terminating namespace", []func(*Evidence){onFlow(func(w *Workflow) { w.NamespaceTerminating = true }), onPod(func(p *Pod) { p.Owner.Kind = "WorkflowArtifactGCTask" })}, Verdict{Reason: ReasonUnowned}},
		{"B11 a pod without owner is never releasable", []func(*Evidence){onPod(func(p *Pod) { p.Owner = Owner{} })}, Verdict{Reason: ReasonUnowned}},
		{"a Workflow of another group is none", []func(*Evidence){onPod(func(p *Pod) { p.Owner.Group = "example.com" })}, Verdict{Reason: ReasonUnowned}},

		{"B46 a terminating pod whose node a retry removed is released", []func(*Evidence){retried, noNode, ending}, release(ReasonNodeRemoved)},
		{"B46 one as old as the minimum age is kept", []func(*Evidence){retried, noNode, ending, aged(30 * time.Second)}, keep},
		{"B46 one just older is released", []func(*Evidence){retried, noNode, ending, aged(30*time.Second + 1)}, release(ReasonNodeRemoved)},
		{"B15 one whose node was never stored, of a workflow that was never retried, is kept", []func(*Evidence){noNode, ending, aged(time.Hour)}, keep},
		{"B15 nor is one of a workflow of which nothing is stored yet released", []func(*Evidence){noNode, ending, aged(time.Hour), begunBy("", time.Time{})}, keep},
		{"B15 one whose controller came back and stored the node later is kept", []func(*Evidence){ending, startedAfterPod(time.Minute)}, keep},
		{"B15 also in a workflow that was retried before the pod was created", []func(*Evidence){ending, retriedBeforePod(5*time.Second + 1), startedAfterPod(time.Minute)}, keep},
		{"B15 also in its first wave, which is younger than the retry by less than the clocks tell", []func(*Evidence){ending, retriedBeforePod(time.Second), startedAfterPod(time.Minute)}, keep},
		{"B46 a pod as young that the retry deleted is given up", []func(*Evidence){ending, aged(100 * time.Second), retriedBeforePod(5 * time.Second), startedAfterPod(time.Minute)}, release(ReasonAttemptSuperseded)},
		{"B46 also one that it deleted late", []func(*Evidence){ending, aged(120 * time.Second), retriedBeforePod(0), startedAfterPod(time.Minute)}, release(ReasonAttemptSuperseded)},
		{"B15 but not one deleted later than a retry takes", []func(*Evidence){ending, aged(120*time.Second + 1), retriedBeforePod(0), startedAfterPod(time.Minute)}, keep},
		{"a failed pod that its controller makes anew is releasable, so that it can be deleted", []func(*Evidence){restarting}, release(ReasonAttemptSuperseded)},
		{"one that is made anew under another UID is not", []func(*Evidence){restarting, onPod(func(p *Pod) { p.UID = "next" })}, keep},
		{"a pending pod of a completed workflow is releasable: no successor waits", []func(*Evidence){completed, onPod(pending)}, release(ReasonNeverStarted)},
		{"also with offloaded nodes", []func(*Evidence){completed, offloaded, onPod(pending)}, release(ReasonNeverStarted)},
		{"B46 a workflow that runs without telling since when may have been retried", []func(*Evidence){ending, startedAfterPod(time.Minute), begunBy("Running", time.Time{})}, release(ReasonAttemptSuperseded)},
		{"B15 one that waits without telling since when has not", []func(*Evidence){ending, startedAfterPod(time.Minute), begunBy("Pending", time.Time{})}, keep},
		{"a pod that is not terminating and has no node stored is kept", []func(*Evidence){noNode}, keep},
		{"B46 a terminating pod whose node is a newer attempt's is released", []func(*Evidence){retried, ending, startedAfterPod(6 * time.Second)}, release(ReasonAttemptSuperseded)},
		{"B46 a node that started after the pod by the clock tolerance is its own", []func(*Evidence){retried, ending, startedAfterPod(5 * time.Second)}, keep},
		{"B46 a node that started before the pod is its own", []func(*Evidence){ending, startedAfterPod(-6 * time.Second)}, keep},
		{"a node that never started is its own", []func(*Evidence){ending, stored(Node{Phase: "Pending"})}, keep},
		{"a newer attempt's node gives no leave while the pod is not terminating", []func(*Evidence){retried, startedAfterPod(time.Minute)}, keep},

		{"B43 a pending pod that is neither terminating nor being deleted is kept", []func(*Evidence){onPod(pending)}, keep},
		{"B18 a terminating pod that never started is released", []func(*Evidence){onPod(pending), ending}, release(ReasonNeverStarted)},
		{"a pod that never started may be deleted", []func(*Evidence){onPod(pending), func(e *Evidence) { e.Deleting = true }}, release(ReasonNeverStarted)},
		{"a terminating pending pod of which an init container ran is kept", []func(*Evidence){onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Pending", Started: true} }), ending}, keep},
		{"B19 a failed pod without container statuses is not taken for never started", []func(*Evidence){onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Failed", NodeName: "n1"} }), ending}, keep},
		{"B18 an unscheduled pod that pod GC marked failed never started", []func(*Evidence){onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Failed"} }), ending}, release(ReasonNeverStarted)},
		{"B18 a pod that never started needs no node status", []func(*Evidence){onPod(pending), ending, offloaded}, release(ReasonNeverStarted)},
		{"a terminating pod known from metadata only needs its status", []func(*Evidence){onPod(bare), ending}, unsure},
		{"a pod known from metadata only that is not terminating needs none", []func(*Evidence){onPod(bare)}, keep},

		{"B36 a finished pod of a completed workflow is released", []func(*Evidence){completed}, release(ReasonWorkflowCompleted)},
		{"B19 a failed pod without container statuses counts as finished", []func(*Evidence){completed, onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Failed"} })}, release(ReasonWorkflowCompleted)},
		{"B19 a failed pod with containers that seem to run counts as finished", []func(*Evidence){completed, onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Failed", Started: true} })}, release(ReasonWorkflowCompleted)},
		{"a running pod of a completed workflow is kept", []func(*Evidence){completed, onPod(running)}, keep},
		{"a pod of unknown phase of a completed workflow is kept", []func(*Evidence){completed, onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Unknown", Started: true} })}, keep},
		{"B36 a finished pod of a completed workflow as old as the minimum age is kept", []func(*Evidence){completed, aged(30 * time.Second)}, keep},
		{"B36 one just older is released", []func(*Evidence){completed, aged(30*time.Second + 1)}, release(ReasonWorkflowCompleted)},
		{"a pod of a completed workflow known from metadata only needs its status", []func(*Evidence){completed, onPod(bare)}, unsure},
		{"a young one needs none", []func(*Evidence){completed, onPod(bare), aged(time.Second)}, keep},
		{"a completed workflow with offloaded nodes gives leave to finished pods", []func(*Evidence){completed, offloaded}, release(ReasonWorkflowCompleted)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, policy.Judge(evidence(c.change...))); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

// randomEvidence has each field that Judge looks at vary on its own.
func randomEvidence(r *rand.Rand) Evidence {
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	phases := []string{"", "Pending", "Running", "Succeeded", "Failed", "Error", "Skipped", "Omitted", "Strange"}
	at := func() time.Time {
		if r.IntN(4) == 0 {
			return time.Time{}
		}
		return judgeNow.Add(time.Duration(r.IntN(240)-120) * time.Second)
	}
	synced := []*bool{nil, yes(), no()}
	e := Evidence{Pod: podOf(flowA, "p"), Now: judgeNow, Remembered: r.IntN(2) == 0, Deleting: r.IntN(2) == 0}
	e.Pod.CreatedAt = judgeNow.Add(-time.Duration(r.IntN(120)) * time.Second)
	e.Pod.NodeID = pick("", "node-p", "node-q")
	if r.IntN(2) == 0 {
		e.Pod.DeletedAt = at()
	}
	e.Pod.Status = nil
	if r.IntN(4) > 0 {
		e.Pod.Status = &PodStatus{Phase: pick("Pending", "Running", "Succeeded", "Failed", "Unknown"), Started: r.IntN(2) == 0}
	}
	e.Pod.Owner.Kind = pick("Workflow", "Workflow", "Workflow", "Job")
	nodes := map[string]Node{}
	for _, id := range []string{"node-p", "node-q", "child"} {
		if r.IntN(4) == 0 {
			continue
		}
		n := Node{Type: "Pod", Phase: pick(phases...), Synced: synced[r.IntN(3)], StartedAt: at(), FinishedAt: at()}
		if r.IntN(8) == 0 {
			n.RestartingPod = e.Pod.UID
		}
		if id == "child" {
			n.Type, n.BoundaryID = "Container", "node-p"
		}
		nodes[id] = n
	}
	e.Workflow = Workflow{
		Key: flowA, Exists: r.IntN(8) > 0, UID: e.Pod.Owner.UID, Deleting: r.IntN(8) == 0,
		Completed: r.IntN(2) == 0, NamespaceTerminating: r.IntN(8) == 0, Unknown: pick("", "", "offloaded"),
		Phase: pick("", "Pending", "Running", "Running"), StartedAt: at(), CompletedOnce: r.IntN(2) == 0, Resubmitted: r.IntN(4) == 0,
	}
	if r.IntN(8) == 0 {
		e.Workflow.UID = "another"
	}
	e.Workflow.SetNodes(nodes)
	return e
}

// captured is the definition of BEHAVIOURS, written anew.
func captured(p Policy, e Evidence) bool {
	if e.Workflow.Unknown != "" || e.Pod.NodeID == "" {
		return false
	}
	own, ok := e.Workflow.Nodes[e.Pod.NodeID]
	if !ok || (!own.FinishedAt.IsZero() && own.FinishedAt.Add(p.ClockTolerance).Before(e.Pod.CreatedAt)) {
		return false
	}
	failed := own.Phase == "Failed" || own.Phase == "Error"
	for id, n := range e.Workflow.Nodes {
		if id != e.Pod.NodeID && failed && n.Phase == "Pending" {
			continue
		}
		if id != e.Pod.NodeID && !(n.Type == "Container" && n.BoundaryID == e.Pod.NodeID) {
			continue
		}
		ended := n.Phase == "Succeeded" || n.Phase == "Failed" || n.Phase == "Error"
		if !(ended && (n.Synced == nil || *n.Synced) || n.Phase == "Skipped" || n.Phase == "Omitted") {
			return false
		}
	}
	return true
}

func checkJudged(t *testing.T, e Evidence) {
	t.Helper()
	p := DefaultPolicy()
	v := p.Judge(e)
	wf := e.Workflow
	alive := wf.Exists && wf.UID == e.Pod.Owner.UID && !wf.Deleting && !wf.NamespaceTerminating
	proof := captured(p, e) || e.Remembered
	switch {
	case v.Releasable && !e.Pod.Owner.IsWorkflow():
		t.Errorf("B7: not a workflow pod, yet releasable: %+v: %+v", v, e)
	case v.Releasable && alive && !proof && !wf.Completed && !e.Pod.Terminating() && !e.Deleting && !restarted(&e.Pod, wf):
		t.Errorf("B15: nothing gives leave, yet releasable: %+v: %+v", v, e)
	case v.Releasable && alive && !proof && !wf.Completed && e.Pod.Status != nil && e.Pod.Status.Phase == "Running" && !e.Pod.Terminating() && !restarted(&e.Pod, wf):
		t.Errorf("B21: a running pod is releasable: %+v: %+v", v, e)
	case !v.Releasable && e.Pod.Owner.IsWorkflow() && (!alive || proof):
		t.Errorf("B9: there is leave, yet it is kept: %+v: %+v", v, e)
	case v.Releasable && v.NeedsStatus:
		t.Errorf("releasable, yet a status is wanted: %+v: %+v", v, e)
	case v.NeedsStatus && e.Pod.Status != nil:
		t.Errorf("the status is there, yet it is wanted: %+v: %+v", v, e)
	case v.Releasable && givenUp(v.Reason) && neverRetried(e) && !restarted(&e.Pod, wf):
		t.Errorf("B15: taken for given up, yet there was no retry: %+v: %+v", v, e)
	case v.Reason == ReasonNone:
		t.Errorf("no reason: %+v", e)
	}
	if s := p.Explain(&e.Pod, wf, v); s == "" {
		t.Errorf("no explanation: %+v", v)
	}
	checkJudgedAlike(t, p, e, v)
}

func givenUp(r Reason) bool { return r == ReasonNodeRemoved || r == ReasonAttemptSuperseded }

// deletedInRetry reports whether the pod has ended and was deleted in the course of
// a retry.
func deletedInRetry(e Evidence) bool {
	wf, pod := e.Workflow, e.Pod
	asked := pod.DeletedAt.Add(-time.Duration(pod.GraceSeconds) * time.Second)
	return pod.Status.Terminal() && pod.Terminating() && wf.CompletedOnce && !wf.StartedAt.IsZero() && !wf.Completed &&
		!asked.Before(wf.StartedAt.Add(-5*time.Second)) && !asked.After(wf.StartedAt.Add(30*time.Second)) && !pod.CreatedAt.After(wf.StartedAt.Add(5*time.Second))
}

// neverRetried reports whether the stored status rules out that a retry gave up
// the pod.
func neverRetried(e Evidence) bool {
	wf := e.Workflow
	return !wf.Completed && !wf.StartedAt.IsZero() && (!wf.CompletedOnce || wf.StartedAt.Add(6*time.Second).Before(e.Pod.CreatedAt))
}

// checkJudgedAlike holds the verdict against those on slightly other evidence.
func checkJudgedAlike(t *testing.T, p Policy, e Evidence, v Verdict) {
	t.Helper()
	other := e
	other.Workflow.Unknown = "offloaded"
	switch got := p.Judge(other); {
	case got.Releasable && givenUp(got.Reason) && deletedInRetry(other):
		// What a retry leaves of the nodes says the same, where it is known.
	case got.Releasable && !v.Releasable:
		t.Errorf("B34: to know less gives leave: %+v, %+v: %+v", got, v, e)
	case got.Releasable && givenUp(got.Reason),
		got.Reason == ReasonCaptured && !e.Remembered:
		t.Errorf("B34: an unknown node gives leave: %+v: %+v", got, e)
	}
	for name, more := range map[string]func(*Evidence){
		"B17 a remembered capture":   func(e *Evidence) { e.Remembered = true },
		"that its deletion is asked": func(e *Evidence) { e.Deleting = true },
		"that its workflow goes":     func(e *Evidence) { e.Workflow.Deleting = true },
		"that its namespace goes":    func(e *Evidence) { e.Workflow.NamespaceTerminating = true },
		"that it grows old":          func(e *Evidence) { e.Now = e.Now.Add(time.Hour) },
	} {
		other := e
		if more(&other); v.Releasable && !p.Judge(other).Releasable {
			t.Errorf("%s takes the leave away: %+v: %+v", name, v, e)
		}
	}
	if !v.NeedsStatus {
		return
	}
	other = e
	other.Pod.Status = &PodStatus{Phase: "Running", Started: true}
	if got := p.Judge(other); got.Releasable {
		t.Errorf("B21: a pod that runs needed only its status: %+v: %+v", got, e)
	}
}

func TestNothingIsReleasableWithoutAReasonForIt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		checkJudged(t, randomEvidence(r))
		if t.Failed() {
			return
		}
	}
}

func FuzzJudge(f *testing.F) {
	f.Add(uint64(1), uint64(1))
	f.Fuzz(func(t *testing.T, a, b uint64) { checkJudged(t, randomEvidence(rand.New(rand.NewPCG(a, b)))) })
}
