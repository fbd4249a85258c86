package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// apiStub answers as an API server that forbids all but its version, until
// granted; then its lists are empty and its watches silent.
func apiStub(t *testing.T, granted *atomic.Bool) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := func(code int, body string) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}
		q := r.URL.Query()
		switch {
		case r.URL.Path == "/version":
			answer(200, `{"major":"1","minor":"37"}`)
		case !granted.Load():
			answer(403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"forbidden"}`)
		case q.Get("watch") != "" && q.Get("sendInitialEvents") == "true":
			answer(422, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"no watch list"}`)
		case q.Get("watch") != "":
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			answer(200, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestRunComposesAllAndB14RecoversOnceRightsAreGranted(t *testing.T) {
	var granted atomic.Bool
	stub := apiStub(t, &granted)
	bound, done := make(chan Addresses, 1), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		done <- Run(ctx, Config{
			Frontend: Frontend{
				Log: slog.New(slog.DiscardHandler), GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0",
				Listening: func(a Addresses) { bound <- a },
			},
			Kubernetes: &rest.Config{Host: stub.URL},
			Policy:     finalizer.DefaultPolicy(),
			Reconcile:  ReconcileOn,
		})
	}()
	var at Addresses
	select {
	case at = <-bound:
	case err := <-done:
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+at.GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := &running{FinalizerServiceClient: pb.NewFinalizerServiceClient(conn), web: &http.Client{}, url: "http://" + at.HTTP.String()}
	defer r.web.CloseIdleConnections()

	eventually(t, "verb and resource at /readyz", func() bool {
		a := r.rest(t, http.MethodGet, "/readyz?verbose", "")
		return a.code == http.StatusServiceUnavailable && strings.Contains(a.body, "list pods")
	})
	_, err = r.ListPods(t.Context(), &pb.ListPodsRequest{})
	wantStatus(t, err, rowOf(t, pb.ErrorReason_ERROR_REASON_NOT_SYNCED))
	granted.Store(true)
	eventually(t, "ready", func() bool { return r.rest(t, http.MethodGet, "/readyz", "").code == http.StatusOK })
	if _, err := r.ListPods(t.Context(), &pb.ListPodsRequest{}); err != nil {
		t.Error(err)
	}
	metrics := r.rest(t, http.MethodGet, "/metrics", "").body
	for _, want := range []string{
		`finalizerd_api_requests_total{code="403",resource="pods",verb="list"}`, `finalizerd_api_request_duration_seconds_bucket{resource="pods",verb="list"`,
		`finalizerd_held_pods{reason="UNSPECIFIED"} 0`, `finalizerd_held_pods{reason="NOT_CAPTURED"} 0`, "finalizerd_held_terminating_pods 0",
		`finalizerd_held_oldest_seconds{reason="NOT_CAPTURED"} 0`, "finalizerd_unknown_captures 0", `finalizerd_forced_releases_total{reason="MAX_HOLD"} 0`,
		"finalizerd_unhidden_total 0", "finalizerd_admission_blocks_total 0", "finalizerd_reconcile_queue_depth 0",
		"finalizerd_reconcile_queue_wait_seconds_count 0", "finalizerd_reconcile_duration_seconds_count 0", `finalizerd_reconcile_reads_total{result="ok"} 0`, "finalizerd_held_terminating_oldest_seconds 0",
		"finalizerd_lane_waiters 0", "finalizerd_lane_holders 0", "finalizerd_writes_in_flight 0", "finalizerd_writes_limit ", "go_goroutines", "process_",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
}

func TestRunFailsWithASentenceWhenTheAPIServerIsNotThere(t *testing.T) {
	err := Run(t.Context(), Config{
		Frontend:   Frontend{Log: discard(), GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0"},
		Kubernetes: &rest.Config{Host: "http://127.0.0.1:1"}, Policy: finalizer.DefaultPolicy(),
	})
	if err == nil || !strings.Contains(err.Error(), "start the API server") {
		t.Errorf("got %v", err)
	}
}

func TestWhatDependsIsStoppedFirst(t *testing.T) {
	t.Run("at the end of the context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var order []string
		err := runBoth(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			order = append(order, "below")
			return nil
		}, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			order = append(order, "above")
			return nil
		})
		if err != nil || strings.Join(order, " ") != "above below" {
			t.Errorf("stopped %v, error %v", order, err)
		}
	})
	t.Run("when what is below fails", func(t *testing.T) {
		fault := errors.New("fault")
		err := runBoth(t.Context(), func(context.Context) error { return fault },
			func(ctx context.Context) error { <-ctx.Done(); return nil })
		if !errors.Is(err, fault) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("when what is above fails", func(t *testing.T) {
		fault := errors.New("fault")
		err := runBoth(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return nil },
			func(context.Context) error { return fault })
		if !errors.Is(err, fault) {
			t.Errorf("got %v", err)
		}
	})
}
