package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// request is what a request to the API server was about.
type request struct {
	verb     string // as in RBAC: get, list, watch, create, patch, delete
	resource string
	pod      finalizer.PodID // empty but for pods
	// namespace and name of the object, where it has them.
	namespace, name string
}

// use is what the right to send it is about. A namespace lies in itself.
func (r request) use() use {
	u := use{verb: r.verb, resource: r.resource, namespace: r.namespace}
	if r.resource == namespacesResource {
		u.namespace = r.name
	}
	return u
}

// classify turns the failure of a request into the one error of this program.
// ctxErr is the state of the caller's context after the request: client-go wraps
// context errors in several ways. An answer of the API server counts more, since
// it tells what became of the write.
func classify(err, ctxErr error, r request) *finalizer.Error {
	e := &finalizer.Error{Pod: r.pod, Verb: r.verb, Resource: r.resource, Err: err}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		e.RetryAfter = retryAfter(&s)
		classifyStatus(e, &s, r)
		return e
	}
	switch {
	case errors.Is(ctxErr, context.DeadlineExceeded):
		e.Kind, e.Message = finalizer.KindDeadline, "the deadline passed before the API server answered"
	case errors.Is(ctxErr, context.Canceled):
		e.Kind, e.Message = finalizer.KindCanceled, "the caller left before the API server answered"
	default:
		// Dial errors, resets, EOF, GOAWAY and our own time limit: whether the
		// request arrived is not known.
		e.Kind, e.Message = finalizer.KindUnavailable, "the API server cannot be reached or did not answer"
	}
	return e
}

func classifyStatus(e *finalizer.Error, s *metav1.Status, r request) {
	if hook := blocker(s.Message); hook != "" {
		e.Kind, e.Webhook = finalizer.KindBlocked, hook
		e.Message = fmt.Sprintf("admission by %q does not let the change through", hook)
		return
	}
	switch {
	case s.Code == http.StatusNotFound:
		classifyNotFound(e, s, r)
	case s.Code == http.StatusConflict:
		// Two layers of the API server check it, each with its own words.
		if strings.Contains(s.Message, "UID in the precondition") || strings.Contains(s.Message, "UID in precondition") {
			replaced(e)
			return
		}
		e.Kind, e.Message = finalizer.KindUnavailable, "the API server gave up after conflicts with other writers"
	case s.Code == http.StatusUnprocessableEntity:
		classifyInvalid(e, s)
	case s.Code == http.StatusForbidden:
		classifyForbidden(e, s, r)
	case s.Code == http.StatusUnauthorized:
		e.Kind = finalizer.KindForbidden
		e.Message = "the API server does not accept the credentials of the service"
	case s.Code == http.StatusTooManyRequests, s.Reason == metav1.StatusReasonTooManyRequests, s.Reason == metav1.StatusReasonServerTimeout:
		e.Kind, e.Message = finalizer.KindThrottled, "the API server throttles the service"
	case s.Code >= 500 || s.Reason == metav1.StatusReasonTimeout || s.Code == http.StatusRequestTimeout:
		e.Kind, e.Message = finalizer.KindUnavailable, "the API server failed to handle the request"
	default:
		e.Kind = finalizer.KindInternal
		e.Message = fmt.Sprintf("the API server does not understand the %s of %s", r.verb, r.resource)
	}
}

func classifyNotFound(e *finalizer.Error, s *metav1.Status, r request) {
	switch {
	case provenAbsent(s, r.resource, r.name), provenAbsent(s, namespacesResource, r.namespace):
		e.Kind, e.Message = finalizer.KindGone, "the object does not exist"
	case r.resource == workflowsResource:
		e.Kind = finalizer.KindUnavailable
		e.Message = "the API server does not serve workflows.argoproj.io/v1alpha1: is the CustomResourceDefinition installed?"
	default:
		e.Kind = finalizer.KindUnavailable
		e.Message = fmt.Sprintf("the address of the API server does not serve %s", r.resource)
	}
}

// provenAbsent tells the NotFound of an object from any other 404. client-go
// makes a NotFound with the requested name out of a bare 404 as well, and marks
// it by the cause.
func provenAbsent(s *metav1.Status, resource, name string) bool {
	if s.Reason != metav1.StatusReasonNotFound || s.Details == nil || name == "" {
		return false
	}
	made := slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeUnexpectedServerResponse
	})
	return !made && s.Details.Kind == resource && s.Details.Name == name
}

func classifyInvalid(e *finalizer.Error, s *metav1.Status) {
	var causes []metav1.StatusCause
	if s.Details != nil {
		causes = s.Details.Causes
	}
	field := ""
	for _, c := range causes {
		switch {
		case c.Field == "metadata.uid":
			replaced(e)
			return
		case c.Field == "metadata.finalizers" && strings.Contains(c.Message, "no new finalizers can be added"):
			e.Kind, e.Message = finalizer.KindTerminating, "no finalizer can be added, the pod is being deleted"
			return
		case field == "":
			field = c.Field
		}
	}
	e.Kind, e.Field = finalizer.KindBlocked, field
	e.Message = "the change was rejected as invalid; something in admission changes the pod on update"
}

// classifyForbidden tells a missing right from admission, which answers 403 too.
func classifyForbidden(e *finalizer.Error, s *metav1.Status, r request) {
	if _, rest, ok := strings.Cut(s.Message, `User "`); ok {
		if _, rest, ok = strings.Cut(rest, `" cannot `); ok {
			verb, _, _ := strings.Cut(rest, " ")
			e.Kind, e.Verb = finalizer.KindForbidden, verb
			if res := between(rest, `resource "`, `"`); res != "" {
				e.Resource = res
			}
			e.Message = fmt.Sprintf("the account of the service may not %s %s", e.Verb, e.Resource)
			return
		}
	}
	if r.verb == verbGet || r.verb == verbList || r.verb == verbWatch {
		// Reads pass no admission: an authorizer that words it otherwise.
		e.Kind = finalizer.KindForbidden
		e.Message = fmt.Sprintf("the account of the service may not %s %s", r.verb, r.resource)
		return
	}
	e.Kind, e.Message = finalizer.KindBlocked, "admission forbids the change"
}

func replaced(e *finalizer.Error) {
	e.Kind, e.Message = finalizer.KindReplaced, "the name belongs to a pod with another UID"
}

// blocker returns the name of the webhook or policy that an answer blames, empty
// if none. It may come with any code.
func blocker(message string) string {
	for _, form := range [...][3]string{
		{`admission webhook "`, `"`, " denied the request"},
		{`failed calling webhook "`, `"`, ""},
		{"ValidatingAdmissionPolicy '", "'", ""},
		{"MutatingAdmissionPolicy '", "'", ""},
	} {
		if name := between(message, form[0], form[1]); name != "" && strings.Contains(message, form[2]) {
			return name
		}
	}
	return ""
}

func between(s, open, end string) string {
	_, rest, ok := strings.Cut(s, open)
	if !ok {
		return ""
	}
	found, _, ok := strings.Cut(rest, end)
	if !ok {
		return ""
	}
	return found
}

func retryAfter(s *metav1.Status) time.Duration {
	if s.Details == nil || s.Details.RetryAfterSeconds <= 0 {
		return 0
	}
	return time.Duration(s.Details.RetryAfterSeconds) * time.Second
}
