package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// cpus is an API server of n full CPUs: each serves one request after another.
type cpus []cpu

func newCPUs(n int, service, wire time.Duration) cpus {
	all := make(cpus, n)
	for i := range all {
		all[i].service, all[i].wire = service, wire
	}
	return all
}

func (c cpus) serve() {
	best := &c[0]
	for i := range c {
		if c[i].freeAt().Before(best.freeAt()) {
			best = &c[i]
		}
	}
	best.serve()
}

func (c *cpu) freeAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.free
}

// write takes a place, is served and gives it back; it returns how long it took.
func write(l *limiter, c claim, serve func()) time.Duration {
	began := time.Now()
	if l.acquire(context.Background(), c) != nil {
		panic("refused")
	}
	sent := time.Now()
	serve()
	l.release(c, sent, signalOK, 0)
	return time.Since(began)
}

// flood runs background writes of many workflows until stop, and returns a
// function that waits and tells how many there were.
func flood(l *limiter, workflows int, stop <-chan struct{}, serve func()) func() int {
	var all sync.WaitGroup
	var mu sync.Mutex
	written := 0
	for i := range workflows {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				write(l, background(fmt.Sprint(i)), serve)
				mu.Lock()
				written++
				mu.Unlock()
			}
		})
	}
	return func() int { all.Wait(); return written }
}

func (l *limiter) backgroundInFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.background.inFlight
}

func idle(t *testing.T, l *limiter) {
	t.Helper()
	for name, c := range map[string]*class{"callers": &l.callers, "background": &l.background} {
		if c.inFlight != 0 || len(c.using) != 0 || len(c.waiting) != 0 || c.turns != nil {
			t.Errorf("%s of an idle limiter: %+v", name, *c)
		}
	}
	if l.alarm != nil {
		t.Error("an idle limiter holds a timer")
	}
}

func TestCallsAreFastWhileTheBackgroundFloods(t *testing.T) {
	cases := map[string]struct {
		cpus          int
		service, wire time.Duration
	}{
		"a full CPU":                   {1, 1700 * time.Microsecond, 0},
		"two CPUs":                     {2, 1700 * time.Microsecond, 0},
		"two CPUs behind wire latency": {2, 1700 * time.Microsecond, 5 * time.Millisecond},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(64)
				server := newCPUs(tc.cpus, tc.service, tc.wire)
				alone := write(l, caller("x"), server.serve)
				time.Sleep(3 * time.Second)
				stop := make(chan struct{})
				wait := flood(l, 300, stop, server.serve)
				time.Sleep(5 * time.Second)
				_, _, before := l.load()
				var took []time.Duration
				for i := range 100 {
					time.Sleep(time.Duration(37+i%29) * time.Millisecond)
					took = append(took, write(l, caller("x"), server.serve))
				}
				first := took[0]
				slices.Sort(took)
				median, high := took[len(took)/2], took[len(took)*95/100]
				_, _, after := l.load()
				t.Logf("alone %v; in the flood: first %v, median %v, 95%% %v; limit %d, then %d", alone, first, median, high, before, after)
				if median > 3*alone {
					t.Errorf("B22: median %v, alone %v", median, alone)
				}
				if high > 4*alone {
					t.Errorf("B22: 95%% %v, alone %v", high, alone)
				}
				if after > before {
					t.Errorf("the limit grew from %d to %d while the background stepped back", before, after)
				}
				close(stop)
				wait()
				idle(t, l)
			})
		})
	}
}

func TestBackgroundUsesAnIdleAPIServer(t *testing.T) {
	cases := map[string]struct {
		most, wantLimit, wantInFlight int
	}{
		"seven eighths of the limit": {64, 64, 56},
		"one place of two":           {2, 2, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(tc.most)
				stop := make(chan struct{})
				wait := flood(l, 300, stop, func() { time.Sleep(20 * time.Millisecond) })
				time.Sleep(5*time.Second + 5*time.Millisecond)
				if _, _, limit := l.load(); limit != tc.wantLimit || l.backgroundInFlight() != tc.wantInFlight {
					t.Errorf("limit %d with %d in flight, want %d with %d", limit, l.backgroundInFlight(), tc.wantLimit, tc.wantInFlight)
				}
				close(stop)
				wait()
				idle(t, l)
			})
		})
	}
}

func TestBackgroundStepsBackAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(64)
		serve := func() { time.Sleep(20 * time.Millisecond) }
		stop := make(chan struct{})
		wait := flood(l, 300, stop, serve)
		time.Sleep(5*time.Second + 5*time.Millisecond)
		if took := write(l, caller("x"), serve); took != 20*time.Millisecond {
			t.Errorf("a caller's first write took %v: it found no place at once", took)
		}
		for _, at := range []struct {
			after time.Duration
			want  int
		}{{time.Millisecond, 4}, {quietAfter - 2*time.Millisecond, 4}, {2 * time.Millisecond, 56}} {
			time.Sleep(at.after)
			synctest.Wait()
			if got := l.backgroundInFlight(); got != at.want {
				t.Errorf("%v later: %d background writes in flight, want %d", at.after, got, at.want)
			}
		}
		close(stop)
		wait()
		idle(t, l)
	})
}

func TestTheAlarmBringsTheBackgroundBackWithoutAnyOtherEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(16)
		hung := make(chan struct{})
		var all sync.WaitGroup
		write(l, caller("x"), func() {})
		began := time.Now()
		for i := range 20 {
			all.Go(func() { write(l, background(fmt.Sprint(i)), func() { <-hung }) })
		}
		synctest.Wait()
		if n := l.backgroundInFlight(); n != 1 {
			t.Errorf("%d in flight just after a call, want 1", n)
		}
		for l.backgroundInFlight() < 14 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if time.Since(began) > time.Minute {
				t.Fatal("the background waits for ever")
			}
		}
		if got := time.Since(began); got != quietAfter {
			t.Errorf("it came back after %v, want %v", got, quietAfter)
		}
		close(hung)
		all.Wait()
		idle(t, l)
	})
}

func TestCallersGoFirstAndTheBackgroundKeepsItsMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(2)
		var order []string
		var mu sync.Mutex
		var all sync.WaitGroup
		add := func(c claim, tag string) {
			all.Go(func() {
				write(l, c, func() {
					mu.Lock()
					order = append(order, tag)
					mu.Unlock()
					time.Sleep(10 * time.Millisecond)
				})
			})
			synctest.Wait()
		}
		add(caller("holder"), "holder")
		time.Sleep(5 * time.Millisecond) // so that places come back one by one
		add(caller("holder"), "holder")
		for i := range 3 {
			add(background(fmt.Sprint("b", i)), fmt.Sprint("b", i))
		}
		for i := range 6 {
			add(caller(fmt.Sprint("c", i%2)), "c")
		}
		all.Wait()
		// Of the two places, one comes to the background as soon as it has none.
		want := []string{"holder", "holder", "b0", "c", "b1", "c", "b2", "c", "c", "c", "c"}
		if diff := cmp.Diff(want, order); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		idle(t, l)
	})
}

func TestCallersGoFirstAboveTheMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(32)
		l.limit = 32 // two places for the background while callers write
		free, end := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { write(l, background("b"), func() { <-end }) })
		synctest.Wait()
		for i := range 31 {
			all.Go(func() { write(l, caller(fmt.Sprint(i)), func() { <-free }) })
		}
		synctest.Wait()
		var order []string
		wait := func(c claim, tag string) {
			all.Go(func() { write(l, c, func() { order = append(order, tag); <-end }) })
			synctest.Wait()
		}
		for i := range 2 { // first in time
			wait(background(fmt.Sprint("b", i)), "b")
		}
		for i := range 3 {
			wait(caller(fmt.Sprint("c", i)), "c")
		}
		for range 5 {
			free <- struct{}{}
			synctest.Wait()
		}
		if got := fmt.Sprint(order); got != "[c c c b]" {
			t.Errorf("order %s, want callers, then one more of the background and no second", got)
		}
		close(free)
		close(end)
		all.Wait()
		idle(t, l)
	})
}

func TestBackgroundIsNeverStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(16)
		serve := func() { time.Sleep(5 * time.Millisecond) }
		stop := make(chan struct{})
		var callers sync.WaitGroup
		for i := range 100 { // without a pause, more than the limit
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						write(l, caller(fmt.Sprint(i)), serve)
					}
				}
			})
		}
		wait := flood(l, 50, stop, serve)
		time.Sleep(10 * time.Second)
		close(stop)
		callers.Wait()
		if n := wait(); n < 1000 { // one place for ten seconds is 2,000
			t.Errorf("%d background writes in ten seconds of callers that never pause", n)
		}
		idle(t, l)
	})
}

func TestBackgroundTakesTurnsAcrossWorkflows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(2) // one place for the background
		var order []string
		var all sync.WaitGroup
		add := func(name string) {
			all.Go(func() {
				write(l, background(name), func() { order = append(order, name); time.Sleep(10 * time.Millisecond) })
			})
			synctest.Wait()
		}
		for range 100 {
			add("big")
		}
		for range 3 {
			add("small")
		}
		all.Wait()
		want := []string{"big", "big", "small", "big", "small", "big", "small", "big"}
		if diff := cmp.Diff(want, order[:8]); diff != "" {
			t.Errorf("B26: turns (-want +got)\n%s", diff)
		}
	})
}

func TestAHungBackgroundLeavesPlacesToCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(16)
		hung := make(chan struct{})
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() { write(l, background(fmt.Sprint(i)), func() { <-hung }) })
		}
		synctest.Wait()
		all.Go(func() { write(l, caller("hanging"), func() { <-hung }) })
		all.Go(func() { write(l, caller("hanging"), func() { <-hung }) })
		synctest.Wait()
		for i := range 40 {
			if took := write(l, caller("healthy"), func() { time.Sleep(time.Millisecond) }); took != time.Millisecond {
				t.Fatalf("B22: write %d of a healthy workflow took %v", i, took)
			}
		}
		close(hung)
		all.Wait()
		idle(t, l)
	})
}

func TestTheLimitIsNotLearntFromABackgroundThatStepsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(64)
		server := newCPUs(2, 1700*time.Microsecond, 0)
		stop := make(chan struct{})
		wait := flood(l, 300, stop, server.serve)
		time.Sleep(5 * time.Second)
		l.mu.Lock()
		limit, best := l.limit, l.best
		l.mu.Unlock()
		for range 500 { // calls one by one
			time.Sleep(10 * time.Millisecond)
			write(l, caller("x"), server.serve)
		}
		l.mu.Lock()
		if l.limit != limit || l.best != best {
			t.Errorf("limit %v and best %v became %v and %v", limit, best, l.limit, l.best)
		}
		l.mu.Unlock()
		close(stop)
		wait()
	})
}

func TestWritesOfAnotherMixAreNoMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(64)
		began := time.Now()
		for range 4 {
			if err := l.acquire(t.Context(), background("b")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		l.release(background("b"), began, signalOK, 0)
		write(l, caller("x"), func() { time.Sleep(time.Millisecond) })
		if l.windowCount != 1 {
			t.Errorf("%d writes in the window that began with the caller, want its own", l.windowCount)
		}
		l.release(background("b"), began, signalOK, 0)
		if l.windowCount != 1 {
			t.Error("the latency of a write sent before the background stepped back counts")
		}
		l.release(background("b"), began, signalOverload, 0)
		if _, _, limit := l.load(); limit != limitStart/2 {
			t.Errorf("limit %d after an overload of a write sent before, want %d", limit, limitStart/2)
		}
		l.release(background("b"), began, signalNone, 0)
		idle(t, l)
	})
}

func TestBackgroundThatLeavesIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(2)
		write(l, caller("x"), func() {})
		hold := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { write(l, background("a"), func() { <-hold }) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.acquire(ctx, background("b")); err == nil {
			t.Error("two background writes on a limit of 2")
		}
		close(hold)
		all.Wait()
		idle(t, l)
	})
}
