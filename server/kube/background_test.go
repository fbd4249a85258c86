package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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

// spread is the claim of the i-th of many workflows of some namespaces, none of
// which meets its share.
func spread(i int) claim { return in(fmt.Sprint("ns", i%4), background(fmt.Sprint(i))) }

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
				write(l, spread(i), serve)
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
		if c.inFlight != 0 || len(c.using) != 0 || len(c.inside) != 0 || len(c.waiting) != 0 || c.turns != nil {
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
			all.Go(func() { write(l, spread(i), func() { <-hung }) })
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
