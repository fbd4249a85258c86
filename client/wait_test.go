package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type watchStream = grpc.ServerStreamingServer[finalizerv1.WatchWorkflowPodsResponse]

// steps sends one step for each count of pods.
func steps(s watchStream, pods ...int32) error {
	for i, n := range pods {
		err := s.Send(&finalizerv1.WatchWorkflowPodsResponse{
			Snapshot: i == 0,
			Progress: &finalizerv1.Progress{Pods: n, Held: n},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func TestB24WaitGone(t *testing.T) {
	down := refusal(codes.Unavailable, "NOT_SYNCED", "caches are not filled")
	tests := map[string]struct {
		// watch is what the service does with the stream of this attempt.
		watch    func(attempt int, s watchStream) error
		progress []int32
		attempts int
		reason   finalizerv1.ErrorReason
		code     codes.Code
	}{
		"returns when the pods are gone": {
			watch:    func(_ int, s watchStream) error { return steps(s, 2, 1, 0) },
			progress: []int32{2, 1, 0},
			attempts: 1,
		},
		"returns at once for a workflow without pods": {
			watch:    func(_ int, s watchStream) error { return steps(s, 0) },
			progress: []int32{0},
			attempts: 1,
		},
		"opens a broken stream again": {
			watch: func(attempt int, s watchStream) error {
				if attempt == 1 {
					return errors.Join(steps(s, 3, 2), down)
				}
				return steps(s, 1, 0)
			},
			progress: []int32{3, 2, 1, 0},
			attempts: 2,
		},
		"outlasts a service that is down for longer than gRPC retries": {
			watch: func(attempt int, s watchStream) error {
				if attempt < 20 {
					return down
				}
				return steps(s, 0)
			},
			progress: []int32{0},
			attempts: 20,
		},
		"does not take the end of a stream for the end of the pods": {
			watch: func(attempt int, s watchStream) error {
				switch attempt {
				case 1:
					return nil // not even a snapshot
				case 2:
					return steps(s, 2)
				}
				return steps(s, 0)
			},
			progress: []int32{2, 0},
			attempts: 3,
		},
		"opens a stream again that a proxy cut off in time": {
			watch: func(attempt int, s watchStream) error {
				if attempt == 1 {
					return errors.Join(steps(s, 1), status.Error(codes.DeadlineExceeded, "stream timeout"))
				}
				return steps(s, 0)
			},
			progress: []int32{1, 0},
			attempts: 2,
		},
		"returns an error that waiting does not mend": {
			watch: func(int, watchStream) error {
				return refusal(codes.PermissionDenied, "PERMISSION_DENIED", "may not")
			},
			attempts: 1,
			reason:   finalizerv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
			code:     codes.PermissionDenied,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeService{watch: func(attempt int, r *finalizerv1.WatchWorkflowPodsRequest, s watchStream) error {
					if r.GetNamespace() != "argo" || r.GetWorkflow() != "hello" || r.GetWorkflowUid() != "wf-1" || r.GetUntil() != finalizerv1.WatchUntil_WATCH_UNTIL_GONE {
						t.Errorf("the service was asked %v", r)
					}
					return flat(tt.watch(attempt, s))
				}}
				var progress []int32
				err := client.WaitGone(t.Context(), connect(t, f), "argo", "hello", "wf-1", func(p *finalizerv1.Progress) {
					progress = append(progress, p.GetPods())
				})
				if client.Reason(err) != tt.reason || status.Code(err) != tt.code {
					t.Errorf("WaitGone: %v, want %v %v", err, tt.code, tt.reason)
				}
				if diff := cmp.Diff(tt.progress, progress); diff != "" {
					t.Errorf("progress (-want +got):\n%s", diff)
				}
				if f.attempts != tt.attempts {
					t.Errorf("%d streams, want %d", f.attempts, tt.attempts)
				}
			})
		})
	}
}

// flat turns a joined error into the status in it: a gRPC server does not unwrap.
func flat(err error) error {
	if err == nil {
		return nil
	}
	var st interface{ GRPCStatus() *status.Status }
	if errors.As(err, &st) {
		return st.GRPCStatus().Err()
	}
	return err
}

func TestB24WaitGoneSaysWhatIsLeftWhenItsDeadlinePasses(t *testing.T) {
	tests := map[string]struct {
		watch func(s watchStream) error
		want  string
	}{
		"while a stream is open": {
			func(s watchStream) error {
				if err := steps(s, 3); err != nil {
					return err
				}
				<-s.Context().Done()
				return status.FromContextError(s.Context().Err()).Err()
			},
			"wait until the pods of workflow argo/hello are gone: 3 pods left, 3 of them held: context deadline exceeded",
		},
		"while the service is down": {
			func(watchStream) error { return refusal(codes.Unavailable, "NO_LEADER", "") },
			"wait until the pods of workflow argo/hello are gone: the service was not heard: context deadline exceeded",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				c := connect(t, &fakeService{watch: func(_ int, _ *finalizerv1.WatchWorkflowPodsRequest, s watchStream) error { return tt.watch(s) }})
				begin := time.Now()
				err := client.WaitGone(ctx, c, "argo", "hello", "", nil)
				if !errors.Is(err, context.DeadlineExceeded) || err.Error() != tt.want {
					t.Errorf("WaitGone: %v, want %s", err, tt.want)
				}
				if d := time.Since(begin); d != time.Minute {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

func TestWaitGonePausesAsLongAsTheServiceAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		c := connect(t, &fakeService{watch: func(_ int, _ *finalizerv1.WatchWorkflowPodsRequest, s watchStream) error {
			if time.Since(begin) < 30*time.Second {
				// Headers first, so that gRPC itself does not repeat the call.
				return flat(errors.Join(s.SendHeader(nil), refusal(codes.Unavailable, "API_THROTTLED", "", retryIn(30*time.Second))))
			}
			return steps(s, 0)
		}})
		if err := client.WaitGone(t.Context(), c, "argo", "hello", "", nil); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d != 30*time.Second {
			t.Errorf("opened again after %v, want 30 s", d)
		}
	})
}
