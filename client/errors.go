package client

import (
	"time"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errorDomain is ErrorInfo.domain of every error that the service itself
// raises.
const errorDomain = "finalizerd.dev"

// Violation is one faulty field of a request.
type Violation struct {
	Field       string // as in the proto, for example "pods[3].uid"
	Description string
}

// Reason returns why the service refused or failed a call, through any wrapping
// of err. It is ERROR_REASON_UNSPECIFIED for nil, for errors that did not come
// from the service (no connection, a local deadline, a proxy), and for reasons
// that this version of the client does not know: decide those by status.Code.
func Reason(err error) finalizerv1.ErrorReason {
	if info, ok := detail[*errdetails.ErrorInfo](err); ok && info.GetDomain() == errorDomain {
		return finalizerv1.ErrorReason(finalizerv1.ErrorReason_value["ERROR_REASON_"+info.GetReason()])
	}
	return finalizerv1.ErrorReason_ERROR_REASON_UNSPECIFIED
}

// RetryAfter returns how long the service asks to wait before the next attempt,
// and false when it says nothing. It is never negative.
func RetryAfter(err error) (time.Duration, bool) {
	info, ok := detail[*errdetails.RetryInfo](err)
	if !ok || info.GetRetryDelay() == nil {
		return 0, false
	}
	return max(info.GetRetryDelay().AsDuration(), 0), true
}

// Violations returns the fields that made a request INVALID_ARGUMENT, in the
// service's order, and nil for any other error.
func Violations(err error) []Violation {
	request, ok := detail[*errdetails.BadRequest](err)
	if !ok {
		return nil
	}
	var all []Violation
	for _, v := range request.GetFieldViolations() {
		all = append(all, Violation{Field: v.GetField(), Description: v.GetDescription()})
	}
	return all
}

// IsRetriable reports whether the same call may be repeated as it is after a
// wait: with UNAVAILABLE, and with WORKFLOW_BUSY, which is refused before
// anything is written. DEADLINE_EXCEEDED is not among them: nobody knows whether
// the call was carried out, and a caller that repeats it decides so itself.
func IsRetriable(err error) bool {
	return status.Code(err) == codes.Unavailable ||
		Reason(err) == finalizerv1.ErrorReason_ERROR_REASON_WORKFLOW_BUSY
}

// detail returns the first detail of type T in the status that err is or wraps.
func detail[T any](err error) (T, bool) {
	for _, d := range status.Convert(err).Details() {
		if t, ok := d.(T); ok {
			return t, true
		}
	}
	var none T
	return none, false
}
