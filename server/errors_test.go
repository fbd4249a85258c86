package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Each kind that the core can answer with is seen through the whole server, over
// gRPC and over REST, in each method. That the table has all kinds is held in
// package api.
func TestEachKindOfErrorOverGRPCAndREST(t *testing.T) {
	for _, row := range api.Table() {
		for _, kind := range row.Kinds {
			t.Run(fmt.Sprintf("%s kind %d", row.ReasonName(), kind), func(t *testing.T) {
				fault := &finalizer.Error{
					Kind: kind, Message: "what people read",
					Pod: finalizer.PodID{Namespace: "argo", Name: "hello-1", UID: "u-1"},
					Err: errors.New("secret cause"),
				}
				r := start(t, failingCore(fmt.Errorf("wrapped: %w", fault)))
				for method, err := range callAll(t.Context(), r) {
					wantStatus(t, err, row)
					if strings.Contains(err.Error(), "secret") {
						t.Errorf("%s leaks the cause: %v", method, err)
					}
				}
				for _, path := range restCalls {
					a := r.rest(t, path.method, path.path, path.body)
					checkRESTError(t, a, row)
				}
			})
		}
	}
}

func checkRESTError(t *testing.T, a answer, row api.Row) {
	t.Helper()
	st := a.status(t)
	info := st.detail("ErrorInfo")
	if a.code != row.HTTP || st.Code != int(row.Code) || st.reason() != row.ReasonName() || info["domain"] != api.Domain {
		t.Errorf("over REST got HTTP %d %s, want HTTP %d, code %d, %s", a.code, a.body, row.HTTP, row.Code, row.ReasonName())
	}
	if strings.Contains(a.body, "secret") {
		t.Errorf("over REST the cause leaks: %s", a.body)
	}
	if retry := st.detail("RetryInfo"); (retry != nil) != (row.Retry > 0) {
		t.Errorf("RetryInfo is %v, want by the row %v", retry, row.Retry)
	}
	if ct := a.header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("content type of an error is %q", ct)
	}
}

// restCalls has a valid call of each method.
var restCalls = []struct{ method, path, body string }{
	{http.MethodPost, "/v1/namespaces/argo/pods/hello-1:addFinalizer", "{}"},
	{http.MethodPost, "/v1/namespaces/argo/pods/hello-1:release", ""},
	{http.MethodPost, "/v1/namespaces/argo/workflows/hello:deletePods", `{"all":true}`},
	{http.MethodPost, "/v1/namespaces/argo/workflows/hello:releasePods", `{"nodeIds":["hello-1"]}`},
	{http.MethodGet, "/v1/namespaces/argo/pods/hello-1", ""},
	{http.MethodGet, "/v1/namespaces/argo/pods?pageSize=3", ""},
	{http.MethodGet, "/v1/pods", ""},
	{http.MethodGet, "/v1/namespaces/argo/workflows/hello/pods:watch?until=WATCH_UNTIL_GONE", ""},
}

// callAll makes a valid call of each method.
func callAll(ctx context.Context, c pb.FinalizerServiceClient) map[string]error {
	out := make(map[string]error)
	_, out["AddFinalizer"] = c.AddFinalizer(ctx, &pb.AddFinalizerRequest{Namespace: "argo", Pod: "hello-1"})
	_, out["ReleasePod"] = c.ReleasePod(ctx, &pb.ReleasePodRequest{Namespace: "argo", Pod: "hello-1"})
	_, out["DeleteWorkflowPods"] = c.DeleteWorkflowPods(ctx, &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "hello", All: true})
	_, out["ReleaseWorkflowPods"] = c.ReleaseWorkflowPods(ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: "argo", Workflow: "hello", All: true})
	_, out["GetPod"] = c.GetPod(ctx, &pb.GetPodRequest{Namespace: "argo", Pod: "hello-1"})
	_, out["ListPods"] = c.ListPods(ctx, &pb.ListPodsRequest{})
	out["WatchWorkflowPods"] = watchError(c.WatchWorkflowPods(ctx, &pb.WatchWorkflowPodsRequest{Namespace: "argo", Workflow: "hello"}))
	return out
}

func watchError(stream pb.FinalizerService_WatchWorkflowPodsClient, err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func TestErrorsOfUnknownTypeAndPanicsAreInternalAndLogged(t *testing.T) {
	internal := api.RowOf(finalizer.KindInternal)
	t.Run("an error of unknown type", func(t *testing.T) {
		r := start(t, failingCore(errors.New("secret cause")))
		for method, err := range callAll(t.Context(), r) {
			wantStatus(t, err, internal)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%s leaks the cause: %v", method, err)
			}
		}
		if got := len(r.log.lines(t, "call failed")); got != 7 {
			t.Errorf("logged %d times, want once for each of 7 calls", got)
		}
	})
	t.Run("a panic", func(t *testing.T) {
		core := failingCore(nil)
		core.get = func(context.Context, string, string) (finalizer.View, error) { panic("secret panic") }
		core.watch = func(context.Context, finalizer.WatchRequest, func(finalizer.Step) error) error { panic("secret panic") }
		r := start(t, core)
		_, err := r.GetPod(t.Context(), &pb.GetPodRequest{Namespace: "argo", Pod: "hello-1"})
		wantStatus(t, err, internal)
		err = watchError(r.WatchWorkflowPods(t.Context(), &pb.WatchWorkflowPodsRequest{Namespace: "argo", Workflow: "hello"}))
		wantStatus(t, err, internal)
		checkRESTError(t, r.rest(t, http.MethodGet, "/v1/namespaces/argo/pods/hello-1", ""), internal)
		entries := r.log.lines(t, "panic in a call")
		if len(entries) != 3 {
			t.Fatalf("logged %d panics, want 3", len(entries))
		}
		if stack, _ := entries[0]["stack"].(string); !strings.Contains(stack, "errors_test.go") {
			t.Errorf("the stack does not lead to the panic: %q", stack)
		}
	})
}

func TestBulkFailureCarriesTheRowOfItsKind(t *testing.T) {
	core := failingCore(nil)
	core.bulk = func(context.Context, finalizer.BulkRequest) ([]finalizer.Result, error) {
		return []finalizer.Result{{
			Pod: finalizer.PodID{Namespace: "argo", Name: "hello-1", UID: "u-1"}, Outcome: finalizer.OutcomeFailed,
			Err: &finalizer.Error{Kind: finalizer.KindForbidden, Message: "may not patch pods", Err: errors.New("secret")},
		}}, nil
	}
	r := start(t, core)
	got, err := r.DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "hello", All: true})
	if err != nil {
		t.Fatal(err)
	}
	res := got.GetResults()[0]
	if codes.Code(res.GetCode()) != codes.Internal || res.GetErrorReason() != pb.ErrorReason_ERROR_REASON_SERVICE_FORBIDDEN ||
		res.GetMessage() != "may not patch pods" || got.GetSummary().GetNeedsAttention() != 1 {
		t.Errorf("got %v", got)
	}
	a := r.rest(t, http.MethodPost, "/v1/namespaces/argo/workflows/hello:deletePods", `{"all":true}`)
	if a.code != http.StatusOK || !strings.Contains(a.body, `"ERROR_REASON_SERVICE_FORBIDDEN"`) || strings.Contains(a.body, "secret") {
		t.Errorf("over REST got HTTP %d %s", a.code, a.body)
	}
	if got := len(r.log.lines(t, "pods failed for reasons of the service")); got != 2 {
		t.Errorf("the cause was logged %d times in 2 calls", got)
	}
}

func TestUnknownMethodsAndPathsAreToldWithAReason(t *testing.T) {
	r := start(t, unreachableCore(t))
	err := r.conn.Invoke(t.Context(), "/finalizer.v1.FinalizerService/Nope", &pb.GetPodRequest{}, &pb.GetPodResponse{})
	row := rowOf(t, pb.ErrorReason_ERROR_REASON_UNKNOWN_METHOD)
	wantStatus(t, err, row)
	wantStatus(t, r.conn.Invoke(t.Context(), "/no.such.Service/Nope", &pb.GetPodRequest{}, &pb.GetPodResponse{}), row)
	for _, tc := range []struct {
		name, method, path string
		code               int
	}{
		{"no such path", http.MethodGet, "/v1/nope", 404},
		{"no such path outside of v1", http.MethodGet, "/nope", 404},
		{"the root", http.MethodGet, "/", 404},
		{"an unknown action counts as part of the name, which takes GET", http.MethodPost, "/v1/namespaces/argo/pods/hello-1:nope", 405},
		{"no such verb of a workflow", http.MethodPost, "/v1/namespaces/argo/workflows/hello:nope", 404},
		{"a doubled slash is not cleaned", http.MethodGet, "/v1//pods", 404},
		{"wrong method", http.MethodDelete, "/v1/namespaces/argo/pods/hello-1", 405},
		{"GET of an action", http.MethodPut, "/v1/namespaces/argo/pods/hello-1:release", 405},
		{"method override is off", http.MethodPost, "/v1/pods", 405},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := r.rest(t, tc.method, tc.path, "", "X-HTTP-Method-Override", "GET", "Content-Type", "application/x-www-form-urlencoded")
			if a.code != tc.code || a.status(t).reason() != "UNKNOWN_METHOD" {
				t.Errorf("got HTTP %d %s, want %d UNKNOWN_METHOD", a.code, a.body, tc.code)
			}
		})
	}
}

func rowOf(t *testing.T, reason pb.ErrorReason) api.Row {
	t.Helper()
	for _, row := range api.Table() {
		if row.Reason == reason {
			return row
		}
	}
	t.Fatalf("no row for %s", reason)
	return api.Row{}
}
