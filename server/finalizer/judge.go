package finalizer

import (
	"fmt"
	"time"
)

// Policy holds the thresholds of the decisions. Zero values are taken as they
// are; DefaultPolicy has what DESIGN asks for.
type Policy struct {
	// Finalizer is FIN.
	Finalizer string
	// InstanceID must equal the pod's label exactly; empty: the label is absent.
	InstanceID string
	// MinAge protects what is so new that the stored Workflow may not tell of it
	// yet.
	MinAge time.Duration
	// ClockTolerance bounds the difference between the clocks of API server,
	// controller and nodes when attempts are told apart by time.
	ClockTolerance time.Duration
	// CaptureGrace is how long after its capture a pod that nobody deletes is
	// left to its controller, which releases and labels it in one write.
	CaptureGrace time.Duration
	// HiddenAfter is how long a pod may be labelled completed before its node is
	// captured.
	HiddenAfter time.Duration
	// NodeLost is how long the cluster node of a terminating pod may be NotReady
	// before the pod is taken for lost.
	NodeLost time.Duration
	// MaxHold bounds the hold of a terminating pod, from its deletionTimestamp.
	// 0: there is no bound; holding is the promise.
	MaxHold time.Duration
	// ReleaseUnowned releases pods that have no controller owner.
	ReleaseUnowned bool
}

// DefaultPolicy is the policy of the default instance.
func DefaultPolicy() Policy {
	return Policy{
		Finalizer:      DefaultFinalizer,
		MinAge:         30 * time.Second,
		ClockTolerance: 5 * time.Second,
		CaptureGrace:   10 * time.Second,
		HiddenAfter:    15 * time.Second,
		NodeLost:       5 * time.Minute,
	}
}

// Verdict is the answer of Judge.
type Verdict struct {
	Releasable bool
	Reason     Reason
	// NeedsStatus: the pod is known from metadata only, and its status could
	// turn this refusal into a release.
	NeedsStatus bool
}

// Evidence is what Judge and Decide rest on. Workflow is a live read that began
// after the pod's UID was known: an older one may show the node of an earlier
// attempt as captured (argo-workflows 8022).
type Evidence struct {
	Pod      Pod
	Workflow Workflow
	// Remembered: an earlier read showed this very UID captured. It holds for
	// good, whatever a retry does to the node since.
	Remembered bool
	// Deleting: the caller asks for the deletion of this UID.
	Deleting bool
	// Health is that of the cluster node that the pod is bound to.
	Health NodeHealth
	// HiddenSince is when the pod was first found labelled completed before its
	// capture. Zero: it is found so now.
	HiddenSince time.Time
	Now         time.Time
}

// Judge decides whether a pod may be released without force. It is pure. A pod
// whose owner is not a Workflow is never releasable.
//
// A pod that never started is releasable only when it is, or is about to be,
// terminating: a late clean-up that was meant for its predecessor must not
// release, much less label, a successor that still waits for its node
// (argo-workflows 12105).
func (p Policy) Judge(e Evidence) Verdict {
	if !e.Pod.Owner.IsWorkflow() {
		return Verdict{Reason: ReasonUnowned}
	}
	wf := e.Workflow
	switch {
	case wf.NamespaceTerminating:
		return release(ReasonNamespaceTerminating)
	case !wf.Exists || wf.UID != e.Pod.Owner.UID:
		return release(ReasonOrphaned)
	case wf.Deleting:
		return release(ReasonWorkflowDeleting)
	case e.Remembered:
		return release(ReasonCaptured)
	case e.Pod.Completed && wf.Completed:
		return release(ReasonCompleted)
	}
	if reason := p.judgeNode(e); reason != ReasonNone {
		return release(reason)
	}
	return p.judgeStatus(e)
}

func release(r Reason) Verdict { return Verdict{Releasable: true, Reason: r} }

// judgeNode decides by the pod's node in the stored Workflow. ReasonNone: the
// node gives no leave.
func (p Policy) judgeNode(e Evidence) Reason {
	pod, wf := &e.Pod, e.Workflow
	switch {
	case wf.Unknown != "":
		return ReasonNone
	case p.Captured(pod, wf):
		return ReasonCaptured
	case restarted(pod, wf), p.superseded(pod, wf):
		return ReasonAttemptSuperseded
	}
	if _, stored := wf.Nodes[pod.NodeID]; stored || !p.setAside(pod, wf) || e.Now.Sub(pod.CreatedAt) <= p.MinAge {
		return ReasonNone
	}
	return ReasonNodeRemoved
}

// Captured reports whether the stored Workflow has the result of every node
// that the pod serves: its own, and the containers of a container set. A node
// that finished before the pod was created is an earlier attempt's and proves
// nothing of this pod. An unknown node status is not captured. A container that is
// stored as Pending although its pod's node has failed will never be anything else:
// the pod failed before its containers had a status.
func (p Policy) Captured(pod *Pod, wf Workflow) bool {
	if wf.Unknown != "" || !wf.Exists || wf.UID != pod.Owner.UID || pod.NodeID == "" {
		return false
	}
	node, ok := wf.Nodes[pod.NodeID]
	if !ok || !node.Captured() || p.olderAttempt(pod, node) {
		return false
	}
	failed := node.Phase == "Failed" || node.Phase == "Error"
	for _, id := range wf.containers[pod.NodeID] {
		if child := wf.Nodes[id]; !child.Captured() && !(failed && child.Phase == "Pending") {
			return false
		}
	}
	return true
}

// olderAttempt reports whether the node finished before the pod was created.
func (p Policy) olderAttempt(pod *Pod, node Node) bool {
	return !node.FinishedAt.IsZero() && pod.CreatedAt.Sub(node.FinishedAt) > p.ClockTolerance
}

// judgeStatus decides by the status of the pod itself.
func (p Policy) judgeStatus(e Evidence) Verdict {
	pod, wf := &e.Pod, e.Workflow
	kept := Verdict{Reason: ReasonNotCaptured}
	if wf.Unknown != "" {
		kept.Reason = ReasonCaptureUnknown
	}
	going := pod.Terminating() || e.Deleting
	ended := wf.Completed && e.Now.Sub(pod.CreatedAt) > p.MinAge
	switch {
	case pod.Status == nil:
		kept.NeedsStatus = going || ended
	case going && neverStarted(pod):
		return release(ReasonNeverStarted)
	case p.givenUp(pod, wf):
		return release(ReasonAttemptSuperseded)
	case ended && pod.Status.Terminal():
		return release(ReasonWorkflowCompleted)
	case ended && neverStarted(pod):
		// No successor waits for its node any more.
		return release(ReasonNeverStarted)
	}
	return kept
}

// Explain says in one sentence why the pod is held or releasable, and what would
// release it.
func (p Policy) Explain(pod *Pod, wf Workflow, v Verdict) string {
	switch v.Reason {
	case ReasonNotCaptured:
		node, ok := wf.Nodes[pod.NodeID]
		if !ok {
			return fmt.Sprintf("node %q is not in the stored Workflow; the pod is released once its result is stored there", pod.NodeID)
		}
		return fmt.Sprintf("node %q is stored as %s; the pod is released once its result is stored", pod.NodeID, node.Phase)
	case ReasonCaptureUnknown:
		return "the node status of the Workflow cannot be learnt (" + wf.Unknown + "); assert the capture with the pod's UID, or force"
	case ReasonUnowned:
		return "the pod's controller is not an Argo Workflow"
	}
	return v.Reason.sentence()
}
