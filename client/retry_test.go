package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestOnlyUnavailableIsRetried(t *testing.T) {
	tests := map[string]struct {
		err      error
		attempts int
	}{
		"UNAVAILABLE is tried four times":               {refusal(codes.Unavailable, "API_UNAVAILABLE", "down"), 4},
		"UNAVAILABLE with RetryInfo is, too":            {refusal(codes.Unavailable, "API_THROTTLED", "slow down", retryIn(time.Second)), 4},
		"WORKFLOW_BUSY is the caller's to repeat":       {refusal(codes.ResourceExhausted, "WORKFLOW_BUSY", "busy", retryIn(time.Second)), 1},
		"a refusal is final":                            {refusal(codes.FailedPrecondition, "POD_NOT_CAPTURED", "not captured"), 1},
		"a fault of the service is not tried again":     {refusal(codes.Internal, "INTERNAL", "fault"), 1},
		"a deadline leaves open what was done":          {refusal(codes.DeadlineExceeded, "DEADLINE_EXCEEDED", "late"), 1},
		"ABORTED and its kin of other services are not": {status.Error(codes.Aborted, "aborted"), 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeService{release: func(context.Context, int, *finalizerv1.ReleasePodRequest) (*finalizerv1.ReleasePodResponse, error) {
					return nil, tt.err
				}}
				c := connect(t, f)
				_, err := c.ReleasePod(t.Context(), &finalizerv1.ReleasePodRequest{})
				if status.Code(err) != status.Code(tt.err) || client.Reason(err) != client.Reason(tt.err) {
					t.Errorf("ReleasePod: %v, want %v", err, tt.err)
				}
				if f.attempts != tt.attempts {
					t.Errorf("%d attempts, want %d", f.attempts, tt.attempts)
				}
			})
		})
	}
}

func TestARetryThatSucceedsIsNotSeenByTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{release: func(_ context.Context, attempt int, r *finalizerv1.ReleasePodRequest) (*finalizerv1.ReleasePodResponse, error) {
			if attempt < 3 {
				return nil, refusal(codes.Unavailable, "NO_LEADER", "no replica holds the lease")
			}
			return released(r.GetPod(), r.GetPodUid()), nil
		}}
		c := connect(t, f)
		begin := time.Now()
		if _, err := c.ReleasePod(t.Context(), &finalizerv1.ReleasePodRequest{}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < 200*time.Millisecond || d > time.Second {
			t.Errorf("two retries took %v, want the back-off of 0.1 s and 0.2 s, give or take its jitter", d)
		}
	})
}

// B23: what gRPC repeats must be recognised as the same request.
func TestB23EveryAttemptOfABulkCallCarriesOneRequestID(t *testing.T) {
	tests := map[string]struct {
		request *finalizerv1.DeleteWorkflowPodsRequest
		want    func(id string) bool
	}{
		"a random one where the caller gave none": {
			&finalizerv1.DeleteWorkflowPodsRequest{All: true},
			func(id string) bool { return len(id) >= 20 && len(id) <= 128 },
		},
		"the caller's where it gave one": {
			&finalizerv1.DeleteWorkflowPodsRequest{All: true, RequestId: "retry-7"},
			func(id string) bool { return id == "retry-7" },
		},
		"none where nothing is written": {
			&finalizerv1.DeleteWorkflowPodsRequest{All: true, ValidateOnly: true},
			func(id string) bool { return id == "" },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ids []string
				f := &fakeService{delete: func(_ context.Context, attempt int, r *finalizerv1.DeleteWorkflowPodsRequest) (*finalizerv1.DeleteWorkflowPodsResponse, error) {
					ids = append(ids, r.GetRequestId())
					if attempt == 1 {
						return nil, refusal(codes.Unavailable, "NO_LEADER", "no replica holds the lease")
					}
					return &finalizerv1.DeleteWorkflowPodsResponse{}, nil
				}}
				c := connect(t, f)
				before := tt.request.GetRequestId()
				if _, err := c.DeleteWorkflowPods(t.Context(), tt.request); err != nil {
					t.Fatal(err)
				}
				if len(ids) != 2 || ids[0] != ids[1] || !tt.want(ids[0]) {
					t.Errorf("request IDs of the attempts: %q", ids)
				}
				if tt.request.GetRequestId() != before {
					t.Error("the caller's message was changed")
				}
			})
		})
	}
}

func TestDeadlines(t *testing.T) {
	wait := &finalizerv1.DeleteWorkflowPodsRequest{All: true, Wait: true, WaitTimeout: durationpb.New(time.Minute)}
	tests := map[string]struct {
		request *finalizerv1.DeleteWorkflowPodsRequest
		own     time.Duration
		opts    []client.Option
		want    time.Duration // 0: none
	}{
		"a call without a deadline gets 30 s":             {request: &finalizerv1.DeleteWorkflowPodsRequest{All: true}, want: 30 * time.Second},
		"a call that waits gets its wait_timeout on top":  {request: wait, want: 90 * time.Second},
		"the caller's own deadline stays":                 {request: wait, own: 5 * time.Second, want: 5 * time.Second},
		"the option replaces the 30 s":                    {request: &finalizerv1.DeleteWorkflowPodsRequest{All: true}, opts: []client.Option{client.WithDefaultTimeout(time.Second)}, want: time.Second},
		"zero switches the default off":                   {request: wait, opts: []client.Option{client.WithDefaultTimeout(0)}},
		"a wait_timeout that is no duration changes none": {request: &finalizerv1.DeleteWorkflowPodsRequest{Wait: true, WaitTimeout: &durationpb.Duration{Seconds: -1 << 62}}, want: 30 * time.Second},
		"an immense wait_timeout does not wrap around":    {request: &finalizerv1.DeleteWorkflowPodsRequest{Wait: true, WaitTimeout: &durationpb.Duration{Seconds: 1 << 62}}, want: 24*time.Hour + 30*time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got time.Duration
				c := connect(t, &fakeService{delete: func(ctx context.Context, _ int, _ *finalizerv1.DeleteWorkflowPodsRequest) (*finalizerv1.DeleteWorkflowPodsResponse, error) {
					if at, ok := ctx.Deadline(); ok {
						got = time.Until(at)
					}
					return &finalizerv1.DeleteWorkflowPodsResponse{}, nil
				}}, tt.opts...)
				ctx := context.Background()
				if tt.own != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.own)
					defer cancel()
				}
				if _, err := c.DeleteWorkflowPods(ctx, tt.request); err != nil {
					t.Fatal(err)
				}
				// The wire rounds a long deadline, at most to the minute.
				if d := (got - tt.want).Abs(); d > time.Minute || d > tt.want/1000 {
					t.Errorf("the service saw a deadline in %v, want %v", got, tt.want)
				}
			})
		})
	}
}

func TestAnAnswerMayBeLargerThanTheDefaultOfGRPC(t *testing.T) {
	results := make([]*finalizerv1.PodResult, 10_000)
	for i := range results {
		results[i] = &finalizerv1.PodResult{Message: string(make([]byte, 600))}
	}
	c := connect(t, &fakeService{delete: func(context.Context, int, *finalizerv1.DeleteWorkflowPodsRequest) (*finalizerv1.DeleteWorkflowPodsResponse, error) {
		return &finalizerv1.DeleteWorkflowPodsResponse{Results: results}, nil
	}})
	answer, err := c.DeleteWorkflowPods(t.Context(), &finalizerv1.DeleteWorkflowPodsRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(answer.GetResults()); n != len(results) {
		t.Errorf("%d results, want %d", n, len(results))
	}
}
