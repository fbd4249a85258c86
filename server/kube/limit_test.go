package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func wf(name string) finalizer.WorkflowKey {
	return finalizer.WorkflowKey{Namespace: "ns", Name: name}
}

// caller is the claim of a call, background that of the reconciler.
func caller(name string) claim     { return claim{workflow: wf(name)} }
func background(name string) claim { return claim{workflow: wf(name), background: true} }

// cpu is an API server with a full CPU: it serves one request after another, so
// that latency grows with the requests in flight, plus a latency of its own.
type cpu struct {
	service, wire time.Duration
	mu            sync.Mutex
	free          time.Time
}

func (c *cpu) serve() {
	c.mu.Lock()
	now := time.Now()
	if c.free.Before(now) {
		c.free = now
	}
	c.free = c.free.Add(c.service)
	wait := c.free.Sub(now) + c.wire
	c.mu.Unlock()
	time.Sleep(wait)
}

// drive runs n writes by so many workers, and returns how long it took.
func drive(l *limiter, workers, n int, serve func() (signal, time.Duration)) time.Duration {
	began := time.Now()
	work := make(chan int, n)
	for i := range n {
		work <- i
	}
	close(work)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range work {
				if l.acquire(context.Background(), caller("w")) != nil {
					panic("refused")
				}
				sent := time.Now()
				s, after := serve()
				l.release(caller("w"), sent, s, after)
			}
		})
	}
	all.Wait()
	return time.Since(began)
}

func TestLimitFindsItsSize(t *testing.T) {
	cases := map[string]struct {
		service, wire  time.Duration
		most           int
		writes         int
		wantMin        int
		wantMax        int
		wantThroughput float64 // share of what the server can do
	}{
		"flat latency: it grows to the maximum":                        {time.Microsecond, 20 * time.Millisecond, 64, 20000, 64, 64, 0},
		"a full CPU without wire latency: it stays moderate":           {1700 * time.Microsecond, 0, 64, 40000, 16, 48, 0.99},
		"a full CPU behind wire latency: throughput is kept":           {1700 * time.Microsecond, 20 * time.Millisecond, 64, 40000, 16, 64, 0.95},
		"a slow server of which a low maximum is asked: the maximum":   {10 * time.Millisecond, 0, 4, 2000, 4, 4, 0.99},
		"a maximum below the floor counts as the floor":                {10 * time.Millisecond, 0, 1, 100, 2, 2, 0.99},
		"a maximum above what is asked for is reached by a long flood": {time.Microsecond, 5 * time.Millisecond, 200, 80000, 200, 200, 0},
	}
	for name, tc := range cases {
		t.Run("B26: "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(tc.most)
				server := cpu{service: tc.service, wire: tc.wire}
				took := drive(l, 300, tc.writes, func() (signal, time.Duration) { server.serve(); return signalOK, 0 })
				_, _, limit := l.load()
				if limit < tc.wantMin || limit > tc.wantMax {
					t.Errorf("limit is %d, want %d to %d", limit, tc.wantMin, tc.wantMax)
				}
				ideal := time.Duration(tc.writes) * tc.service
				if got := ideal.Seconds() / took.Seconds(); got < tc.wantThroughput {
					t.Errorf("throughput is %.3f of the server's, want %.3f", got, tc.wantThroughput)
				}
			})
		})
	}
}

func TestLimitShrinksOnOverloadAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(64)
		server := cpu{service: 1700 * time.Microsecond}
		drive(l, 100, 300, func() (signal, time.Duration) { time.Sleep(time.Second); return signalOverload, 0 })
		if _, _, limit := l.load(); limit != limitFloor {
			t.Fatalf("limit is %d after timeouts, want the floor %d", limit, limitFloor)
		}
		drive(l, 100, 2000, func() (signal, time.Duration) { server.serve(); return signalOK, 0 })
		if _, _, limit := l.load(); limit < limitStart {
			t.Errorf("limit is %d after recovery, want at least %d: latency at the floor must not be the measure", limit, limitStart)
		}
	})
}

func TestLimitHalvesOnceForOneBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(64)
		began := time.Now()
		for i := range limitStart {
			if err := l.acquire(t.Context(), caller(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		for i := range limitStart {
			l.release(caller(fmt.Sprint(i)), began, signalOverload, 0)
		}
		if _, _, limit := l.load(); limit != limitStart/2 {
			t.Errorf("limit is %d after one burst of 429, want %d", limit, limitStart/2)
		}
	})
}

func TestLimitPausesForRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(64)
		if err := l.acquire(t.Context(), caller("w")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		l.release(caller("w"), began, signalOverload, 5*time.Second)
		if err := l.acquire(t.Context(), caller("w")); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited != 5*time.Second {
			t.Errorf("waited %v, want 5s", waited)
		}
		l.release(caller("w"), time.Now(), signalOverload, time.Hour)
		began = time.Now()
		if err := l.acquire(t.Context(), caller("w")); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited != maxPause {
			t.Errorf("waited %v for an absurd Retry-After, want %v", waited, maxPause)
		}
		if l.alarm != nil || len(l.callers.waiting) != 0 {
			t.Error("an idle limiter holds a timer or an entry")
		}
	})
}

func TestLimitIsFairAcrossWorkflows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(2)
		if err := l.acquire(t.Context(), caller("holder")); err != nil { // leaves one place, so that order is exact
			t.Fatal(err)
		}
		var order []string // under the one place
		var all sync.WaitGroup
		write := func(key claim, i int) {
			all.Go(func() {
				if l.acquire(context.Background(), key) != nil {
					panic("refused")
				}
				order = append(order, fmt.Sprint(key.workflow.Name, i))
				sent := time.Now()
				time.Sleep(10 * time.Millisecond)
				l.release(key, sent, signalOK, 0)
			})
			synctest.Wait()
		}
		for i := range 1000 {
			write(caller("big"), i)
		}
		for i := range 3 {
			write(caller("small"), i)
		}
		all.Wait()
		want := []string{"big0", "big1", "small0", "big2", "small1", "big3", "small2", "big4"}
		if diff := cmp.Diff(want, order[:len(want)]); diff != "" {
			t.Errorf("B26: turns (-want +got)\n%s", diff)
		}
		for i, tag := range order[len(want):] {
			if want := fmt.Sprint("big", i+5); tag != want {
				t.Fatalf("B22: got %s, want %s: first come first served", tag, want)
			}
		}
		if len(l.callers.waiting) != 0 || len(l.callers.turns) != 0 || l.callers.inFlight != 1 {
			t.Errorf("left over: %d queues, %d turns, %d in flight", len(l.callers.waiting), len(l.callers.turns), l.callers.inFlight)
		}
	})
}

func TestLimitKeepsPlacesFromAWorkflowThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(64)
		hung, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 100 { // none of these writes comes back while the test looks
			all.Go(func() {
				if l.acquire(hung, caller("hanging")) == nil {
					sent := time.Now()
					<-hung.Done()
					l.release(caller("hanging"), sent, signalNone, 0)
				}
			})
		}
		synctest.Wait()
		if inFlight, _, limit := l.load(); inFlight >= limit {
			t.Fatalf("B22: one workflow holds %d of %d places", inFlight, limit)
		}
		for i := range 40 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := l.acquire(ctx, caller("healthy")); err != nil {
				t.Fatalf("B22: write %d of another workflow was not let through: %v", i, err)
			}
			l.release(caller("healthy"), time.Now(), signalOK, 0)
			cancel()
		}
		leave()
		all.Wait()
		if inFlight, waiting, _ := l.load(); inFlight != 0 || waiting != 0 || len(l.callers.using) != 0 || len(l.callers.waiting) != 0 || len(l.callers.turns) != 0 {
			t.Errorf("left over: %d in flight, %d waiting, %d users", inFlight, waiting, len(l.callers.using))
		}
	})
}

func TestLimitLetsWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(2)
		for range 2 {
			if err := l.acquire(t.Context(), caller("w")); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.acquire(ctx, caller("other")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		if inFlight, waiting, _ := l.load(); inFlight != 2 || waiting != 0 || len(l.callers.waiting) != 0 {
			t.Errorf("in flight %d, waiting %d, queues %d", inFlight, waiting, len(l.callers.waiting))
		}
		l.release(caller("w"), time.Now(), signalNone, 0)
		if err := l.acquire(ctx, caller("other")); err == nil {
			t.Error("a context that is done was granted a place")
		}
		if inFlight, _, _ := l.load(); inFlight != 1 {
			t.Errorf("in flight %d, want 1", inFlight)
		}
	})
}

func TestLimitNeverGrantsToADoneContext(t *testing.T) {
	// The grant and the cancellation race: whatever wins, a done context gets an
	// error and its place is free again.
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(2)
			for range 2 {
				if err := l.acquire(context.Background(), caller("w")); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			got := make(chan error, 1)
			go func() { got <- l.acquire(ctx, caller("x")) }()
			synctest.Wait()
			cancel()
			l.release(caller("w"), time.Now(), signalNone, 0)
			if err := <-got; err == nil {
				t.Fatal("granted after the context was done")
			}
			if inFlight, _, _ := l.load(); inFlight != 1 {
				t.Fatalf("in flight %d, want 1", inFlight)
			}
		})
	}
}
