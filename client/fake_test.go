package client_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// inMemory is a target that the client takes for this machine; connect dials the
// fake service whatever it says.
const inMemory = "passthrough:///127.0.0.1:2748"

// fakeService answers with what the test puts into it and remembers what it was
// sent. A nil function is UNIMPLEMENTED.
type fakeService struct {
	finalizerv1.UnimplementedFinalizerServiceServer
	release func(ctx context.Context, attempt int, r *finalizerv1.ReleasePodRequest) (*finalizerv1.ReleasePodResponse, error)
	delete  func(ctx context.Context, attempt int, r *finalizerv1.DeleteWorkflowPodsRequest) (*finalizerv1.DeleteWorkflowPodsResponse, error)
	watch   func(attempt int, r *finalizerv1.WatchWorkflowPodsRequest, s grpc.ServerStreamingServer[finalizerv1.WatchWorkflowPodsResponse]) error

	mu       sync.Mutex
	attempts int
	tokens   []string
	agents   []string
}

// attempt counts a call as it reaches the service, from 1.
func (f *fakeService) attempt(ctx context.Context) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	md, _ := metadata.FromIncomingContext(ctx)
	f.tokens = append(f.tokens, md.Get("authorization")...)
	f.agents = append(f.agents, md.Get("user-agent")...)
	f.attempts++
	return f.attempts
}

func (f *fakeService) ReleasePod(ctx context.Context, r *finalizerv1.ReleasePodRequest) (*finalizerv1.ReleasePodResponse, error) {
	n := f.attempt(ctx)
	if f.release == nil {
		return f.UnimplementedFinalizerServiceServer.ReleasePod(ctx, r)
	}
	return f.release(ctx, n, r)
}

func (f *fakeService) DeleteWorkflowPods(ctx context.Context, r *finalizerv1.DeleteWorkflowPodsRequest) (*finalizerv1.DeleteWorkflowPodsResponse, error) {
	n := f.attempt(ctx)
	if f.delete == nil {
		return f.UnimplementedFinalizerServiceServer.DeleteWorkflowPods(ctx, r)
	}
	return f.delete(ctx, n, r)
}

func (f *fakeService) WatchWorkflowPods(r *finalizerv1.WatchWorkflowPodsRequest, s grpc.ServerStreamingServer[finalizerv1.WatchWorkflowPodsResponse]) error {
	n := f.attempt(s.Context())
	if f.watch == nil {
		return f.UnimplementedFinalizerServiceServer.WatchWorkflowPods(r, s)
	}
	return f.watch(n, r, s)
}

// start serves f in memory and returns a client of it. Without options the
// client is one of plaintext.
func start(f *fakeService, opts ...client.Option) (c *client.Client, stop func(), err error) {
	listener := bufconn.Listen(64 << 10)
	server := grpc.NewServer()
	finalizerv1.RegisterFinalizerServiceServer(server, f)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with Stop
	}()
	dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return listener.DialContext(ctx)
	})
	opts = append([]client.Option{client.WithInsecure(), client.WithDialOptions(dial)}, opts...)
	c, err = client.New(inMemory, opts...)
	return c, func() {
		if c != nil {
			_ = c.Close()
		}
		server.Stop()
		<-served
	}, err
}

func connect(t *testing.T, f *fakeService, opts ...client.Option) *client.Client {
	t.Helper()
	c, stop, err := start(f, opts...)
	t.Cleanup(stop)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refusal is an error as the service raises it.
func refusal(code codes.Code, reason, message string, details ...protoadapt.MessageV1) error {
	details = append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: "finalizerd.dev"}}, details...)
	st, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		return err
	}
	return st.Err()
}

func retryIn(d time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

func released(pod, uid string) *finalizerv1.ReleasePodResponse {
	return &finalizerv1.ReleasePodResponse{Result: &finalizerv1.PodResult{
		Pod: pod, PodUid: uid, Outcome: finalizerv1.Outcome_OUTCOME_RELEASED,
	}}
}
