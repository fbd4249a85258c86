package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Domain is ErrorInfo.domain of every status of this service.
const Domain = "finalizerd.dev"

// Row is one line of the error table.
type Row struct {
	// Kinds of the core's errors that the row answers. Empty: the condition is
	// found before the core is asked, and raised as a Refusal.
	Kinds  []finalizer.Kind
	Code   codes.Code
	Reason pb.ErrorReason
	// HTTP is the status code over REST.
	HTTP int
	// Retry is RetryInfo's delay where the error itself names none; 0: waiting
	// does not help, and no RetryInfo is sent.
	Retry time.Duration
	// Means is one line for people.
	Means string
}

// ReasonName is Reason as ErrorInfo carries it: without the enum's prefix.
func (r Row) ReasonName() string { return ReasonName(r.Reason) }

// ReasonName strips the enum's prefix.
func ReasonName(r pb.ErrorReason) string {
	return strings.TrimPrefix(r.String(), "ERROR_REASON_")
}

// Table returns the error table, the only place where an error gets its code.
// The README's table is held against it by a test.
func Table() []Row {
	kinds := func(k ...finalizer.Kind) []finalizer.Kind { return k }
	return []Row{
		{kinds(finalizer.KindInvalid), codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT, 400, 0,
			"a field is missing or faulty; BadRequest names the fields"},
		{nil, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE, 413, 0,
			"the request is larger than 4 MiB"},
		{nil, codes.Unimplemented, pb.ErrorReason_ERROR_REASON_UNKNOWN_METHOD, 404, 0,
			"no such method or path; over REST 405 when only the verb is wrong"},
		{nil, codes.Unauthenticated, pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED, 401, 0,
			"no or bad credentials"},
		{nil, codes.PermissionDenied, pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, 403, 0,
			"the caller may not"},
		{kinds(finalizer.KindPodNotFound, finalizer.KindGone), codes.NotFound, pb.ErrorReason_ERROR_REASON_POD_NOT_FOUND, 404, 0,
			"the pod does not exist"},
		{kinds(finalizer.KindReplaced), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_POD_REPLACED, 400, 0,
			"the name belongs to another UID"},
		{kinds(finalizer.KindNotCaptured), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_POD_NOT_CAPTURED, 400, 0,
			"the pod's result is not captured, and force is not set"},
		{kinds(finalizer.KindTerminating), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_POD_TERMINATING, 400, 0,
			"a finalizer cannot be added to a pod that is being deleted"},
		{kinds(finalizer.KindCompleted), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_POD_COMPLETED, 400, 0,
			"the pod is labelled completed"},
		{kinds(finalizer.KindNotWorkflowPod), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NOT_A_WORKFLOW_POD, 400, 0,
			"the pod's controller is not an Argo Workflow"},
		{kinds(finalizer.KindOtherInstance), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_OTHER_INSTANCE, 400, 0,
			"the pod belongs to a controller with another instance id"},
		{kinds(finalizer.KindNotServed), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NAMESPACE_NOT_SERVED, 400, 0,
			"the service was started for other namespaces"},
		{kinds(finalizer.KindBlocked), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_BLOCKED_BY_ADMISSION, 400, 0,
			"admission refuses the write"},
		{kinds(finalizer.KindRequestIDReused), codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED, 400, 0,
			"the request_id was used for a different request"},
		{kinds(finalizer.KindBusy), codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_WORKFLOW_BUSY, 429, time.Second,
			"too many calls wait for the workflow"},
		{kinds(finalizer.KindThrottled), codes.Unavailable, pb.ErrorReason_ERROR_REASON_API_THROTTLED, 503, time.Second,
			"the API server throttles"},
		{kinds(finalizer.KindUnavailable), codes.Unavailable, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, 503, time.Second,
			"the API server cannot be reached or fails"},
		{kinds(finalizer.KindNotSynced), codes.Unavailable, pb.ErrorReason_ERROR_REASON_NOT_SYNCED, 503, time.Second,
			"the caches are not filled yet"},
		{kinds(finalizer.KindNoLeader), codes.Unavailable, pb.ErrorReason_ERROR_REASON_NO_LEADER, 503, time.Second,
			"no replica holds the lease"},
		{nil, codes.Unavailable, pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN, 503, time.Second,
			"the service is stopping"},
		{kinds(finalizer.KindForbidden), codes.Internal, pb.ErrorReason_ERROR_REASON_SERVICE_FORBIDDEN, 500, 0,
			"the service's own account lacks a right; readiness names it"},
		{kinds(finalizer.KindDeadline), codes.DeadlineExceeded, pb.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, 504, 0,
			"the deadline passed before the work was done"},
		{kinds(finalizer.KindCanceled), codes.Canceled, pb.ErrorReason_ERROR_REASON_CANCELLED, 499, 0,
			"the caller left"},
		{kinds(finalizer.KindInternal), codes.Internal, pb.ErrorReason_ERROR_REASON_INTERNAL, 500, 0,
			"a fault of the service; its log has more"},
	}
}

// Refusal is an error that is found before the core is asked: of the transport,
// of authentication, of shutdown. Reason has a row in Table.
type Refusal struct {
	Reason     pb.ErrorReason
	Message    string
	Violations []finalizer.Violation
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// RowOf returns the row of a kind, and that of KindInternal for a kind without
// one.
func RowOf(k finalizer.Kind) Row {
	rows := Table()
	i := slices.IndexFunc(rows, func(r Row) bool { return slices.Contains(r.Kinds, k) })
	if i < 0 {
		return RowOf(finalizer.KindInternal)
	}
	return rows[i]
}

func rowOfReason(reason pb.ErrorReason) Row {
	rows := Table()
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Reason == reason })
	if i < 0 {
		return RowOf(finalizer.KindInternal)
	}
	return rows[i]
}

// StatusOf turns any error into the status that is sent: OK for nil, otherwise
// a code with one ErrorInfo and, by the row, BadRequest and RetryInfo. The cause
// of an error, Unwrap's answer, never becomes part of it; an error of unknown
// type is INTERNAL with a fixed text. A status that carries ErrorInfo already
// passes unchanged.
func StatusOf(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	var fault *finalizer.Error
	var refusal *Refusal
	switch {
	case errors.As(err, &fault):
		return fromFault(fault)
	case errors.As(err, &refusal):
		return build(rowOfReason(refusal.Reason), refusal.Message, refusal.Violations, nil, 0)
	case errors.Is(err, context.DeadlineExceeded):
		return build(RowOf(finalizer.KindDeadline), "the deadline passed before the work was done", nil, nil, 0)
	case errors.Is(err, context.Canceled):
		return build(RowOf(finalizer.KindCanceled), "the caller left", nil, nil, 0)
	}
	if st, ok := status.FromError(err); ok {
		return fromStatus(st)
	}
	return build(RowOf(finalizer.KindInternal), internalText, nil, nil, 0)
}

const internalText = "internal error; the service's log has more"

func fromFault(e *finalizer.Error) *status.Status {
	row := RowOf(e.Kind)
	meta := map[string]string{}
	put := func(key, value string) {
		if value != "" {
			meta[key] = value
		}
	}
	put("namespace", e.Pod.Namespace)
	put("pod", e.Pod.Name)
	put("pod_uid", string(e.Pod.UID))
	if e.Kind == finalizer.KindNotCaptured {
		put("hold_reason", e.Reason.String())
	}
	if e.Kind == finalizer.KindOtherInstance {
		meta["instance_id"] = e.InstanceID // empty: the default instance
	}
	put("field", e.Field)
	put("webhook", e.Webhook)
	put("verb", e.Verb)
	put("resource", e.Resource)
	return build(row, cmp.Or(e.Message, row.Means), e.Violations, meta, e.RetryAfter)
}

// fromStatus gives ErrorInfo to statuses that gRPC or the gateway made
// themselves.
func fromStatus(st *status.Status) *status.Status {
	if Reason(st) != "" || st.Code() == codes.OK {
		return st
	}
	var reason pb.ErrorReason
	switch st.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		reason = pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT
	case codes.Unimplemented, codes.NotFound:
		reason = pb.ErrorReason_ERROR_REASON_UNKNOWN_METHOD
	case codes.ResourceExhausted:
		reason = pb.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE
	case codes.DeadlineExceeded:
		reason = pb.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED
	case codes.Canceled:
		reason = pb.ErrorReason_ERROR_REASON_CANCELLED
	case codes.Unavailable:
		reason = pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN
	case codes.Unauthenticated:
		reason = pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED
	case codes.PermissionDenied:
		reason = pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED
	default:
		return build(RowOf(finalizer.KindInternal), internalText, nil, nil, 0)
	}
	return build(rowOfReason(reason), st.Message(), nil, nil, 0)
}

// Reason returns ErrorInfo.reason of a status, "" when it has none.
func Reason(st *status.Status) string {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// HTTPStatus returns the HTTP status code for a status that StatusOf made.
func HTTPStatus(st *status.Status) int {
	name := Reason(st)
	for _, row := range Table() {
		if row.ReasonName() == name {
			return row.HTTP
		}
	}
	return RowOf(finalizer.KindInternal).HTTP
}

func build(row Row, message string, violations []finalizer.Violation, meta map[string]string, retry time.Duration) *status.Status {
	details := []protoadapt.MessageV1{
		protoadapt.MessageV1Of(&errdetails.ErrorInfo{Reason: row.ReasonName(), Domain: Domain, Metadata: meta}),
	}
	if len(violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range violations {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field:       strings.ToValidUTF8(v.Field, "\uFFFD"),
				Description: strings.ToValidUTF8(v.Description, "\uFFFD"),
			})
		}
		details = append(details, protoadapt.MessageV1Of(bad))
	}
	if row.Retry > 0 {
		details = append(details, protoadapt.MessageV1Of(&errdetails.RetryInfo{
			RetryDelay: durationpb.New(cmp.Or(retry, row.Retry)),
		}))
	}
	plain := status.New(row.Code, strings.ToValidUTF8(message, "\uFFFD"))
	st, err := plain.WithDetails(details...)
	if err != nil {
		return plain // cannot be: the details are valid messages and the code is not OK
	}
	return st
}
