package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// clusterStub answers as an API server with one held pod, an hour old, whose
// Workflow is gone: namespace argo, pod p, UID u.
type clusterStub struct {
	*httptest.Server

	unserved bool // workflows have no CustomResourceDefinition
	// appears, unless nil, is when the pod is there at last.
	appears chan struct{}

	mu       sync.Mutex
	finals   string
	writes   []string
	requests []string
}

func newClusterStub(t *testing.T) *clusterStub {
	t.Helper()
	s := &clusterStub{finals: `"` + finalizer.DefaultFinalizer + `"`}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *clusterStub) pod() string {
	return fmt.Sprintf(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"namespace":"argo","name":"p","uid":"u",
		"resourceVersion":"7","creationTimestamp":%q,"finalizers":[%s],"annotations":{"workflows.argoproj.io/node-id":"n"},
		"ownerReferences":[{"apiVersion":"argoproj.io/v1alpha1","kind":"Workflow","name":"w","uid":"wu","controller":true}]}}`,
		time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), s.finals)
}

func (s *clusterStub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	if r.Method != http.MethodGet {
		s.writes = append(s.writes, r.Method+" "+r.URL.Path)
		if bytes.Contains(body, []byte("$deleteFromPrimitiveList")) {
			s.finals = ""
		}
	}
	pod := s.pod()
	s.mu.Unlock()
	code, answer := s.answer(r, pod)
	if answer == "" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		if s.appears != nil && strings.HasSuffix(r.URL.Path, "/pods") {
			select {
			case <-s.appears:
				_, _ = fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, pod)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
			}
		}
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(answer))
}

// answer is empty for a watch that says nothing.
func (s *clusterStub) answer(r *http.Request, pod string) (int, string) {
	q, parts := r.URL.Query(), strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	list := func(items string) string {
		return `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"items":[` + items + `]}`
	}
	resource := parts[len(parts)-1]
	switch {
	case r.URL.Path == "/version":
		return 200, `{"major":"1","minor":"37"}`
	case s.unserved && slices.Contains(parts, "workflows"):
		return 404, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"the server could not find the requested resource"}`
	case q.Get("watch") != "" && q.Get("sendInitialEvents") == "true":
		return 422, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"no watch list"}`
	case q.Get("watch") != "":
		return 200, ""
	case r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/pods/p"):
		return 200, pod
	case strings.HasSuffix(r.URL.Path, "/workflows/w"):
		return 404, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"gone","details":{"group":"argoproj.io","kind":"workflows","name":"w"}}`
	case resource == "pods" && s.appears != nil:
		return 200, list("")
	case resource == "pods":
		return 200, list(pod)
	case resource == "workflows":
		return 200, list("")
	case resource == "namespaces":
		return 200, list(`{"metadata":{"name":"argo","uid":"nu","resourceVersion":"1"}}`)
	case strings.HasSuffix(r.URL.Path, "/namespaces/argo"):
		return 200, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"argo","uid":"nu","resourceVersion":"1"}}`
	}
	return 500, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"message":"the stub has no answer"}`
}

func (s *clusterStub) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

func (s *clusterStub) asked(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.requests, func(r string) bool { return strings.Contains(r, what) })
}

// runOn runs the whole service on the stub.
func runOn(t *testing.T, s *clusterStub, change func(*Config)) *running {
	t.Helper()
	bound, done := make(chan Addresses, 1), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	log := new(lockedBuffer)
	c := Config{
		Frontend: Frontend{
			Log: slog.New(slog.NewJSONHandler(log, nil)), GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0",
			Listening: func(a Addresses) { bound <- a },
		},
		Kubernetes: &rest.Config{Host: s.URL},
		Policy:     finalizer.DefaultPolicy(),
	}
	change(&c)
	go func() { done <- Run(ctx, c) }()
	var at Addresses
	select {
	case at = <-bound:
	case err := <-done:
		stop()
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+at.GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r := &running{FinalizerServiceClient: pb.NewFinalizerServiceClient(conn), web: &http.Client{}, url: "http://" + at.HTTP.String(), log: log}
	t.Cleanup(func() {
		r.web.CloseIdleConnections()
		_ = conn.Close() // once
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
		s.CloseClientConnections()
	})
	eventually(t, "ready", func() bool { return r.rest(t, http.MethodGet, "/readyz", "").code == http.StatusOK })
	return r
}

func (r *running) metric(t *testing.T, line string) func() bool {
	return func() bool {
		return strings.Contains(r.rest(t, http.MethodGet, "/metrics", "").body, "\n"+line+"\n")
	}
}

func TestB32AnOrphanGoesFromTheFirstListByMode(t *testing.T) {
	t.Run("on: it is released, and counted", func(t *testing.T) {
		s := newClusterStub(t)
		r := runOn(t, s, func(c *Config) { c.Reconcile = ReconcileOn })
		eventually(t, "the release is counted", r.metric(t, `finalizerd_releases_total{origin="reconcile",reason="ORPHANED"} 1`))
		if w := s.written(); len(w) != 1 || w[0] != "PATCH /api/v1/namespaces/argo/pods/p" {
			t.Errorf("wrote %v", w)
		}
		eventually(t, "a pass is counted", func() bool { return !r.metric(t, "finalizerd_reconcile_duration_seconds_count 0")() })
		eventually(t, "nothing is held", r.metric(t, `finalizerd_held_pods{reason="ORPHANED"} 0`))
	})
	t.Run("report: it is told, and nothing is written", func(t *testing.T) {
		s := newClusterStub(t)
		r := runOn(t, s, func(c *Config) { c.Reconcile = ReconcileReport })
		eventually(t, "it is told", r.metric(t, `finalizerd_reconcile_would_release_total{reason="ORPHANED"} 1`))
		eventually(t, "it is counted as held", r.metric(t, `finalizerd_held_pods{reason="ORPHANED"} 1`))
		list, err := r.ListPods(t.Context(), &pb.ListPodsRequest{Reason: pb.HoldReason_HOLD_REASON_ORPHANED})
		if err != nil || len(list.GetPods()) != 1 || !list.GetPods()[0].GetReleasable() || list.GetPods()[0].GetSinceTime() == nil {
			t.Errorf("the list says %v, %v", list, err)
		}
		if w := s.written(); len(w) > 0 {
			t.Errorf("wrote %v", w)
		}
		if _, err := r.ReleasePod(t.Context(), &pb.ReleasePodRequest{Namespace: "argo", Pod: "p"}); err != nil || len(s.written()) == 0 {
			t.Errorf("a call does not act: %v", err)
		}
	})
	t.Run("off: nothing is looked at, and calls work", func(t *testing.T) {
		s := newClusterStub(t)
		r := runOn(t, s, func(*Config) {})
		eventually(t, "the pod is known", r.metric(t, `finalizerd_held_pods{reason="UNSPECIFIED"} 1`))
		if len(s.written()) > 0 || s.asked("GET /apis/argoproj.io/v1alpha1/namespaces/argo/workflows/w") {
			t.Error("the reconciler is not off")
		}
		if _, err := r.ReleasePod(t.Context(), &pb.ReleasePodRequest{Namespace: "argo", Pod: "p"}); err != nil {
			t.Error(err)
		}
		eventually(t, "the call is counted", r.metric(t, `finalizerd_releases_total{origin="call",reason="ORPHANED"} 1`))
	})
}

func TestChangesReachTheReconciler(t *testing.T) {
	s := newClusterStub(t)
	s.appears = make(chan struct{})
	runOn(t, s, func(c *Config) { c.Reconcile = ReconcileOn })
	s.appears <- struct{}{} // the walk over all comes ten minutes later
	eventually(t, "the orphan goes", func() bool { return len(s.written()) == 1 })
}

func TestNamespacesThatAreNotServedAreNeitherWatchedNorActedUpon(t *testing.T) {
	s := newClusterStub(t)
	r := runOn(t, s, func(c *Config) { c.Reconcile, c.Namespaces = ReconcileOn, []string{"argo"} })
	eventually(t, "the orphan goes", func() bool { return len(s.written()) == 1 })
	_, err := r.ReleasePod(t.Context(), &pb.ReleasePodRequest{Namespace: "other", Pod: "p"})
	wantStatus(t, err, rowOf(t, pb.ErrorReason_ERROR_REASON_NAMESPACE_NOT_SERVED))
	if s.asked("GET /api/v1/pods") || s.asked("GET /apis/argoproj.io/v1alpha1/workflows") {
		t.Error("the whole cluster is watched")
	}
}

func TestB34WithoutTheDefinitionThePodStaysAndItIsTold(t *testing.T) {
	s := newClusterStub(t)
	s.unserved = true
	r := runOn(t, s, func(c *Config) { c.Reconcile = ReconcileOn })
	eventually(t, "a notice", func() bool {
		a := r.rest(t, http.MethodGet, "/readyz", "")
		return a.code == http.StatusOK && strings.Contains(a.body, "notice: workflows: ") && strings.Contains(a.body, "CustomResourceDefinition")
	})
	eventually(t, "the log tells", func() bool { return len(r.log.lines(t, "notice")) == 1 })
	eventually(t, "the pod is held, its capture unknown", r.metric(t, "finalizerd_unknown_captures 1"))
	if w := s.written(); len(w) > 0 {
		t.Errorf("wrote %v", w)
	}
}

func TestB42ForcedReleasesOfTheReconcilerAreAudited(t *testing.T) {
	log := new(lockedBuffer)
	var seen int
	act := audited(slog.New(slog.NewJSONHandler(log, nil)), func(finalizer.Act) { seen++ })
	pod := finalizer.PodID{Namespace: "argo", Name: "p", UID: "u"}
	act(finalizer.Act{Pod: pod, Reason: finalizer.ReasonMaxHold, Background: true})
	act(finalizer.Act{Pod: pod, Reason: finalizer.ReasonMaxHold, Background: true, Err: &finalizer.Error{}})
	act(finalizer.Act{Pod: pod, Reason: finalizer.ReasonForced}) // a call, which is logged as such
	act(finalizer.Act{Pod: pod, Reason: finalizer.ReasonOrphaned, Background: true})
	lines := log.lines(t, "forced release")
	if len(lines) != 1 || lines[0]["audit"] != true || lines[0]["reason"] != "MAX_HOLD" || lines[0]["pod_uid"] != "u" || seen != 4 {
		t.Errorf("%d acts passed on, the log says %v", seen, lines)
	}
}
