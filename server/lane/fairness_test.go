package lane

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestExclusiveIsNotStarvedByAFlowOfSharedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[workflow, string](Options{})
		ctx, stop := context.WithCancel(t.Context())
		var flow sync.WaitGroup
		defer flow.Wait()
		defer stop()
		// Overlapping shared holders: at no moment is the lane free.
		for i := range 20 {
			flow.Go(func() {
				pass(time.Duration(i) * time.Millisecond)
				for {
					release, err := l.Shared(ctx, wf, fmt.Sprint("pod-", i))
					if err != nil {
						return
					}
					pass(20 * time.Millisecond)
					release()
				}
			})
		}
		pass(time.Second)
		start := time.Now()
		release, err := l.Exclusive(t.Context(), wf)
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited > 20*time.Millisecond {
			t.Errorf("waited %v for holders of 20ms", waited)
		}
		release()
	})
}

func TestSharedIsNotStarvedByAFlowOfExclusiveCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[workflow, string](Options{})
		ctx, stop := context.WithCancel(t.Context())
		var flow sync.WaitGroup
		defer flow.Wait()
		defer stop()
		for range 5 {
			flow.Go(func() {
				for {
					release, err := l.Exclusive(ctx, wf)
					if err != nil {
						return
					}
					pass(10 * time.Millisecond)
					release()
				}
			})
		}
		pass(time.Second + time.Millisecond)
		start := time.Now()
		release, err := l.Shared(t.Context(), wf, "pod")
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited > 50*time.Millisecond {
			t.Errorf("waited %v behind 5 holders of 10ms", waited)
		}
		release()
	})
}

func TestWaitersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, Options{MaxWaiters: 2})
		s.ask("e1", "")
		s.ask("e2", "")
		s.ask("a", "pod-a")
		s.ask("b", "pod-b")
		s.ask("e3", "")
		want := map[string]error{"b": ErrBusy, "e3": ErrBusy}
		if d := cmp.Diff(want, s.errs, cmp.Comparer(errors.Is)); d != "" {
			t.Errorf("refused (-want +got):\n%s", d)
		}
		s.wantDepth(Depth{Lanes: 1, Holders: 1, Waiters: 2})
		other, err := s.l.Exclusive(t.Context(), workflow{"ns", "other"})
		if err != nil {
			t.Errorf("another key: %v", err)
		}
		other()
		s.hangUp("a")
		s.ask("c", "pod-c")
		if err := s.errs["c"]; err != nil {
			t.Errorf("after one left: %v", err)
		}
		s.end("e1", "e2", "c")
		s.wantDepth(Depth{})
	})
}

func TestObserveIsToldOfEachGrant(t *testing.T) {
	type seen struct {
		Kind   string
		Waited time.Duration
	}
	synctest.Test(t, func(t *testing.T) {
		var got []seen
		s := newScript(t, Options{Observe: func(k Kind, d time.Duration) {
			got = append(got, seen{k.String(), d})
		}})
		s.ask("e", "")
		s.ask("a", "pod-a")
		s.ask("gives up", "pod-b")
		pass(time.Second)
		s.hangUp("gives up")
		pass(time.Second)
		s.end("e", "a")
		want := []seen{{"exclusive", 0}, {"shared", 2 * time.Second}}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("observed (-want +got):\n%s", d)
		}
	})
}

func TestIdleAndHeldLanesCostNoGoroutineAndIdleOnesNoEntry(t *testing.T) {
	l := New[int, int](Options{})
	before := runtime.NumGoroutine()
	var releases []func()
	for i := range 1000 {
		e, err := l.Exclusive(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Shared(t.Context(), -1, i)
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, e, s)
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
	if d := cmp.Diff(Depth{Lanes: 1001, Holders: 2000}, l.Depth()); d != "" {
		t.Errorf("depth while held (-want +got):\n%s", d)
	}
	for _, release := range releases {
		release()
	}
	if d := cmp.Diff(Depth{}, l.Depth()); d != "" || len(l.lanes) != 0 {
		t.Errorf("%d entries, depth when idle (-want +got):\n%s", len(l.lanes), d)
	}
}
