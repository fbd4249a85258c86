package finalizer

import (
	"math/rand/v2"
	"testing"
	"time"
)

// randomRule varies, beyond what Judge looks at, all that Decide does.
func randomRule(r *rand.Rand) (Policy, Evidence) {
	p, e := DefaultPolicy(), randomEvidence(r)
	p.ReleaseUnowned = r.IntN(2) == 0
	if r.IntN(2) == 0 {
		p.MaxHold = time.Duration(r.IntN(240)) * time.Second
	}
	ago := func() time.Time { return judgeNow.Add(-time.Duration(r.IntN(400)) * time.Second) }
	e.Deleting = false
	e.Workflow.ReadAt = judgeNow
	switch r.IntN(4) {
	case 0:
		e.Workflow.ReadAt, e.Workflow.Unknown = time.Time{}, ""
		e.Workflow.SetNodes(nil)
	case 1:
		e.Workflow.ReadAt = ago()
	}
	if r.IntN(8) == 0 {
		e.Pod.Owner = Owner{}
	}
	if r.IntN(8) == 0 {
		e.Pod.InstanceID = "other"
	}
	e.Pod.Completed = r.IntN(2) == 0
	if r.IntN(4) == 0 {
		e.Pod.Finalizers = nil
	}
	if e.Pod.Status != nil && r.IntN(4) > 0 {
		e.Pod.Status.NodeName = "n1"
	}
	e.Health = NodeHealth{Known: r.IntN(2) == 0, Gone: r.IntN(4) == 0, Ready: r.IntN(2) == 0}
	if !e.Health.Gone && r.IntN(4) > 0 {
		e.Health.Since = ago()
	}
	if r.IntN(2) == 0 {
		e.HiddenSince = judgeNow.Add(-time.Duration(r.IntN(30)) * time.Second)
	}
	return p, e
}

// standsFor reports whether the workflow is there, is the pod's, and stays.
func standsFor(e Evidence) bool {
	wf := e.Workflow
	return wf.Exists && wf.UID == e.Pod.Owner.UID && !wf.Deleting && !wf.NamespaceTerminating
}

func checkDecided(t *testing.T, p Policy, e Evidence) {
	t.Helper()
	d, wf, proof := p.Decide(e), e.Workflow, captured(p, e) || e.Remembered
	alive := standsFor(e) && e.Pod.Owner.IsWorkflow()
	released := d.Action == ActionRelease
	switch {
	case d.Action != ActionKeep && (d.Need != NeedNothing || !d.At.IsZero() || !d.ReleaseAt.IsZero()):
		t.Errorf("it acts, and yet wants more: %+v: %+v", d, e)
	case d.Action != ActionKeep && d.Reason == ReasonNone:
		t.Errorf("it acts without a reason: %+v: %+v", d, e)
	case d.Action == ActionKeep && d.MarkCompleted:
		t.Errorf("it keeps, and yet labels: %+v: %+v", d, e)
	case e.Pod.Has(fin) && d.Reason == ReasonNone:
		t.Errorf("B41: a held pod without a reason: %+v: %+v", d, e)
	case released && !e.Pod.Has(fin):
		t.Errorf("nothing is held, yet it is released: %+v: %+v", d, e)
	case d.Action != ActionKeep && e.Pod.InstanceID != p.InstanceID:
		t.Errorf("B8: another instance's: %+v: %+v", d, e)
	case d.Action != ActionKeep && !e.Pod.Owner.IsWorkflow() && !e.Pod.Owner.None():
		t.Errorf("B7: another kind's: %+v: %+v", d, e)
	case !d.ReleaseAt.IsZero() && (!d.ReleaseAt.After(e.Now) || d.At.IsZero() || d.At.After(d.ReleaseAt)), d.Need == NeedNothing && !d.At.IsZero() && !d.At.After(e.Now):
		t.Errorf("it would look again at once: %+v: %+v", d, e)
	}
	unlabelled := !wf.Completed && !e.Pod.Completed
	switch {
	case released && alive && wf.Unknown == "" && !proof && !e.Pod.Terminating() && unlabelled && !restarted(&e.Pod, wf):
		t.Errorf("B15: nothing gives leave, yet it is released: %+v: %+v", d, e)
	case released && alive && wf.ReadAt.IsZero() && !e.Remembered:
		t.Errorf("B6: released on a hint: %+v: %+v", d, e)
	case released && d.Reason == ReasonOrphaned && wf.ReadAt.IsZero():
		t.Errorf("B6: an orphan without a live read: %+v: %+v", d, e)
	case released && alive && wf.Unknown != "" && !e.Remembered && !unknownButFree(d, e):
		t.Errorf("B34: released although nothing is known: %+v: %+v", d, e)
	case d.Action == ActionUnhide && (proof || wf.Completed || !alive || wf.ReadAt.IsZero() || !e.Pod.Completed):
		t.Errorf("B44: unhidden although it hides nothing: %+v: %+v", d, e)
	case d.MarkCompleted && alive && !wf.Completed:
		t.Errorf("B44: labelled while its workflow runs: %+v: %+v", d, e)
	}
	checkAgreed(t, p, e, d)
}

// unknownButFree has what gives leave although the nodes are unknown.
func unknownButFree(d Decision, e Evidence) bool {
	wf := e.Workflow
	switch d.Reason {
	case ReasonAttemptSuperseded:
		return deletedInRetry(e)
	case ReasonNeverStarted, ReasonNodeLost, ReasonMaxHold:
		return true
	case ReasonCompleted, ReasonWorkflowCompleted:
		return wf.Completed
	}
	return false
}

// checkAgreed holds Decide against Judge: what the reconciler releases a caller
// may release too, and the other way round, now or after the rule's patience.
func checkAgreed(t *testing.T, p Policy, e Evidence, d Decision) {
	t.Helper()
	if e.Now.Sub(e.Pod.CreatedAt) == p.MinAge || e.Pod.InstanceID != p.InstanceID {
		return // the edge, and what is refused before it is judged
	}
	v := p.Judge(e)
	own := e.Pod.Owner.IsWorkflow() // of the others Judge knows nothing
	switch d.Reason {
	case ReasonNodeLost, ReasonMaxHold, ReasonUnowned:
	default:
		if own && d.Action == ActionRelease && !v.Releasable {
			t.Errorf("the rule releases what a caller may not: %+v, %+v: %+v", d, v, e)
		}
	}
	fresh := e.Workflow.ReadAt.Equal(e.Now) && e.Pod.Has(fin)
	if v.Reason == ReasonNeverStarted && !e.Pod.Terminating() {
		return // a caller's to delete; by itself it may start yet
	}
	if own && fresh && v.Releasable && d.Action != ActionRelease && d.ReleaseAt.IsZero() && d.Need == NeedNothing {
		t.Errorf("a caller may release what the rule keeps for good: %+v, %+v: %+v", d, v, e)
	}
}

// checkAsks fulfils each need in turn, on a clock that stands still.
func checkAsks(t *testing.T, p Policy, e Evidence) {
	t.Helper()
	truth := e
	if truth.Workflow.Unknown == "" && truth.Workflow.Nodes == nil {
		truth.Workflow.SetNodes(map[string]Node{"node-p": {Type: "Pod", Phase: "Running"}})
	}
	if truth.Pod.Status == nil {
		truth.Pod.Status = &PodStatus{Phase: "Running", Started: true, NodeName: "n1"}
	}
	var asked []Need
	for {
		d := p.Decide(e)
		switch d.Need {
		case NeedNothing:
			return
		case NeedGlance, NeedWorkflow:
			e.Workflow = truth.Workflow
			e.Workflow.ReadAt = e.Now
		case NeedStatus:
			e.Pod.Status = truth.Pod.Status
		case NeedHealth:
			e.Health.Known = true
		}
		if asked = append(asked, d.Need); len(asked) > 4 {
			t.Errorf("it asks without end: %v: %+v", asked, e)
			return
		}
	}
}

// checkLooks looks at the pod again whenever the rule wants to, with fresh reads
// each time, until only a change could matter.
func checkLooks(t *testing.T, p Policy, e Evidence) {
	t.Helper()
	fetched := e.Workflow
	for looks := 0; ; looks++ {
		if e.HiddenSince.IsZero() && e.Pod.Completed {
			e.HiddenSince = e.Now
		}
		d := p.Decide(e)
		for asked := 0; d.Need != NeedNothing && asked < 4; asked++ {
			if e.Pod.Status == nil {
				e.Pod.Status = &PodStatus{Phase: "Running", Started: true, NodeName: "n1"}
			}
			e.Workflow, e.Health.Known = fetched, true
			e.Workflow.ReadAt = e.Now
			d = p.Decide(e)
		}
		e.Remembered = e.Remembered || p.Captured(&e.Pod, e.Workflow)
		switch {
		case d.Action != ActionKeep || d.At.IsZero():
			return
		case d.At.Equal(e.Now.Add(nodePoll)) && p.MaxHold == 0:
			return // the health of a cluster node gives no event: there is no end
		case looks > 16:
			t.Errorf("it looks without end, lastly %+v: %+v", d, e)
			return
		}
		e.Now = d.At
		// What was read then is forgotten by now.
		e.Workflow = Workflow{Key: fetched.Key, Exists: fetched.Exists, UID: fetched.UID, Completed: fetched.Completed}
		e.Health.Known = false
	}
}

func checkRuled(t *testing.T, r *rand.Rand) {
	t.Helper()
	p, e := randomRule(r)
	checkDecided(t, p, e)
	checkAsks(t, p, e)
	checkLooks(t, p, e)
}

func TestTheRuleReleasesNothingOnADoubtAndComesToAnEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 50_000 {
		if checkRuled(t, r); t.Failed() {
			return
		}
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), uint64(1))
	f.Fuzz(func(t *testing.T, a, b uint64) { checkRuled(t, rand.New(rand.NewPCG(a, b))) })
}
