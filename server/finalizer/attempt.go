package finalizer

import "time"

// Argo's controller makes a pod before it stores the node. One that dies in
// between stores it when it is back, with a start of that moment, and takes the
// result from the pod that it finds (createWorkflowPod in Argo's
// workflow/controller). So neither an absent node nor one that is younger than the
// pod shows by itself that a newer attempt has taken the pod's place. A retry
// shows: only completed workflows are retried, the condition Completed stays
// behind, startedAt is set anew, and the pods that are given up are deleted between
// that moment and the storing (RetryWorkflow in Argo's server/workflow and
// createNewRetryWorkflow in its workflow/util).

// superseded reports whether the pod is terminating and its stored node is a newer
// attempt's.
func (p Policy) superseded(pod *Pod, wf Workflow) bool {
	node, stored := wf.Nodes[pod.NodeID]
	return wf.Unknown == "" && stored && node.StartedAt.Sub(pod.CreatedAt) > p.ClockTolerance && p.setAside(pod, wf)
}

// restarted reports whether the controller has given up this very pod, which
// failed before it ran, and waits to make it anew (failedPodRestart). Whatever
// becomes of the pod, the controller does not look at it any more.
func restarted(pod *Pod, wf Workflow) bool {
	node, stored := wf.Nodes[pod.NodeID]
	return wf.Unknown == "" && stored && node.Phase == "Pending" && node.RestartingPod != "" && node.RestartingPod == pod.UID
}

// setAside reports whether a terminating pod may be of an earlier run than the
// stored one. Of a workflow that runs without telling since when it counts as
// such: that is not Argo's doing.
func (p Policy) setAside(pod *Pod, wf Workflow) bool {
	if !pod.Terminating() || pod.NodeID == "" {
		return false
	}
	age := wf.StartedAt.Sub(pod.CreatedAt) // of the pod, when the run began
	switch {
	case wf.Completed: // no controller looks at it, unless a retry begins
		return true
	case wf.StartedAt.IsZero():
		return wf.Phase != "" && wf.Phase != "Pending"
	case age > p.ClockTolerance && wf.CompletedOnce && !wf.Resubmitted:
		return true
	}
	return p.deletedByRetry(pod, wf)
}

// deletedByRetry reports whether the pod was there when the workflow was retried,
// as far as clocks tell, and its deletion asked for in the course of that. It is
// the finer proof where setAside's is not enough: for pods that were made within
// the clocks' tolerance of the retry, of which either run may be the maker; for
// workflows that a memoized resubmission gave the condition Completed without a
// retry; and where the nodes cannot be learnt, for which see givenUp.
func (p Policy) deletedByRetry(pod *Pod, wf Workflow) bool {
	if !pod.Terminating() || pod.NodeID == "" || !wf.CompletedOnce || wf.Completed || wf.StartedAt.IsZero() {
		return false
	}
	asked := pod.DeletedAt.Add(-time.Duration(pod.GraceSeconds) * time.Second).Sub(wf.StartedAt)
	return wf.StartedAt.Sub(pod.CreatedAt) >= -p.ClockTolerance && asked >= -p.ClockTolerance && asked <= p.MinAge
}

// givenUp reports whether a pod that has ended was given up by a retry of a
// workflow whose nodes cannot be learnt. A retry deletes the pods of the nodes that
// it removes or resets, and no others; that their names are blocked would hang the
// workflow for good, since it would never complete.
func (p Policy) givenUp(pod *Pod, wf Workflow) bool {
	return wf.Unknown != "" && pod.Status.Terminal() && p.deletedByRetry(pod, wf)
}
