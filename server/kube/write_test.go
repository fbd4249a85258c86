package kube

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

var target = finalizer.Target{Workflow: wf("w"), Pod: finalizer.PodID{Namespace: "ns", Name: "p", UID: "a"}}

func TestWritesOnTheWire(t *testing.T) {
	const (
		path  = "/api/v1/namespaces/ns/pods/p"
		patch = "application/strategic-merge-patch+json"
	)
	cases := map[string]struct {
		write func(context.Context, *Writer) (finalizer.Pod, error)
		want  asked
	}{
		"a release takes one finalizer off": {
			func(ctx context.Context, w *Writer) (finalizer.Pod, error) { return w.Release(ctx, target, false) },
			asked{
				method: "PATCH", uri: path + "?fieldManager=finalizerd", contentType: patch,
				body: `{"metadata":{"uid":"a","$deleteFromPrimitiveList/finalizers":["workflows.argoproj.io/status"]}}`,
			},
		},
		"B3: with the label in the same write": {
			func(ctx context.Context, w *Writer) (finalizer.Pod, error) { return w.Release(ctx, target, true) },
			asked{
				method: "PATCH", uri: path + "?fieldManager=finalizerd", contentType: patch,
				body: `{"metadata":{"uid":"a","$deleteFromPrimitiveList/finalizers":["workflows.argoproj.io/status"],"labels":{"workflows.argoproj.io/completed":"true"}}}`,
			},
		},
		"an add": {
			func(ctx context.Context, w *Writer) (finalizer.Pod, error) { return w.AddFinalizer(ctx, target) },
			asked{
				method: "PATCH", uri: path + "?fieldManager=finalizerd", contentType: patch,
				body: `{"metadata":{"uid":"a","finalizers":["workflows.argoproj.io/status"]}}`,
			},
		},
		"B44: a label taken back": {
			func(ctx context.Context, w *Writer) (finalizer.Pod, error) { return w.Unhide(ctx, target, false) },
			asked{
				method: "PATCH", uri: path + "?fieldManager=finalizerd", contentType: patch,
				body: `{"metadata":{"uid":"a","labels":{"workflows.argoproj.io/completed":"false"}}}`,
			},
		},
		"B44: with the finalizer put on again in the same write": {
			func(ctx context.Context, w *Writer) (finalizer.Pod, error) { return w.Unhide(ctx, target, true) },
			asked{
				method: "PATCH", uri: path + "?fieldManager=finalizerd", contentType: patch,
				body: `{"metadata":{"uid":"a","finalizers":["workflows.argoproj.io/status"],"labels":{"workflows.argoproj.io/completed":"false"}}}`,
			},
		},
		"a delete": {
			func(ctx context.Context, w *Writer) (finalizer.Pod, error) { return w.Delete(ctx, target) },
			asked{
				method: "DELETE", uri: path, contentType: "application/json",
				body: `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"a"},"propagationPolicy":"Background"}`,
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			at := time.Unix(1_700_000_000, 0)
			s := newAPIServer(t, func(w http.ResponseWriter, _ *http.Request) {
				sendProto(t, w, 200, partial(terminating(object("p", "a", 7, "other"), at, 30)))
			})
			var observed []string
			c := s.client(t, Options{Observe: func(verb, resource string, code int, _ time.Duration) {
				observed = append(observed, verb+" "+resource+" "+http.StatusText(code))
			}})
			got, err := tc.write(t.Context(), c.Writer)
			if err != nil {
				t.Fatal(err)
			}
			want := *answer(terminating(object("p", "a", 7, "other"), at, 30))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answer (-want +got)\n%s", diff)
			}
			seen := s.requests()
			if len(seen) != 1 {
				t.Fatalf("%d requests, want 1 write and no read", len(seen))
			}
			tc.want.accept, tc.want.agent, tc.want.major = acceptMeta, "finalizerd", 2
			if diff := cmp.Diff(tc.want, seen[0], cmp.AllowUnexported(asked{})); diff != "" {
				t.Errorf("request (-want +got)\n%s", diff)
			}
			if cached, ok := c.Cache.Pod("ns", "p"); !ok || cached.ResourceVersion != "7" {
				t.Errorf("the answer is not in the cache: %v", cached)
			}
			if len(observed) != 1 {
				t.Errorf("observed %v, want one request", observed)
			}
			if load := c.Writer.Load(); load.InFlight != 0 || load.Waiting != 0 {
				t.Errorf("load after the write: %+v", load)
			}
		})
	}
}

func TestWriteAnswers(t *testing.T) {
	success := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success", Details: &metav1.StatusDetails{UID: "a"}}
	cases := map[string]struct {
		handle  func(http.ResponseWriter)
		kind    finalizer.Kind // of the error
		ok      bool
		removed bool
	}{
		"the object in JSON": {handle: func(w http.ResponseWriter) { sendJSON(t, w, 200, partial(object("p", "a", 7))) }, ok: true},
		"the last state of a removed object": {handle: func(w http.ResponseWriter) {
			sendProto(t, w, 200, partial(terminating(object("p", "a", 7), time.Now(), 0)))
		}, ok: true, removed: true},
		"a Status of success":             {handle: func(w http.ResponseWriter) { sendJSON(t, w, 200, success) }, ok: true, removed: true},
		"a Status of success in protobuf": {handle: func(w http.ResponseWriter) { sendProto(t, w, 200, success) }, ok: true, removed: true},
		"another pod":                     {handle: func(w http.ResponseWriter) { sendProto(t, w, 200, partial(object("p", "b", 7))) }, kind: finalizer.KindInternal},
		"not an object": {handle: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("{"))
		}, kind: finalizer.KindInternal},
		"B4: a NotFound in protobuf": {handle: func(w http.ResponseWriter) {
			sendProto(t, w, 404, failure(404, metav1.StatusReasonNotFound, `pods "p" not found`, &metav1.StatusDetails{Kind: "pods", Name: "p"}))
		}, kind: finalizer.KindGone},
		"a 404 of what is no API server": {handle: func(w http.ResponseWriter) { http.Error(w, "404 page not found", 404) }, kind: finalizer.KindUnavailable},
		"a 429 of the API server's own filter": {handle: func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
		}, kind: finalizer.KindThrottled},
		"a 500 without a word":     {handle: func(w http.ResponseWriter) { w.WriteHeader(500) }, kind: finalizer.KindUnavailable},
		"a connection that breaks": {handle: func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, kind: finalizer.KindUnavailable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t, func(w http.ResponseWriter, _ *http.Request) { tc.handle(w) })
			c := s.client(t, Options{})
			pod, err := c.Writer.Delete(t.Context(), target)
			if tc.ok != (err == nil) {
				t.Fatalf("error %v", err)
			}
			if err != nil && finalizer.KindOf(err) != tc.kind {
				t.Errorf("kind %d (%v), want %d", finalizer.KindOf(err), err, tc.kind)
			}
			if pod.Removed() != tc.removed {
				t.Errorf("removed %v, want %v: %+v", pod.Removed(), tc.removed, pod)
			}
			if n := len(s.requests()); n != 1 {
				t.Errorf("%d requests, want 1: a write is never repeated here", n)
			}
		})
	}
}

func TestNothingIsSentAfterTheContextIsDone(t *testing.T) {
	s := newAPIServer(t, func(w http.ResponseWriter, _ *http.Request) { sendProto(t, w, 200, partial(object("p", "a", 7))) })
	c := s.client(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Writer.Release(ctx, target, false); finalizer.KindOf(err) != finalizer.KindCanceled {
		t.Errorf("got %v", err)
	}
	nobody := target
	nobody.Pod.UID = ""
	if _, err := c.Writer.Delete(t.Context(), nobody); finalizer.KindOf(err) != finalizer.KindInternal {
		t.Errorf("B1: a write without a UID: %v", err)
	}
	if n := len(s.requests()); n != 0 {
		t.Errorf("%d requests, want none", n)
	}
}

func TestWriteTimeLimits(t *testing.T) {
	hang := make(chan struct{})
	s := newAPIServer(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	defer close(hang)
	c := s.client(t, Options{WriteTimeout: 50 * time.Millisecond})
	if _, err := c.Writer.Release(t.Context(), target, false); finalizer.KindOf(err) != finalizer.KindUnavailable {
		t.Errorf("our own limit: got %v", err)
	}
	if limit := c.Writer.Load().Limit; limit != limitStart/2 {
		t.Errorf("limit is %d after a timeout, want %d", limit, limitStart/2)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Writer.Release(ctx, target, false); finalizer.KindOf(err) != finalizer.KindDeadline {
		t.Errorf("the caller's deadline: got %v", err)
	}
}

func TestFaultsEndByThemselves(t *testing.T) {
	var granted atomic.Bool
	s := newAPIServer(t, func(w http.ResponseWriter, _ *http.Request) {
		if granted.Load() {
			sendProto(t, w, 200, partial(object("p", "a", 7)))
			return
		}
		sendJSON(t, w, 403, failure(403, metav1.StatusReasonForbidden, `pods "p" is forbidden: User "u" cannot patch resource "pods" in API group "" in the namespace "ns"`, nil))
	})
	c := s.client(t, Options{})
	if _, err := c.Writer.Release(t.Context(), target, false); finalizer.KindOf(err) != finalizer.KindForbidden {
		t.Errorf("B14: got %v", err)
	}
	if f := c.Faults(); len(f) != 1 || f[0].Verb != "patch" || f[0].Resource != "pods" {
		t.Errorf("B14: faults %v, want patch pods", f)
	}
	granted.Store(true)
	if _, err := c.Writer.Release(t.Context(), target, false); err != nil {
		t.Error(err)
	}
	if f := c.Faults(); len(f) != 0 {
		t.Errorf("B14: faults %v after the right was granted", f)
	}
}
