package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func missing(kind, name string) *metav1.Status {
	return failure(404, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", kind, name), &metav1.StatusDetails{Group: "argoproj.io", Kind: kind, Name: name})
}

func TestWorkflowRead(t *testing.T) {
	const found = `{"metadata":{"uid":"u"},"status":{"phase":"Running"}}`
	ending := partial(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: "n", DeletionTimestamp: &metav1.Time{Time: time.Now()}}})
	living := partial(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: "n"}})
	workflow := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(body))
		}
	}
	status := func(code int, s *metav1.Status) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { sendJSON(t, w, code, s) }
	}
	meta := func(m *metav1.PartialObjectMetadata) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { sendProto(t, w, 200, m) }
	}
	forbidden := status(403, failure(403, metav1.StatusReasonForbidden, `User "u" cannot get resource "namespaces"`, nil))
	cases := map[string]struct {
		workflow, namespace http.HandlerFunc
		hint                *Meta // what the watch knows of the namespace
		kind                finalizer.Kind
		exists, ending      bool
		requests            int
	}{
		"it exists, in a namespace that the watch knows well":    {workflow: workflow(found), hint: &Meta{}, exists: true, requests: 1},
		"B35: the watch says the namespace ends, and it does":    {workflow: workflow(found), namespace: meta(ending), hint: &Meta{Deleting: true}, exists: true, ending: true, requests: 2},
		"the watch says so and is wrong":                         {workflow: workflow(found), namespace: meta(living), hint: &Meta{Deleting: true}, exists: true, requests: 2},
		"B35: the watch does not know the namespace":             {workflow: workflow(found), namespace: meta(ending), exists: true, ending: true, requests: 2},
		"the namespace is gone":                                  {workflow: status(404, missing("workflows", "w")), namespace: status(404, missing("namespaces", "ns")), ending: true, requests: 2},
		"namespaces may not be read: pods are kept":              {workflow: workflow(found), namespace: forbidden, exists: true, requests: 2},
		"B34: the namespace cannot be read":                      {workflow: workflow(found), namespace: status(500, failure(500, "", "x", nil)), kind: finalizer.KindUnavailable, requests: 2},
		"B32: it is proven absent":                               {workflow: status(404, missing("workflows", "w")), hint: &Meta{}, requests: 1},
		"B34: another object is absent":                          {workflow: status(404, missing("workflows", "x")), hint: &Meta{}, kind: finalizer.KindUnavailable, requests: 1},
		"B34: the kind is not installed":                         {workflow: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "404 page not found", 404) }, hint: &Meta{}, kind: finalizer.KindUnavailable, requests: 1},
		"B34: what answers is no API server":                     {workflow: workflow("<html>"), hint: &Meta{}, kind: finalizer.KindUnavailable, requests: 1},
		"B34: the API server fails":                              {workflow: status(503, failure(503, metav1.StatusReasonServiceUnavailable, "x", nil)), hint: &Meta{}, kind: finalizer.KindUnavailable, requests: 1},
		"B14: the account may not read it":                       {workflow: status(403, failure(403, metav1.StatusReasonForbidden, `User "u" cannot get resource "workflows" in API group "argoproj.io"`, nil)), hint: &Meta{}, kind: finalizer.KindForbidden, requests: 1},
		"B34: its status cannot be read: it exists all the same": {workflow: workflow(`{"metadata":{"uid":"u"},"status":7}`), hint: &Meta{}, exists: true, requests: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var reached atomic.Value
			s := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/apis/argoproj.io/v1alpha1/namespaces/ns/workflows/w":
					reached.Store(time.Now())
					tc.workflow(w, r)
				case "/api/v1/namespaces/ns":
					tc.namespace(w, r)
				default:
					t.Errorf("unexpected request %s", r.URL)
				}
			})
			c := s.client(t, Options{})
			before := time.Now()
			if tc.hint != nil {
				m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
				if tc.hint.Deleting {
					m.DeletionTimestamp = &metav1.Time{Time: time.Now()}
				}
				_ = c.namespaces.feeds[0].Add(m)
			}
			got, err := c.Reader.Workflow(t.Context(), wf("w"))
			if (tc.kind != 0) != (err != nil) || (err != nil && finalizer.KindOf(err) != tc.kind) {
				t.Fatalf("error %v, want kind %d", err, tc.kind)
			}
			if got.Exists != tc.exists || got.NamespaceTerminating != tc.ending {
				t.Errorf("got %+v, want exists %v, ending %v", got, tc.exists, tc.ending)
			}
			if err == nil && (got.ReadAt.Before(before) || got.ReadAt.After(reached.Load().(time.Time))) {
				t.Errorf("ReadAt %v: not between the call and the arrival of the request", got.ReadAt)
			}
			if n := len(s.requests()); n != tc.requests {
				t.Errorf("%d requests, want %d", n, tc.requests)
			}
		})
	}
}

func TestAReadThatHangsEndsByWhicheverLimitComesFirst(t *testing.T) {
	cases := map[string]struct {
		own, caller time.Duration
		want        finalizer.Kind
	}{
		"B34: the time limit of a read makes it unknown": {20 * time.Millisecond, time.Minute, finalizer.KindUnavailable},
		"the caller's deadline is the caller's":          {time.Minute, 20 * time.Millisecond, finalizer.KindDeadline},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			c := s.client(t, Options{ReadTimeout: tc.own})
			ctx, cancel := context.WithTimeout(t.Context(), tc.caller)
			defer cancel()
			_, err := c.Reader.Workflow(ctx, wf("w"))
			if err == nil || finalizer.KindOf(err) != tc.want {
				t.Errorf("Workflow: got %v, want kind %v", err, tc.want)
			}
		})
	}
}

func livePod(name string, phase corev1.PodPhase, statuses ...corev1.ContainerStatus) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: object(name, "a", 7, fin).ObjectMeta,
		Spec:       corev1.PodSpec{NodeName: "node"},
		Status:     corev1.PodStatus{Phase: phase, ContainerStatuses: statuses},
	}
}

func TestPodRead(t *testing.T) {
	s := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/p") {
			sendProto(t, w, 200, livePod("p", corev1.PodFailed))
			return
		}
		sendJSON(t, w, 404, missing("pods", "q"))
	})
	c := s.client(t, Options{})
	got, err := c.Reader.Pod(t.Context(), "ns", "p")
	want := *answer(object("p", "a", 7, fin))
	want.Status = &finalizer.PodStatus{Phase: "Failed", NodeName: "node"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v (-want +got)\n%s", err, diff)
	}
	if !got.Status.Terminal() {
		t.Error("B19: a Failed pod without container statuses is not terminal")
	}
	if _, err := c.Reader.Pod(t.Context(), "ns", "q"); finalizer.KindOf(err) != finalizer.KindPodNotFound {
		t.Errorf("got %v", err)
	}
	if accept := s.requests()[0].accept; !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") {
		t.Errorf("asked for %q, want protobuf", accept)
	}
}

func TestPodStarted(t *testing.T) {
	yes, no := true, false
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}, Started: &no}
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	cases := map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"no statuses":                        {corev1.PodStatus{}, false},
		"all wait":                           {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting, waiting}}, false},
		"one runs":                           {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting, running}}, true},
		"an init container has ended":        {corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{State: terminated}}}, true},
		"an ephemeral container runs":        {corev1.PodStatus{EphemeralContainerStatuses: []corev1.ContainerStatus{running}}, true},
		"one waits to start again":           {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{LastTerminationState: terminated}}}, true},
		"one is started by its probe's word": {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Started: &yes}}}, true},
		"one was restarted":                  {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 1}}}, true},
	}
	for name, tc := range cases {
		t.Run("B18: "+name, func(t *testing.T) {
			if got := started(&tc.status); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPodsReadsPages(t *testing.T) {
	s := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/api/v1/namespaces/ns/pods" || q.Get("labelSelector") != finalizer.LabelWorkflow+"=w" || q.Get("limit") != "500" {
			t.Errorf("asked %s", r.URL)
		}
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		switch q.Get("continue") {
		case "":
			list.Continue = "more/+="
			list.Items = []corev1.Pod{*livePod("p0", corev1.PodRunning), *livePod("p1", corev1.PodRunning)}
		case "more/+=":
			list.Items = []corev1.Pod{*livePod("p2", corev1.PodPending)}
		default:
			t.Errorf("continued with %q", q.Get("continue"))
		}
		sendProto(t, w, 200, list)
	})
	c := s.client(t, Options{})
	pods, err := c.Reader.Pods(t.Context(), wf("w"))
	if err != nil || len(pods) != 3 || pods[2].Status.Phase != "Pending" || pods[2].Name != "p2" {
		t.Errorf("B26: got %v, %v", pods, err)
	}
	for _, name := range []string{strings.Repeat("x", 64), "a,b=c", ""} {
		_, err = c.Reader.Pods(t.Context(), wf(name))
		if finalizer.KindOf(err) != finalizer.KindInvalid {
			t.Errorf("B30: name %q: %v", name, err)
		}
	}
}
