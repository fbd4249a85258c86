package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// patience bounds what must come at once, on a slow machine too.
const patience = 20 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never came: %s", what)
		}
	}
}

func TestReadinessAndHealthFollowTheChecks(t *testing.T) {
	var fault atomic.Pointer[error]
	set := func(err error) { fault.Store(&err) }
	set(errors.New("the first list is not complete"))
	r := start(t, unreachableCore(t), func(f *Frontend) {
		f.Checks = []Check{
			{Name: "caches", Every: time.Millisecond, Run: func(context.Context) error { return *fault.Load() }},
			{Name: "rights", Run: func(context.Context) error { return nil }},
		}
	})
	health := healthpb.NewHealthClient(r.conn)
	serving := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		resp, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	eventually(t, "the check's text at /readyz", func() bool {
		a := r.rest(t, http.MethodGet, "/readyz?verbose", "")
		return a.code == http.StatusServiceUnavailable && strings.Contains(a.body, "[-] caches: the first list is not complete") &&
			strings.Contains(a.body, "[+] rights: ok")
	})
	for _, service := range []string{"", "finalizer.v1.FinalizerService"} {
		if got := serving(service); got != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health of %q is %s before the caches are filled", service, got)
		}
	}
	for _, path := range []string{"/healthz", "/livez"} {
		if a := r.rest(t, http.MethodGet, path, ""); a.code != http.StatusOK {
			t.Errorf("%s: HTTP %d while not ready", path, a.code)
		}
	}
	set(nil)
	eventually(t, "ready", func() bool { return r.rest(t, http.MethodGet, "/readyz", "").code == http.StatusOK })
	for _, service := range []string{"", "finalizer.v1.FinalizerService"} {
		if got := serving(service); got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q is %s when ready", service, got)
		}
	}
	set(errors.New("may not: patch pods"))
	eventually(t, "B14 not ready any more, with verb and resource", func() bool {
		return strings.Contains(r.rest(t, http.MethodGet, "/readyz", "").body, "patch pods")
	})
	if got := serving(""); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health is %s", got)
	}
}

func TestReflectionNamesTheServiceInBothVersions(t *testing.T) {
	r := start(t, unreachableCore(t))
	const want = "finalizer.v1.FinalizerService"
	// The messages of the two versions are the same on the wire.
	for _, version := range []string{"v1", "v1alpha"} {
		stream, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
			"/grpc.reflection."+version+".ServerReflection/ServerReflectionInfo")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		got := new(reflectionv1.ServerReflectionResponse)
		if err := stream.RecvMsg(got); err != nil || !strings.Contains(got.String(), want) {
			t.Errorf("%s: %v %v", version, got, err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenAPIAndMetricsAreServed(t *testing.T) {
	r := start(t, failingCore(&finalizer.Error{Kind: finalizer.KindBusy, Message: "m"}))
	a := r.rest(t, http.MethodGet, "/openapi.json", "")
	var doc struct{ Paths map[string]any }
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil || len(doc.Paths) != 8 {
		t.Errorf("openapi has %d paths, error %v", len(doc.Paths), err)
	}
	_ = callAll(t.Context(), r)
	if err := r.conn.Invoke(t.Context(), "/made.up/Name", &pb.GetPodRequest{}, &pb.GetPodResponse{}); err == nil {
		t.Error("an unknown method answered")
	}
	a = r.rest(t, http.MethodGet, "/metrics", "")
	for _, want := range []string{
		`grpc_server_handled_total{grpc_code="ResourceExhausted",grpc_method="GetPod",grpc_service="finalizer.v1.FinalizerService",grpc_type="unary"} 1`,
		`grpc_server_handled_total{grpc_code="ResourceExhausted",grpc_method="WatchWorkflowPods",grpc_service="finalizer.v1.FinalizerService",grpc_type="server_stream"} 1`,
		`grpc_service="unknown"`,
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(a.body, "made.up") {
		t.Error("a name that a caller made up is a label")
	}
}

func TestDeadlines(t *testing.T) {
	var left atomic.Int64
	core := failingCore(nil)
	note := func(ctx context.Context) {
		at, ok := ctx.Deadline()
		if !ok {
			left.Store(-1)
			return
		}
		left.Store(int64(time.Until(at)))
	}
	core.get = func(ctx context.Context, _, _ string) (finalizer.View, error) {
		note(ctx)
		return finalizer.View{}, nil
	}
	core.bulk = func(ctx context.Context, _ finalizer.BulkRequest) ([]finalizer.Result, error) {
		note(ctx)
		return nil, nil
	}
	core.watch = func(ctx context.Context, _ finalizer.WatchRequest, _ func(finalizer.Step) error) error {
		note(ctx)
		return nil
	}
	core.list = func(ctx context.Context, _ finalizer.ListRequest) (finalizer.Page, error) {
		<-ctx.Done()
		return finalizer.Page{}, ctx.Err()
	}
	r := start(t, core, func(f *Frontend) { f.DefaultDeadline = 10 * time.Minute })
	get := func(ctx context.Context) {
		if _, err := r.GetPod(ctx, &pb.GetPodRequest{Namespace: "argo", Pod: "p"}); err != nil {
			t.Error(err)
		}
	}
	within := func(name string, low, high time.Duration) {
		t.Helper()
		if got := time.Duration(left.Load()); got <= low || got > high {
			t.Errorf("%s: %s is left, want more than %s and at most %s", name, got, low, high)
		}
	}
	get(t.Context())
	within("a call without a deadline", 9*time.Minute, 10*time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	get(ctx)
	within("a call with its own", 59*time.Minute, time.Hour)
	ctx, cancel = context.WithTimeout(t.Context(), 1000*time.Hour)
	defer cancel()
	get(ctx)
	within("a call with an absurd one", 24*time.Hour, maxDeadline)
	r.rest(t, http.MethodGet, "/v1/namespaces/argo/pods/p", "", "Grpc-Timeout", "20M")
	within("a call over REST with a header", 19*time.Minute, 20*time.Minute)
	r.rest(t, http.MethodGet, "/v1/namespaces/argo/pods/p", "")
	within("a call over REST without", 9*time.Minute, 10*time.Minute)
	if _, err := r.DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true,
		Wait: true, WaitTimeout: durationpb.New(time.Hour)}); err != nil {
		t.Error(err)
	}
	within("a call that says how long it waits", time.Hour, 70*time.Minute)
	checkRESTError(t, r.rest(t, http.MethodGet, "/v1/pods", "", "Grpc-Timeout", "30m"), rowOf(t, pb.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED))
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := r.ListPods(ctx, &pb.ListPodsRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a deadline that passed is told as %v", err)
	}
	if err := watchError(r.WatchWorkflowPods(t.Context(), &pb.WatchWorkflowPodsRequest{Namespace: "argo", Workflow: "w"})); err != nil {
		t.Error(err)
	}
	if left.Load() != -1 {
		t.Error("a watch has got a deadline that nobody asked for")
	}
}

func TestAccessLog(t *testing.T) {
	r := start(t, failingCore(nil))
	if _, err := r.GetPod(t.Context(), &pb.GetPodRequest{Namespace: "argo", Pod: "read-1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReleasePod(t.Context(), &pb.ReleasePodRequest{Namespace: "argo", Pod: "write-1", PodUid: uid1}); err != nil {
		t.Fatal(err)
	}
	r.rest(t, http.MethodPost, "/v1/namespaces/argo/workflows/forced:deletePods", `{"all":true,"force":true}`,
		"X-Forwarded-For", "6.6.6.6", "Grpc-Metadata-X-Forwarded-For", "6.6.6.6")
	if _, err := r.GetPod(t.Context(), &pb.GetPodRequest{Namespace: "argo", Pod: strings.Repeat("x", 1<<20)}); err == nil {
		t.Fatal("accepted")
	}
	lines := r.log.lines(t, "call")
	if len(lines) != 4 {
		t.Fatalf("%d lines for 4 calls", len(lines))
	}
	for i, want := range []map[string]any{
		{"level": "DEBUG", "method": "GetPod", "pod": "read-1", "code": "OK", "audit": nil},
		{"level": "INFO", "method": "ReleasePod", "namespace": "argo", "pod": "write-1", "pod_uid": uid1, "audit": nil},
		{"level": "WARN", "method": "DeleteWorkflowPods", "workflow": "forced", "audit": true, "force": true, "peer": "http:127.0.0.1"},
		{"level": "DEBUG", "code": "InvalidArgument", "reason": "INVALID_ARGUMENT"},
	} {
		for key, value := range want {
			if lines[i][key] != value {
				t.Errorf("line %d: %s is %v, want %v", i, key, lines[i][key], value)
			}
		}
	}
	if peer, _ := lines[1]["peer"].(string); !strings.HasPrefix(peer, "127.0.0.1:") {
		t.Errorf("peer over gRPC is %q", peer)
	}
	if pod, _ := lines[3]["pod"].(string); len(pod) > 300 {
		t.Errorf("a name of %d bytes is in the log", len(pod))
	}
}

func TestWatchOverRESTComesLineByLine(t *testing.T) {
	next := make(chan error)
	core := unreachableCore(t)
	core.watch = func(ctx context.Context, _ finalizer.WatchRequest, send func(finalizer.Step) error) error {
		if err := send(finalizer.Step{Snapshot: true, TotalPods: 1}); err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-next:
				if err != nil {
					return err
				}
				if err := send(finalizer.Step{GonePods: 1}); err != nil {
					return err
				}
			}
		}
	}
	r := start(t, core)
	resp, err := r.web.Get(r.url + "/v1/namespaces/argo/workflows/w/pods:watch")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); ct != "application/x-ndjson" {
		t.Errorf("content type is %q", ct)
	}
	lines := bufio.NewReader(resp.Body)
	read := func() map[string]any {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	// Each line is read before the next is sent, so it was flushed.
	if first, _ := read()["result"].(map[string]any); first["snapshot"] != true {
		t.Errorf("the first line is %v", first)
	}
	next <- nil
	if second, _ := read()["result"].(map[string]any); second["snapshot"] != false {
		t.Errorf("the second line is %v", second)
	}
	next <- &finalizer.Error{Kind: finalizer.KindNotSynced, Message: "m"}
	last, _ := read()["error"].(map[string]any)
	if last["code"] != float64(codes.Unavailable) || !strings.Contains(toJSON(t, last), `"NOT_SYNCED"`) {
		t.Errorf("the last line is %v", last)
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the error comes %v", err)
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestListenersAreCheckedBeforeAnythingStarts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tc := range []struct {
		name, grpc, http string
		open             bool
		want             string
	}{
		{"the gRPC port is in use", taken.Addr().String(), "127.0.0.1:0", false, "--grpc-address"},
		{"the HTTP port is in use", "127.0.0.1:0", taken.Addr().String(), false, "--http-address"},
		{"all interfaces", ":0", "127.0.0.1:0", false, "--danger-listen-without-authentication"},
		{"all interfaces of IPv6", "127.0.0.1:0", "[::]:0", false, "--danger-listen-without-authentication"},
		{"a public address", "192.0.2.1:0", "127.0.0.1:0", false, "--danger-listen-without-authentication"},
		{"a name that is not localhost", "example.com:0", "127.0.0.1:0", false, "--danger-listen-without-authentication"},
		{"no port", "127.0.0.1", "127.0.0.1:0", true, "host:port"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Serve(t.Context(), Frontend{
				Core: unreachableCore(t), Log: discard(), GRPCAddress: tc.grpc, HTTPAddress: tc.http, AllowUnauthenticated: tc.open,
				Listening: func(Addresses) { t.Error("it listens") },
			})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a hint at %s", err, tc.want)
			}
		})
	}
	for _, good := range []string{"127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1"} {
		if err := CheckAddress(good, false); err != nil {
			t.Error(err)
		}
	}
	if err := CheckAddress("0.0.0.0:1", true); err != nil {
		t.Error(err)
	}
}
