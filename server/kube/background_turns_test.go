package kube

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
