package reconcile

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestModes(t *testing.T) {
	for _, want := range []Mode{Off, Report, On} {
		if got, err := ParseMode(want.String()); err != nil || got != want {
			t.Errorf("ParseMode(%q): %v, %v", want, got, err)
		}
	}
	for _, s := range []string{"", "ON", "dry-run"} {
		if _, err := ParseMode(s); err == nil || !strings.Contains(err.Error(), "off, report or on") {
			t.Errorf("ParseMode(%q): %v", s, err)
		}
	}
}

func TestOffDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(pod("x", deleted))
		w.start(t, func(c *Config) { c.Mode = Off })
		w.put(pod("y", deleted))
		pause(time.Hour)
		if len(w.counts) != 0 {
			t.Errorf("requests: %v", w.counts)
		}
	})
}

func TestReportWritesNothingAndTellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Succeeded", "h=Pending")
		w.put(pod("x", deleted), pod("h", completed, unheld), pod("o", of("b")))
		var captured, hidden, orphaned atomic.Int32
		w.start(t, func(c *Config) {
			c.Mode = Report
			c.Observe.Would = func(r finalizer.Reason) {
				switch r {
				case finalizer.ReasonCaptured:
					captured.Add(1)
				case finalizer.ReasonHidden:
					hidden.Add(1)
				case finalizer.ReasonOrphaned:
					orphaned.Add(1)
				}
			}
		})
		for range 100 {
			pause(10 * time.Second)
			w.changed(flowA)
		}
		w.wantWrites(t, "")
		if captured.Load() != 1 || hidden.Load() != 1 || orphaned.Load() != 1 {
			t.Errorf("told of %d, %d and %d pods, want one each", captured.Load(), hidden.Load(), orphaned.Load())
		}
		if w.standing(finalizer.ReasonCaptured) != 1 {
			t.Error("what is found is not noted")
		}
	})
}

func TestRunWaitsForTheFirstLists(t *testing.T) {
	t.Run("of pods, as long as it takes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.put(pod("x", deleted))
			var synced atomic.Bool
			r := w.start(t, func(c *Config) {
				c.Synced = func() error {
					if !synced.Load() {
						return errors.New("not yet")
					}
					return nil
				}
			})
			r.Changed(flowA)
			pause(time.Hour)
			w.wantCount(t, opFlow, 0)
			synced.Store(true)
			pause(time.Second)
			w.wantWrites(t, "release x")
		})
	})
	t.Run("of workflows, for a while", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.blind = true
			w.put(pod("x", deleted))
			w.start(t)
			pause(29 * time.Second)
			w.wantCount(t, opFlow, 0)
			pause(2 * time.Second)
			w.wantWrites(t, "release x")
		})
	})
}

func TestChangedBeforeAndAfterRunDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(pod("x", deleted))
		r := w.compose()
		r.Changed(flowA)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		pause(time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		r.Changed(flowA)
		if r.Depth() != 0 {
			t.Errorf("depth %d after the end", r.Depth())
		}
		// It begins anew, as after a change of the leader.
		w.put(pod("y", deleted))
		runIn(t, t.Context(), r)
		pause(time.Second)
		w.wantWrites(t, "release x, release y")
	})
}

func TestLostEventCostsAtMostAWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 10 {
			key := finalizer.WorkflowKey{Namespace: "ns", Name: fmt.Sprint("f", i)}
			w.flowOf(key, "x=Running")
			w.put(pod(fmt.Sprint("x", i), of(key.Name), func(p *finalizer.Pod) { p.NodeID = "node-x" }))
		}
		w.deaf = true
		w.start(t)
		pause(time.Minute)
		for i := range 10 {
			w.flowOf(finalizer.WorkflowKey{Namespace: "ns", Name: fmt.Sprint("f", i)}, "x=Succeeded")
		}
		pause(11 * time.Minute)
		w.wantCount(t, opRelease, 10)
		var at []time.Time
		for _, e := range w.writes {
			at = append(at, e.at)
		}
		slices.SortFunc(at, time.Time.Compare)
		if spread := at[9].Sub(at[0]); spread < 5*time.Minute {
			t.Errorf("the walk took %v, want it spread over its time", spread)
		}
	})
}

// A workflow with little to do does not wait for those with much.
func TestSmallWorkflowIsNotHeldUpByLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for f := range 4 {
			for i := range 2000 {
				w.put(pod(fmt.Sprintf("p-%d-%d", f, i), of(fmt.Sprint("big", f)), deleted))
			}
		}
		w.latency = 100 * time.Millisecond
		w.start(t, func(c *Config) { c.Workers = 4 })
		pause(500 * time.Millisecond)
		w.put(pod("small", of("small"), deleted))
		pause(2 * time.Second)
		w.mu.Lock()
		_, waits := w.pods["small"]
		w.mu.Unlock()
		if waits {
			t.Error("the small workflow waits for the large ones")
		}
		pause(2 * time.Minute)
		w.wantCount(t, opRelease, 8001)
	})
}

func TestFailingPodDoesNotHoldUpItsNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("bad=Succeeded", "good=Running")
		w.fault = func(op, what string) error {
			if what == "bad" {
				return unavailable()
			}
			return nil
		}
		w.put(pod("bad", deleted), pod("good", deleted, phase("Succeeded")))
		w.start(t)
		pause(10 * time.Minute)
		before := len(w.tries["bad"])
		w.flow("bad=Succeeded", "good=Succeeded")
		pause(100 * time.Millisecond)
		w.wantWrites(t, "release good")
		if n := len(w.tries["bad"]); n != before {
			t.Error("a change elsewhere has cut the back-off short")
		}
	})
}

func TestEventForSeveralReleasesOfAWorkflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("!", "x=Succeeded", "y=Running", "z=Running")
		w.put(pod("x", deleted), pod("y", phase("Failed")), pod("z", pending, deleted), pod("alone", of("gone")), pod("too", of("gone")))
		w.start(t)
		pause(time.Minute)
		got := w.eventsOf("PodsReleased")
		if len(got) != 1 || got[0].Workflow != flowA || got[0].WorkflowUID != "wf-a" || got[0].Action != "Reconcile" ||
			got[0].Note != "3 pods released: 1 CAPTURED, 1 NEVER_STARTED, 1 WORKFLOW_COMPLETED" {
			t.Errorf("events: %+v", got)
		}
	})
}

func TestFiguresOfPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running")
		w.put(pod("x"))
		w.latency = time.Second
		var passes, reads, failed atomic.Int32
		var waited, took time.Duration
		w.start(t, func(c *Config) {
			c.Observe.Pass = func(wait, d time.Duration) { passes.Add(1); waited, took = wait, d }
			c.Observe.Read = func(err error) {
				reads.Add(1)
				if err != nil {
					failed.Add(1)
				}
			}
		})
		pause(10 * time.Second)
		if passes.Load() != 1 || reads.Load() != 1 || failed.Load() != 0 || waited != 0 || took != time.Second {
			t.Errorf("%d passes, %d reads, %d failed; waited %v, took %v", passes.Load(), reads.Load(), failed.Load(), waited, took)
		}
	})
}

func TestScheduledLookThatIsOutOfDateMakesNoPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Pending", "y=Running")
		// x is looked at after 15 seconds, y, for its cluster node, after a minute.
		w.put(pod("x", completed, unheld), pod("y", deleted))
		var passes atomic.Int32
		w.start(t, func(c *Config) { c.Observe.Pass = func(_, _ time.Duration) { passes.Add(1) } })
		pause(5 * time.Second)
		w.edit("x", func(p *finalizer.Pod) { p.Completed = false })
		pause(59 * time.Second)
		if n := passes.Load(); n != 2 {
			t.Errorf("%d passes, want one for the first list and one for the change", n)
		}
		pause(2 * time.Second)
		if n := passes.Load(); n != 3 {
			t.Errorf("%d passes, want the look at the cluster node", n)
		}
	})
}

func TestPassThatGaveWayGoesOnWithoutAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 100 {
			w.put(pod(fmt.Sprint("b", i), of("b")), pod(fmt.Sprint("c", i), of("c")))
		}
		w.latency, w.deaf = time.Second, true
		w.start(t, func(c *Config) { c.Workers = 1 })
		pause(time.Minute)
		w.wantCount(t, opRelease, 200)
	})
}

// costly is a cache whose answers take long to compute.
type costly struct {
	Pods
	took time.Duration
}

func (c costly) PodsOfWorkflow(key finalizer.WorkflowKey) []finalizer.Pod {
	time.Sleep(c.took)
	return c.Pods.PodsOfWorkflow(key)
}

func TestRestlessWorkflowTakesAPartOfAProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running")
		w.put(pod("x"))
		var passes atomic.Int32
		w.start(t, func(c *Config) {
			c.Pods = costly{w, 20 * time.Millisecond}
			c.Observe.Pass = func(_, _ time.Duration) { passes.Add(1) }
		})
		for range 10_000 {
			pause(time.Millisecond)
			w.changed(flowA)
		}
		if n := passes.Load(); n < 90 || n > 105 {
			t.Errorf("%d passes of 20 ms in 10 s, want one in 100 ms", n)
		}
	})
}

// Outside of a bubble, where a goroutine that is left counts.
func TestRunLeavesNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	w := newWorld()
	w.put(pod("x", deleted), pod("y", unowned))
	r := w.compose()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	for w.count(opRelease) == 0 {
		runtime.Gosched()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for runtime.NumGoroutine() > before { // the queue's own ends a moment later
		if time.Since(start) > 10*time.Second {
			t.Fatal("goroutines are left")
		}
		runtime.Gosched()
	}
}

func TestRunEndsWhileTheAPIServerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = time.Hour
		w.put(pod("x", deleted))
		ctx, cancel := context.WithCancel(t.Context())
		r := w.compose()
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		pause(time.Second)
		start := time.Now()
		cancel()
		<-ended
		if took := time.Since(start); took != 0 {
			t.Errorf("the end took %v", took)
		}
	})
}
