package finalizer

import "time"

// Action is what the rule wants done with a pod that nobody asked about.
type Action int

// The actions.
const (
	ActionKeep Action = iota
	// ActionRelease takes FIN off.
	ActionRelease
	// ActionUnhide takes a premature completed label back, and puts FIN on again
	// unless the pod is terminating.
	ActionUnhide
)

// Need is what the rule lacks to decide; the answer it gives without is Keep.
type Need int

// The needs, each a live read.
const (
	NeedNothing Need = iota
	// NeedGlance: a read of the workflow, at leisure. Nothing about the pod says
	// that it waits.
	NeedGlance
	// NeedWorkflow: a read of the workflow that begins from now on.
	NeedWorkflow
	// NeedStatus: the pod's status.
	NeedStatus
	// NeedHealth: the health of the pod's cluster node.
	NeedHealth
)

// nodePoll is how often the cluster node of a terminating pod is looked at: its
// health gives no event.
const nodePoll = time.Minute

// Decision is the answer of Decide.
type Decision struct {
	Action Action
	Reason Reason // ReasonNone: the pod is none of the service's business
	// MarkCompleted: the release also sets the label completed=true.
	MarkCompleted bool
	// Since is when the reason came to hold, as far as the objects tell. Zero:
	// they do not.
	Since time.Time
	// At, with Keep, is when to look again although nothing has changed. Zero:
	// only a change can matter.
	At time.Time
	// ReleaseAt, with Keep, is when the pod is released if nothing changes; never
	// before At. Zero: no time is known.
	ReleaseAt time.Time
	Need      Need
}

func releaseFor(r Reason) Decision { return Decision{Action: ActionRelease, Reason: r} }

func keepFor(r Reason, need Need) Decision { return Decision{Reason: r, Need: need} }

// Decide is the reconciler's rule for one pod: section 6 of the design, row by
// row. It is pure, and level-triggered: it rests on no event. What it does not
// know it asks for in Need, one thing at a time, and it never releases on a
// doubt. A pod that neither carries FIN nor is labelled completed, and one that
// a controller of another kind owns, is kept without more.
func (p Policy) Decide(e Evidence) Decision {
	pod := &e.Pod
	held := pod.Has(p.Finalizer)
	switch {
	case !held && !pod.Completed:
		return Decision{}
	case pod.InstanceID != p.InstanceID:
		return keepFor(ReasonOtherInstance, NeedNothing)
	case !pod.Owner.IsWorkflow() && !pod.Owner.None():
		return keepFor(ReasonUnowned, NeedNothing)
	case !held:
		return p.decideLabelled(e)
	}
	d := p.decideHeld(e)
	if d.Action == ActionRelease {
		return d
	}
	return p.boundHold(pod, d, e.Now)
}

// decideHeld is Decide for a pod with FIN, but for max-hold.
func (p Policy) decideHeld(e Evidence) Decision {
	pod, wf := &e.Pod, e.Workflow
	switch {
	case wf.NamespaceTerminating:
		return releaseFor(ReasonNamespaceTerminating)
	case pod.Owner.None() && p.ReleaseUnowned:
		return releaseFor(ReasonUnowned)
	case pod.Owner.None():
		return keepFor(ReasonUnowned, NeedNothing)
	case wf.Exists && wf.UID == pod.Owner.UID && wf.Deleting:
		return releaseFor(ReasonWorkflowDeleting)
	case e.Remembered && pod.Terminating():
		return releaseFor(ReasonCaptured)
	case wf.ReadAt.IsZero():
		return p.askForWorkflow(e)
	case !wf.Exists || wf.UID != pod.Owner.UID:
		return p.decideOrphan(e)
	case pod.Completed && (wf.Completed || e.Remembered || p.Captured(pod, wf)):
		return releaseFor(ReasonCompleted)
	case pod.Terminating():
		return p.decideTerminating(e)
	}
	return p.decideQuiet(e)
}

// askForWorkflow says how urgent a live read is, by what the watch tells.
func (p Policy) askForWorkflow(e Evidence) Decision {
	pod, wf := &e.Pod, e.Workflow
	d := p.uncaptured(e)
	present := wf.Exists && wf.UID == pod.Owner.UID
	switch {
	case pod.Terminating() || pod.Completed || present && wf.Completed:
		d.Need = NeedWorkflow
	case present:
		d.Need = NeedGlance
	case e.Now.Before(pod.CreatedAt.Add(p.MinAge)):
		// The watch of workflows may be behind that of pods (B37).
		d.At = pod.CreatedAt.Add(p.MinAge)
	default:
		d.Need = NeedWorkflow
	}
	return d
}

func (p Policy) decideOrphan(e Evidence) Decision {
	pod := &e.Pod
	if ripe := pod.CreatedAt.Add(p.MinAge); e.Now.Before(ripe) {
		if pod.Terminating() {
			if pod.Status == nil {
				return Decision{Reason: ReasonOrphaned, Need: NeedStatus, At: ripe, ReleaseAt: ripe}
			}
			if neverStarted(pod) {
				return releaseFor(ReasonNeverStarted)
			}
		}
		return Decision{Reason: ReasonOrphaned, At: ripe, ReleaseAt: ripe}
	}
	return releaseFor(ReasonOrphaned)
}

// neverStarted reports whether no container of the pod ever ran. A pod that was
// never bound cannot have run whatever its phase: pod GC marks unscheduled
// terminating pods Failed (gcUnscheduledTerminating in Kubernetes'
// pkg/controller/podgc).
func neverStarted(pod *Pod) bool {
	s := pod.Status
	return s != nil && !s.Started && (s.Phase == "Pending" || s.Phase == "Failed" && s.NodeName == "")
}

// decideTerminating decides on a pod that has a deletionTimestamp, and whose
// workflow is there.
func (p Policy) decideTerminating(e Evidence) Decision {
	pod, wf := &e.Pod, e.Workflow
	d := p.uncaptured(e)
	_, stored := wf.Nodes[pod.NodeID]
	switch ripe := pod.CreatedAt.Add(p.MinAge); {
	case p.Captured(pod, wf):
		return Decision{Action: ActionRelease, Reason: ReasonCaptured, Since: p.capturedAt(pod, wf)}
	case restarted(pod, wf), p.superseded(pod, wf):
		return releaseFor(ReasonAttemptSuperseded)
	case wf.Unknown != "" || stored || !p.setAside(pod, wf):
	case !wf.ReadAt.Before(ripe):
		return releaseFor(ReasonNodeRemoved)
	case e.Now.Before(ripe):
		d.At = ripe
	default:
		// The read is from before the pod was old enough to have its node
		// stored: its absence there proves nothing yet.
		d.Need = NeedWorkflow
	}
	if pod.Status == nil {
		if d.Need == NeedNothing {
			d.Need = NeedStatus
		}
		return d
	}
	switch {
	case neverStarted(pod):
		return releaseFor(ReasonNeverStarted)
	case d.Need != NeedNothing:
		return d
	case p.givenUp(pod, wf):
		return releaseFor(ReasonAttemptSuperseded)
	case pod.Status.Terminal():
		if wf.Completed {
			return p.straggler(e, d)
		}
	default:
		lost := p.decideLost(e, d)
		if lost.Action != ActionKeep || lost.Need != NeedNothing {
			return lost
		}
		d = lost
	}
	return p.decideHidden(e, d)
}

// decideLost looks at the cluster node of a terminating pod that has not ended.
// During the grace period the kubelet has its turn. Whoever cannot learn the
// health says Ready: a doubt is no loss.
func (p Policy) decideLost(e Evidence, d Decision) Decision {
	pod, h := &e.Pod, e.Health
	switch {
	case pod.Status.NodeName == "":
	case e.Now.Before(pod.DeletedAt):
		d.At = earlier(d.At, pod.DeletedAt)
	case !h.Known:
		d.Need = NeedHealth
	case h.Gone:
		return releaseFor(ReasonNodeLost)
	case h.Ready || h.Since.IsZero(): // nobody knows for how long it is not
		d.At = earlier(d.At, e.Now.Add(nodePoll))
	case e.Now.Before(h.Since.Add(p.NodeLost)):
		lost := h.Since.Add(p.NodeLost)
		d = Decision{Reason: ReasonNodeLost, Since: h.Since, At: earlier(d.At, lost), ReleaseAt: lost}
	default:
		return Decision{Action: ActionRelease, Reason: ReasonNodeLost, Since: h.Since}
	}
	return d
}

// decideQuiet decides on a held pod that nobody deletes.
func (p Policy) decideQuiet(e Evidence) Decision {
	pod, wf := &e.Pod, e.Workflow
	if e.Remembered || p.Captured(pod, wf) {
		since := p.capturedAt(pod, wf)
		// The label must go with it, however young the pod: without FIN it is
		// never looked at again (B36).
		d := Decision{Action: ActionRelease, Reason: ReasonCaptured, Since: since, MarkCompleted: wf.Completed && mayLabel(pod)}
		if due := since.Add(p.CaptureGrace); !since.IsZero() && e.Now.Before(due) {
			d.Action, d.MarkCompleted, d.At, d.ReleaseAt = ActionKeep, false, due, due
		}
		return d
	}
	if restarted(pod, wf) {
		return releaseFor(ReasonAttemptSuperseded)
	}
	d := p.uncaptured(e)
	if !wf.Completed {
		return p.decideHidden(e, d)
	}
	switch {
	case pod.Status == nil && e.Now.Before(pod.CreatedAt.Add(p.MinAge)):
		d.At = pod.CreatedAt.Add(p.MinAge)
	case pod.Status == nil:
		d.Need = NeedStatus
	case pod.Status.Terminal():
		return p.straggler(e, d)
	}
	return d
}

// mayLabel reports whether a release may label the pod completed. The label takes
// it out of its controller's sight, and so what podGC is to delete would stay for
// ever.
func mayLabel(pod *Pod) bool { return !pod.Completed && !pod.Collected() }

// mayBeTaken reports whether a retry of a completed workflow would take the result
// of its pod, so that no label may hide it: a workflow that ended in phase Error
// may have left nodes as they were, for instance while their storage was away, and
// a retry leaves them so.
func mayBeTaken(e Evidence) bool {
	_, stored := e.Workflow.Nodes[e.Pod.NodeID]
	return e.Workflow.Phase == "Error" && (stored || e.Workflow.Unknown != "")
}

// straggler is for a pod that has ended and whose workflow has completed. A node
// status that cannot be read does not matter any more then: until a retry the
// controller looks at no pod of a completed workflow.
func (p Policy) straggler(e Evidence, kept Decision) Decision {
	ripe := e.Pod.CreatedAt.Add(p.MinAge)
	if e.Now.Before(ripe) {
		kept.Reason, kept.At, kept.ReleaseAt = ReasonWorkflowCompleted, ripe, ripe
		return kept
	}
	return Decision{Action: ActionRelease, Reason: ReasonWorkflowCompleted, MarkCompleted: mayLabel(&e.Pod) && !mayBeTaken(e)}
}

// decideLabelled decides on a pod that is labelled completed and not held: it
// matters only if the label hides it.
func (p Policy) decideLabelled(e Evidence) Decision {
	pod, wf := &e.Pod, e.Workflow
	switch {
	case pod.Owner.None() || e.Remembered || wf.NamespaceTerminating:
		return Decision{}
	case wf.ReadAt.IsZero() && (!wf.Exists || wf.UID != pod.Owner.UID || wf.Completed || wf.Deleting):
		return Decision{} // no controller waits for it
	case e.Now.Before(e.hiddenSince().Add(p.HiddenAfter)):
		// By then the controller has mostly stored the result, and one read
		// answers for all that it labelled meanwhile.
		return Decision{At: e.hiddenSince().Add(p.HiddenAfter)}
	case wf.ReadAt.IsZero():
		// Every finished pod of a running workflow comes by here: at leisure.
		return Decision{Need: NeedGlance}
	}
	return p.decideHidden(e, Decision{})
}

// decideHidden undoes a completed label on a pod whose node waits for it: the
// controller watches no pod that is labelled so, and the Workflow hangs
// (argo-workflows 12105). A node that is not stored yet, and one of another
// attempt, do not wait for this pod.
func (p Policy) decideHidden(e Evidence, d Decision) Decision {
	pod, wf := &e.Pod, e.Workflow
	node, stored := wf.Nodes[pod.NodeID]
	switch {
	case !pod.Completed || wf.Completed || wf.Deleting || !wf.Exists || wf.UID != pod.Owner.UID:
		return d
	case wf.Unknown != "" || pod.NodeID == "" || !stored || p.Captured(pod, wf):
		return d
	case node.Captured() && p.olderAttempt(pod, node), p.superseded(pod, wf), restarted(pod, wf):
		return d
	}
	since := e.hiddenSince()
	switch due := since.Add(p.HiddenAfter); {
	case e.Now.Before(due):
		return Decision{Reason: ReasonHidden, Since: since, At: due}
	case wf.ReadAt.Before(due):
		// The controller may have stored the result since that read.
		return Decision{Reason: ReasonHidden, Since: since, Need: NeedWorkflow}
	}
	return Decision{Action: ActionUnhide, Reason: ReasonHidden, Since: since}
}

func (e *Evidence) hiddenSince() time.Time {
	if e.HiddenSince.IsZero() {
		return e.Now
	}
	return e.HiddenSince
}

// boundHold applies max-hold, which needs no more than the pod itself.
func (p Policy) boundHold(pod *Pod, d Decision, now time.Time) Decision {
	if p.MaxHold <= 0 || !pod.Terminating() || d.Need > NeedGlance {
		return d // what may still be learnt may spare the force
	}
	end := pod.DeletedAt.Add(p.MaxHold)
	if !now.Before(end) {
		return Decision{Action: ActionRelease, Reason: ReasonMaxHold, Since: pod.DeletedAt}
	}
	if d.Action == ActionKeep {
		d.At, d.ReleaseAt = earlier(d.At, end), earlier(d.ReleaseAt, end)
	}
	return d
}

// uncaptured is the answer when nothing gives leave.
func (p Policy) uncaptured(e Evidence) Decision {
	d := Decision{Reason: ReasonNotCaptured, Since: e.Pod.CreatedAt}
	if e.Workflow.Unknown != "" {
		d.Reason = ReasonCaptureUnknown
	}
	if e.Pod.Terminating() {
		d.Since = e.Pod.DeletedAt.Add(-time.Duration(e.Pod.GraceSeconds) * time.Second)
	}
	return d
}

// capturedAt is when the last of the pod's nodes finished. Zero: the nodes do not
// tell, or tell of the future by more than clocks may differ. Never when they were
// read: with each new read the grace would begin anew.
func (p Policy) capturedAt(pod *Pod, wf Workflow) time.Time {
	if !p.Captured(pod, wf) {
		return time.Time{}
	}
	last := wf.Nodes[pod.NodeID].FinishedAt
	for _, id := range wf.containers[pod.NodeID] {
		if at := wf.Nodes[id].FinishedAt; at.After(last) {
			last = at
		}
	}
	if last.After(wf.ReadAt.Add(p.ClockTolerance)) {
		return time.Time{}
	}
	return last
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
