package server

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

func blockedWatch(began chan<- struct{}) func(context.Context, finalizer.WatchRequest, func(finalizer.Step) error) error {
	return func(ctx context.Context, _ finalizer.WatchRequest, send func(finalizer.Step) error) error {
		if err := send(finalizer.Step{Snapshot: true}); err != nil {
			return err
		}
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestShutdownEndsWatchesAndLetsCallsFinish(t *testing.T) {
	began, finish := make(chan struct{}, 3), make(chan struct{})
	core := unreachableCore(t)
	core.watch = blockedWatch(began)
	core.get = func(context.Context, string, string) (finalizer.View, error) {
		began <- struct{}{}
		<-finish
		return finalizer.View{}, nil
	}
	r := start(t, core, func(f *Frontend) { f.ShutdownTimeout = patience })
	stream, err := r.WatchWorkflowPods(t.Context(), &pb.WatchWorkflowPodsRequest{Namespace: "argo", Workflow: "w"})
	if err != nil {
		t.Fatal(err)
	}
	overREST := make(chan string, 1)
	go func() {
		resp, err := r.web.Get(r.url + "/v1/namespaces/argo/workflows/w/pods:watch")
		if err != nil {
			overREST <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		overREST <- string(body) + toText(err)
	}()
	call := make(chan error, 1)
	go func() {
		_, err := r.GetPod(context.Background(), &pb.GetPodRequest{Namespace: "argo", Pod: "p"})
		call <- err
	}()
	for range 3 {
		<-began
	}
	r.end()
	row := rowOf(t, pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN)
	wantStatus(t, watchError(stream, nil), row)
	if got := <-overREST; !strings.Contains(got, "SHUTTING_DOWN") {
		t.Errorf("the watch over REST ended with %q", got)
	}
	select {
	case err := <-call:
		t.Errorf("the call under way was cut: %v", err)
	default:
	}
	close(finish)
	if err := <-call; err != nil {
		t.Errorf("the call under way failed: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

func toText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestShutdownIsBounded(t *testing.T) {
	began := make(chan struct{})
	core := unreachableCore(t)
	core.get = func(ctx context.Context, _, _ string) (finalizer.View, error) {
		close(began)
		<-ctx.Done()
		return finalizer.View{}, ctx.Err()
	}
	r := start(t, core, func(f *Frontend) { f.ShutdownTimeout = 50 * time.Millisecond })
	call := make(chan error, 1)
	go func() {
		_, err := r.GetPod(context.Background(), &pb.GetPodRequest{Namespace: "argo", Pod: "p"})
		call <- err
	}()
	<-began
	begin := time.Now()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("the stop took %s", took)
	}
	if err := <-call; status.Code(err) != codes.Unavailable {
		t.Errorf("the call that was cut ended with %v", err)
	}
}

func TestDuringTheDrainDelayHealthSaysNoAndCallsAreAnswered(t *testing.T) {
	r := start(t, failingCore(nil), func(f *Frontend) { f.DrainDelay = 2 * time.Second })
	eventually(t, "ready", func() bool { return r.rest(t, http.MethodGet, "/readyz", "").code == http.StatusOK })
	watch, err := healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health is %v, %v", got, err)
	}
	r.end()
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("health is %v, %v", got, err)
	}
	if a := r.rest(t, http.MethodGet, "/readyz", ""); a.code != http.StatusServiceUnavailable {
		t.Errorf("readiness says HTTP %d", a.code)
	}
	if _, err := r.GetPod(t.Context(), &pb.GetPodRequest{Namespace: "argo", Pod: "p"}); err != nil {
		t.Errorf("a call during the delay: %v", err)
	}
}

func TestNoGoroutineIsLeftBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		began := make(chan struct{}, 2)
		core := failingCore(nil)
		core.watch = blockedWatch(began)
		r := start(t, core, func(f *Frontend) {
			f.Checks = []Check{{Name: "c", Run: func(context.Context) error { return nil }}}
		})
		for _, c := range restCalls[:7] {
			r.rest(t, c.method, c.path, c.body)
		}
		stream, err := r.WatchWorkflowPods(t.Context(), &pb.WatchWorkflowPodsRequest{Namespace: "argo", Workflow: "w"})
		if err != nil {
			t.Fatal(err)
		}
		<-began
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if err := watchError(stream, nil); err == nil {
			t.Error("the watch ended with OK")
		}
	}
	eventually(t, "no more goroutines than before", func() bool {
		if runtime.NumGoroutine() <= before {
			return true
		}
		runtime.Gosched()
		return false
	})
}
