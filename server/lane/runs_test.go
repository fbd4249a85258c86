package lane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLaneStaysHeldUntilACancelledRunReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCallScript(t, Options{})
		b.open()
		b.callWith(t.Context(), "x", podCall{}, func(context.Context) (string, error) {
			pass(time.Minute) // deaf to its context
			return "", nil
		})
		b.hangUp("x")
		if b.got("x") != context.Canceled {
			t.Error("x did not leave at once")
		}
		start := time.Now()
		release, err := b.l.Exclusive(t.Context(), wf)
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("the lane was free after %v, its holder ran for 1m", waited)
		}
		release()
	})
}

func TestRunContextHasTheLatestDeadlineAndTheCallersValues(t *testing.T) {
	type nameKey struct{}
	cases := map[string]struct {
		timeouts []time.Duration // 0: none
		want     time.Duration   // 0: none
	}{
		"the latest of all":                  {[]time.Duration{2 * time.Second, 9 * time.Second, 5 * time.Second}, 9 * time.Second},
		"none when one of them has none":     {[]time.Duration{2 * time.Second, 0, 5 * time.Second}, 0},
		"those who left before do not count": {[]time.Duration{time.Second, 3 * time.Second, 4 * time.Second / 4}, 3 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newCallScript(t, Options{})
				start := time.Now()
				var got time.Duration
				var by any
				for i, timeout := range tc.timeouts {
					ctx, cancel := context.WithCancel(context.WithValue(t.Context(), nameKey{}, i))
					if timeout > 0 {
						ctx, cancel = context.WithTimeout(ctx, timeout)
					}
					defer cancel()
					b.callWith(ctx, fmt.Sprint(i), podCall{}, func(ctx context.Context) (string, error) {
						if d, ok := ctx.Deadline(); ok {
							got = d.Sub(start)
						}
						by = ctx.Value(nameKey{})
						if by != i {
							t.Errorf("fn of %d runs with the values of %v", i, by)
						}
						return "", nil
					})
				}
				pass(1500 * time.Millisecond)
				b.open()
				synctest.Wait()
				if got != tc.want {
					t.Errorf("deadline after %v, want %v", got, tc.want)
				}
				if by == nil {
					t.Error("fn did not run with a caller's values")
				}
			})
		})
	}
}

func TestJoinedCallersCountAsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCallScript(t, Options{MaxWaiters: 2})
		b.call("x", podCall{})
		b.call("y", podCall{})
		b.call("z", podCall{})
		b.want(nil, map[string]answer{"z": {"", false, ErrBusy}})
		if d := cmp.Diff(Depth{Lanes: 1, Holders: 1, Waiters: 2}, b.l.Depth()); d != "" {
			t.Errorf("depth (-want +got):\n%s", d)
		}
		b.call("other", podCall{uid: "other"})
		b.hangUp("x")
		b.call("z", podCall{})
		b.open()
		pass(time.Minute)
		b.want([]string{"y"}, map[string]answer{
			"x": {"", false, context.Canceled}, "other": {"", false, ErrBusy},
			"y": {"by y", true, nil}, "z": {"by y", true, nil},
		})
		if d := b.l.Depth(); d != (Depth{}) {
			t.Errorf("left behind: %+v", d)
		}
	})
}

func TestPanicInACallDoesNotWedgeTheLane(t *testing.T) {
	broken := errors.New("broken")
	cases := map[string]struct {
		fn   func(context.Context) (string, error)
		want string
		is   error
	}{
		"panic with an error":  {func(context.Context) (string, error) { panic(broken) }, "lane: call panicked: broken", broken},
		"panic with a text":    {func(context.Context) (string, error) { panic("text") }, "lane: call panicked: text", nil},
		"end of the goroutine": {func(context.Context) (string, error) { runtime.Goexit(); return "", nil }, "lane: call panicked: runtime.Goexit called", nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newCallScript(t, Options{})
				b.callWith(t.Context(), "x", podCall{}, tc.fn)
				b.callWith(t.Context(), "y", podCall{}, tc.fn)
				b.call("next", podCall{uid: "next"})
				b.open()
				pass(time.Minute)
				synctest.Wait()
				for _, who := range []string{"x", "y"} {
					var panicked *PanicError
					err := b.got(who)
					if !errors.As(err, &panicked) || err.Error() != tc.want || tc.is != nil && !errors.Is(err, tc.is) {
						t.Errorf("%s got %v, want %s", who, err, tc.want)
					}
				}
				if d := cmp.Diff([]string{"next"}, b.runs); d != "" {
					t.Errorf("the lane is wedged (-want +got):\n%s", d)
				}
				if d := b.l.Depth(); d != (Depth{}) {
					t.Errorf("left behind: %+v", d)
				}
			})
		})
	}
}

func TestObserveIsToldOncePerRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []time.Duration
		b := newCallScript(t, Options{Observe: func(k Kind, d time.Duration) {
			if k == KindShared {
				got = append(got, d)
			}
		}})
		b.call("x", podCall{})
		pass(time.Second)
		b.call("y", podCall{})
		pass(time.Second)
		b.open()
		pass(time.Minute)
		synctest.Wait()
		if d := cmp.Diff([]time.Duration{2 * time.Second}, got); d != "" {
			t.Errorf("observed (-want +got):\n%s", d)
		}
	})
}

// The promise of a joined answer under real concurrency: it rests on a state
// read after the call came, one run at a time per pod, none beside an
// exclusive holder.
func TestB22AnswersAreNeverOlderThanTheirCalls(t *testing.T) {
	l := New[string, int](Options{})
	c := NewCalls[string, int, int, int64](l)
	var clock, runs, joined atomic.Int64
	var subs [3]struct{ n int } // unguarded: -race watches them
	var wg sync.WaitGroup
	for worker := range 300 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), 4))
			for range 30 {
				if rnd.IntN(10) == 0 {
					release, err := l.Exclusive(t.Context(), "wf")
					if err != nil {
						t.Error(err)
						return
					}
					for i := range subs {
						subs[i].n++
					}
					release()
					continue
				}
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(3) == 0 {
					go cancel()
				}
				sub := rnd.IntN(len(subs))
				came := clock.Add(1)
				read, shared, err := c.Do(ctx, "wf", sub, rnd.IntN(2), func(context.Context) (int64, error) {
					runs.Add(1)
					subs[sub].n++
					runtime.Gosched()
					return clock.Add(1), nil
				})
				if err == nil && read < came {
					t.Errorf("came at %d, got what was read at %d", came, read)
				}
				if err != nil && err != context.Canceled {
					t.Error(err)
				}
				if shared {
					joined.Add(1)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	// Runs whose callers all left may still be on their way out; the lane
	// comes free behind them.
	release, err := l.Exclusive(t.Context(), "wf")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if d := l.Depth(); d != (Depth{}) || len(c.waiting) != 0 {
		t.Errorf("left behind: %+v, %d calls", d, len(c.waiting))
	}
	if joined.Load() == 0 {
		t.Error("no calls were ever joined")
	}
	t.Logf("%d runs, %d answers shared", runs.Load(), joined.Load())
}
