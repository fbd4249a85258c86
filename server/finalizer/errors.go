package finalizer

import (
	"errors"
	"fmt"
	"time"
)

// Kind classifies an Error. Package api maps each to one code and reason.
type Kind int

// The kinds.
const (
	KindInternal Kind = iota // a fault of the service
	KindInvalid              // Violations tells the fields
	KindPodNotFound
	KindGone            // in answers of Writer: the name does not exist
	KindReplaced        // the name has another UID
	KindNotCaptured     // Reason tells why the pod is kept
	KindTerminating     // FIN cannot be added to a terminating pod
	KindCompleted       // FIN is not added to a completed pod
	KindNotWorkflowPod  // the controller owner is not a Workflow
	KindOtherInstance   // InstanceID tells whose
	KindBusy            // too many waiters in the lane; RetryAfter
	KindThrottled       // the API server throttles, RetryAfter if it told; or a background write had no turn in time
	KindUnavailable     // the API server cannot be reached or fails
	KindNotSynced       // caches are not filled
	KindNoLeader        // no replica holds the lease
	KindBlocked         // admission; Field and Webhook where known
	KindForbidden       // the service's account lacks Verb on Resource
	KindRequestIDReused // the id was used for another request
	KindDeadline        // the deadline passed
	KindCanceled        // the caller left
	KindNotServed       // the namespace is outside of --namespaces
)

// Violation is one faulty field of a request.
type Violation struct {
	Field       string // as in the proto, e.g. "pods[3].uid"
	Description string
}

// Error is the only error type that leaves this package and package kube.
type Error struct {
	Kind       Kind
	Message    string // a sentence for people, without the cause's text
	Pod        PodID  // the pod it speaks of, if any
	Reason     Reason // with KindNotCaptured
	Violations []Violation
	InstanceID string
	Field      string
	Webhook    string
	Verb       string
	Resource   string
	RetryAfter time.Duration
	Err        error // the cause, for the log; may be nil
}

// Error returns the message with its cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return fmt.Sprintf("%s: %v", e.Message, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first *Error in the chain, and KindInternal
// for any other error.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}

// Retriable reports whether the same write may succeed a little later by
// itself.
func (k Kind) Retriable() bool { return k == KindThrottled || k == KindUnavailable }
