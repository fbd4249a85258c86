package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func status(code int32, reason metav1.StatusReason, message string, details *metav1.StatusDetails) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: "Failure", Code: code, Reason: reason, Message: message, Details: details}}
}

func invalid(causes ...metav1.StatusCause) error {
	return status(422, metav1.StatusReasonInvalid, `Pod "p" is invalid`, &metav1.StatusDetails{Name: "p", Kind: "Pod", Causes: causes})
}

func notFound(kind, name string) error {
	return status(404, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", kind, name), &metav1.StatusDetails{Kind: kind, Name: name})
}

func bare404(resource, name string) error {
	return apierrors.NewGenericServerResponse(404, "PATCH", schema.GroupResource{Resource: resource}, name, "404 page not found", 0, true)
}

func TestClassify(t *testing.T) {
	pod := finalizer.PodID{Namespace: "ns", Name: "p", UID: "u"}
	patch := request{verb: verbPatch, resource: podsResource, namespace: "ns", name: "p", pod: pod}
	remove := patch
	remove.verb = verbDelete
	get := request{verb: verbGet, resource: workflowsResource, namespace: "ns", name: "w"}
	type want struct {
		Kind                           finalizer.Kind
		Field, Webhook, Verb, Resource string
		RetryAfter                     time.Duration
	}
	is := func(k finalizer.Kind) want { return want{Kind: k, Verb: verbPatch, Resource: podsResource} }
	blocked := func(field, hook string) want {
		return want{Kind: finalizer.KindBlocked, Field: field, Webhook: hook, Verb: verbPatch, Resource: podsResource}
	}
	later := func(k finalizer.Kind, s int) want {
		w := is(k)
		w.RetryAfter = time.Duration(s) * time.Second
		return w
	}
	uid := metav1.StatusCause{Type: "FieldValueInvalid", Field: "metadata.uid", Message: "field is immutable"}
	cases := map[string]struct {
		err    error
		ctxErr error
		about  request
		want   want
	}{
		"B4: the pod is gone":                        {err: notFound("pods", "p"), about: patch, want: is(finalizer.KindGone)},
		"its namespace is gone":                      {err: notFound("namespaces", "ns"), about: patch, want: is(finalizer.KindGone)},
		"B6: a NotFound of something else":           {err: notFound("pods", "q"), about: patch, want: is(finalizer.KindUnavailable)},
		"B6: a 404 of a proxy":                       {err: bare404("pods", "p"), about: patch, want: is(finalizer.KindUnavailable)},
		"B34: the workflow kind is not installed":    {err: bare404("workflows", "w"), about: get, want: want{Kind: finalizer.KindUnavailable, Verb: verbGet, Resource: workflowsResource}},
		"the workflow is gone":                       {err: notFound("workflows", "w"), about: get, want: want{Kind: finalizer.KindGone, Verb: verbGet, Resource: workflowsResource}},
		"B1: a patch of another UID":                 {err: invalid(uid), about: patch, want: is(finalizer.KindReplaced)},
		"B1: beside faults that a defaulter added":   {err: invalid(metav1.StatusCause{Field: "spec"}, uid), about: patch, want: is(finalizer.KindReplaced)},
		"B1: a delete of another UID":                {err: status(409, metav1.StatusReasonConflict, `Operation cannot be fulfilled on Pod "a": the UID in the precondition (u) does not match the UID in record (v). The object might have been deleted and then recreated`, nil), about: remove, want: want{Kind: finalizer.KindReplaced, Verb: verbDelete, Resource: podsResource}},
		"B1: the same from the storage":              {err: status(409, metav1.StatusReasonConflict, "Operation cannot be fulfilled on pods \"a\": Precondition failed: UID in precondition: u, UID in object meta: v", nil), about: remove, want: want{Kind: finalizer.KindReplaced, Verb: verbDelete, Resource: podsResource}},
		"a conflict that the API server gave up on":  {err: status(409, metav1.StatusReasonConflict, "the object has been modified; please apply your changes to the latest version", nil), about: patch, want: is(finalizer.KindUnavailable)},
		"a delete that conflicts is not superseded":  {err: status(409, metav1.StatusReasonConflict, "the object has been modified", nil), about: remove, want: want{Kind: finalizer.KindUnavailable, Verb: verbDelete, Resource: podsResource}},
		"B5: an add to a terminating pod":            {err: invalid(metav1.StatusCause{Field: "metadata.finalizers", Message: "Forbidden: no new finalizers can be added if the object is being deleted"}), about: patch, want: is(finalizer.KindTerminating)},
		"B13: a webhook changed the spec":            {err: invalid(metav1.StatusCause{Field: "spec", Message: "Forbidden: pod updates may not change fields other than"}), about: patch, want: blocked("spec", "")},
		"B13: finalizers of another sort of fault":   {err: invalid(metav1.StatusCause{Field: "metadata.finalizers", Message: "name is invalid"}), about: patch, want: blocked("metadata.finalizers", "")},
		"B13: an invalid without causes":             {err: status(422, metav1.StatusReasonInvalid, "no", nil), about: patch, want: blocked("", "")},
		"B13: a webhook denies with 403":             {err: status(403, metav1.StatusReasonForbidden, `admission webhook "deny.example.com" denied the request: no`, nil), about: patch, want: blocked("", "deny.example.com")},
		"B13: a webhook denies with 400":             {err: status(400, "", `admission webhook "deny.example.com" denied the request without explanation`, nil), about: patch, want: blocked("", "deny.example.com")},
		"B13: a webhook denies with 429":             {err: status(429, metav1.StatusReasonTooManyRequests, `admission webhook "deny.example.com" denied the request: slow`, nil), about: patch, want: blocked("", "deny.example.com")},
		"B13: a webhook cannot be called":            {err: status(500, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "down.example.com": failed to call webhook: Post "https://x": connection refused`, nil), about: patch, want: blocked("", "down.example.com")},
		"B13: a policy denies with 422":              {err: status(422, metav1.StatusReasonInvalid, `pods "p" is forbidden: ValidatingAdmissionPolicy 'demo' with binding 'b' denied request: no`, nil), about: patch, want: blocked("", "demo")},
		"B13: some other admission":                  {err: status(403, metav1.StatusReasonForbidden, `pods "p" is forbidden: violates PodSecurity "restricted"`, nil), about: patch, want: blocked("", "")},
		"B14: our account may not patch":             {err: status(403, metav1.StatusReasonForbidden, `pods "p" is forbidden: User "system:serviceaccount:f:f" cannot patch resource "pods" in API group "" in the namespace "ns"`, nil), about: patch, want: is(finalizer.KindForbidden)},
		"B14: a read in words of another authorizer": {err: status(403, metav1.StatusReasonForbidden, "no", nil), about: get, want: want{Kind: finalizer.KindForbidden, Verb: verbGet, Resource: workflowsResource}},
		"B14: bad credentials":                       {err: status(401, metav1.StatusReasonUnauthorized, "Unauthorized", nil), about: patch, want: is(finalizer.KindForbidden)},
		"B39: throttled":                             {err: status(429, metav1.StatusReasonTooManyRequests, "slow down", &metav1.StatusDetails{RetryAfterSeconds: 3}), about: patch, want: later(finalizer.KindThrottled, 3)},
		"B39: the server asks to come back":          {err: status(500, metav1.StatusReasonServerTimeout, "x", &metav1.StatusDetails{RetryAfterSeconds: 2}), about: patch, want: later(finalizer.KindThrottled, 2)},
		"B39: a 503 with Retry-After":                {err: status(503, metav1.StatusReasonServiceUnavailable, "x", &metav1.StatusDetails{RetryAfterSeconds: 1}), about: patch, want: later(finalizer.KindUnavailable, 1)},
		"B39: etcd has no leader":                    {err: status(500, metav1.StatusReasonInternalError, "etcdserver: no leader", nil), about: patch, want: is(finalizer.KindUnavailable)},
		"B39: a gateway timeout":                     {err: status(504, metav1.StatusReasonTimeout, "x", nil), about: patch, want: is(finalizer.KindUnavailable)},
		"an answer counts more than a deadline":      {err: notFound("pods", "p"), ctxErr: context.DeadlineExceeded, about: patch, want: is(finalizer.KindGone)},
		"a request that is our fault":                {err: status(415, metav1.StatusReasonUnsupportedMediaType, "x", nil), about: patch, want: is(finalizer.KindInternal)},
		"connection refused":                         {err: &url.Error{Op: "Patch", Err: syscall.ECONNREFUSED}, about: patch, want: is(finalizer.KindUnavailable)},
		"connection reset":                           {err: &url.Error{Op: "Patch", Err: syscall.ECONNRESET}, about: patch, want: is(finalizer.KindUnavailable)},
		"an answer that is cut short":                {err: io.ErrUnexpectedEOF, about: patch, want: is(finalizer.KindUnavailable)},
		"a server that goes away":                    {err: errors.New("http2: server sent GOAWAY and closed the connection"), about: patch, want: is(finalizer.KindUnavailable)},
		"our own time limit":                         {err: context.DeadlineExceeded, about: patch, want: is(finalizer.KindUnavailable)},
		"the caller's deadline":                      {err: errors.New("client rate limiter Wait returned an error"), ctxErr: context.DeadlineExceeded, about: patch, want: is(finalizer.KindDeadline)},
		"the caller left":                            {err: &url.Error{Op: "Patch", Err: context.Canceled}, ctxErr: context.Canceled, about: patch, want: is(finalizer.KindCanceled)},
		"an answer wrapped by client-go":             {err: fmt.Errorf("outer: %w", notFound("pods", "p")), about: patch, want: is(finalizer.KindGone)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := classify(tc.err, tc.ctxErr, tc.about)
			got := want{e.Kind, e.Field, e.Webhook, e.Verb, e.Resource, e.RetryAfter}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if e.Message == "" || e.Pod != tc.about.pod || !errors.Is(e, tc.err) {
				t.Errorf("message %q, pod %v, cause %v", e.Message, e.Pod, e.Err)
			}
		})
	}
}

func TestVerbOfRequest(t *testing.T) {
	cases := map[string]struct{ method, url, verb, resource string }{
		"a pod":                       {"GET", "/api/v1/namespaces/ns/pods/p", "get", "pods"},
		"a patch behind a path":       {"PATCH", "/k8s/cluster/api/v1/namespaces/ns/pods/p?fieldManager=f", "patch", "pods"},
		"a delete":                    {"DELETE", "/api/v1/namespaces/ns/pods/p", "delete", "pods"},
		"a list":                      {"GET", "/api/v1/namespaces/ns/pods?limit=500", "list", "pods"},
		"a watch of all":              {"GET", "/apis/argoproj.io/v1alpha1/workflows?watch=true", "watch", "workflows"},
		"a watch, otherwise spelt":    {"GET", "/api/v1/pods?watch=1", "watch", "pods"},
		"a namespace":                 {"GET", "/api/v1/namespaces/ns", "get", "namespaces"},
		"all namespaces":              {"GET", "/api/v1/namespaces", "list", "namespaces"},
		"a workflow named as a group": {"GET", "/apis/argoproj.io/v1alpha1/namespaces/pods/workflows/api", "get", "workflows"},
		"the version":                 {"GET", "/version", "get", "version"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(tc.method, "https://host"+tc.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if verb, resource := verbOf(req); verb != tc.verb || resource != tc.resource {
				t.Errorf("got %s %s, want %s %s", verb, resource, tc.verb, tc.resource)
			}
		})
	}
}
