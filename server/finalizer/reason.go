package finalizer

// Reason says why a pod is releasable, or why it is kept. The values mirror the
// proto's HoldReason.
type Reason int

// The reasons. ReasonNone: unknown without a read, or nothing to say.
const (
	ReasonNone Reason = iota
	ReasonNotCaptured
	ReasonCaptureUnknown
	ReasonCaptured
	ReasonAsserted
	ReasonNeverStarted
	ReasonOrphaned
	ReasonWorkflowDeleting
	ReasonNamespaceTerminating
	ReasonNodeRemoved
	ReasonAttemptSuperseded
	ReasonWorkflowCompleted
	ReasonForced
	ReasonUnowned
	ReasonCompleted
	ReasonHidden
	ReasonNodeLost
	ReasonMaxHold
	ReasonOtherInstance
	reasonEnd // one past the last
)

// Reasons returns every reason but ReasonNone, in the order of their numbers.
func Reasons() []Reason {
	all := make([]Reason, 0, reasonEnd-1)
	for r := ReasonNone + 1; r < reasonEnd; r++ {
		all = append(all, r)
	}
	return all
}

// String is the reason as the API spells it, without the enum's prefix.
func (r Reason) String() string { return r.words().name }

// sentence describes the reason, and for a kept pod what would release it.
func (r Reason) sentence() string { return r.words().sentence }

type words struct{ name, sentence string }

func (r Reason) words() words {
	switch r {
	case ReasonNotCaptured:
		return words{"NOT_CAPTURED", "the result is not in the stored Workflow; the pod is released once it is"}
	case ReasonCaptureUnknown:
		return words{"CAPTURE_UNKNOWN", "the node status of the Workflow cannot be learnt; assert the capture with the pod's UID, or force"}
	case ReasonCaptured:
		return words{"CAPTURED", "the result is in the stored Workflow"}
	case ReasonAsserted:
		return words{"ASSERTED", "the caller asserted that the result is stored"}
	case ReasonNeverStarted:
		return words{"NEVER_STARTED", "no container of the pod ever ran"}
	case ReasonOrphaned:
		return words{"ORPHANED", "the owning Workflow is gone"}
	case ReasonWorkflowDeleting:
		return words{"WORKFLOW_DELETING", "the owning Workflow is being deleted"}
	case ReasonNamespaceTerminating:
		return words{"NAMESPACE_TERMINATING", "the namespace is being deleted"}
	case ReasonNodeRemoved:
		return words{"NODE_REMOVED", "a retry removed the pod's node from the stored Workflow"}
	case ReasonAttemptSuperseded:
		return words{"ATTEMPT_SUPERSEDED", "the pod's node belongs to a newer attempt"}
	case ReasonWorkflowCompleted:
		return words{"WORKFLOW_COMPLETED", "the pod has finished and its Workflow has completed"}
	case ReasonForced:
		return words{"FORCED", "the caller forced it"}
	}
	return r.moreWords()
}

func (r Reason) moreWords() words {
	switch r {
	case ReasonUnowned:
		return words{"UNOWNED", "the pod has no Workflow as its controller; release it with force, or run with --unowned=release"}
	case ReasonCompleted:
		return words{"COMPLETED", "the pod is labelled completed, and its result is stored or its Workflow has completed"}
	case ReasonHidden:
		return words{"HIDDEN", "the pod is labelled completed before its result is stored, so its controller cannot see it; the label is taken back"}
	case ReasonNodeLost:
		return words{"NODE_LOST", "the pod is terminating on a cluster node that is gone or not ready"}
	case ReasonMaxHold:
		return words{"MAX_HOLD", "the pod was held longer than --max-hold after its deletion"}
	case ReasonOtherInstance:
		return words{"OTHER_INSTANCE", "the pod belongs to a controller with another instance id"}
	}
	return words{"UNSPECIFIED", ""}
}
