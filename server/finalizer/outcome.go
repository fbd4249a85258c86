package finalizer

// Outcome is what became of one pod. The values mirror the proto's.
type Outcome int

// The outcomes.
const (
	OutcomeUnknown Outcome = iota
	OutcomeAdded
	OutcomeAlreadyHeld
	OutcomeReleased
	OutcomeAlreadyReleased
	OutcomeGone
	OutcomeDeleted
	OutcomeDeleting
	OutcomeHeldByForeign
	OutcomeBlocked
	OutcomeSuperseded
	OutcomeNotCaptured
	OutcomeNotFound
	OutcomeFailed
)

// Result is the outcome for one pod.
type Result struct {
	Pod     PodID
	NodeID  string
	Outcome Outcome
	Reason  Reason
	Foreign []string // finalizers of others left on the pod
	// Err is set with OutcomeFailed, OutcomeBlocked and OutcomeNotCaptured.
	Err     *Error
	Message string
}
