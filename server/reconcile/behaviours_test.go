package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// blocked and the like are what the API server answers.
func blocked() *finalizer.Error {
	return &finalizer.Error{Kind: finalizer.KindBlocked, Message: "blocked", Webhook: "w", Field: "spec"}
}
func forbidden() *finalizer.Error {
	return &finalizer.Error{Kind: finalizer.KindForbidden, Message: "forbidden", Verb: "patch", Resource: "pods"}
}
func unavailable() *finalizer.Error {
	return &finalizer.Error{Kind: finalizer.KindUnavailable, Message: "unavailable"}
}

// Each case is a world as the first list finds it, and what has been written by
// the time the clock has gone on.
func TestFirstListAlone(t *testing.T) {
	tests := map[string]struct {
		given  func(w *world)
		policy func(*finalizer.Policy)
		after  time.Duration
		want   string
	}{
		"B9 the feature is off and a captured pod still carries FIN": {
			given: func(w *world) { w.flow("x=Succeeded"); w.put(pod("x", phase("Succeeded"))) },
			want:  "release x",
		},
		"B9 the workflow has completed too: label and finalizer in one write": {
			given: func(w *world) { w.flow("!", "x=Succeeded"); w.put(pod("x", phase("Succeeded"))) },
			want:  "release+label x",
		},
		"B10 labelled completed with FIN left over": {
			given: func(w *world) { w.flow("!", "x=Running"); w.put(pod("x", completed)) },
			want:  "release x",
		},
		"B11 no owner: kept by default": {
			given: func(w *world) { w.put(pod("x", unowned)) },
			after: 24 * time.Hour,
		},
		"B11 no owner, by policy: released": {
			given:  func(w *world) { w.put(pod("x", unowned)) },
			policy: func(p *finalizer.Policy) { p.ReleaseUnowned = true },
			want:   "release x",
		},
		"B15 finished and deleted, not captured: stays however old": {
			given: func(w *world) { w.flow("x=Running"); w.put(pod("x", phase("Succeeded"), deleted)) },
			after: 7 * 24 * time.Hour,
		},
		"B17 captured, whatever podGC delays": {
			given: func(w *world) { w.flow("x=Succeeded", "y=Running"); w.put(pod("x", phase("Succeeded")), pod("y")) },
			want:  "release x",
		},
		"B18 pending and deleted before the start": {
			given: func(w *world) { w.flow("x=Pending"); w.put(pod("x", pending, deleted)) },
			want:  "release x",
		},
		"B19 Failed with containers that seem to run counts as ended": {
			given: func(w *world) { w.flow("!", "x=Running"); w.put(pod("x", phase("Failed"))) },
			want:  "release+label x",
		},
		"B20 the cluster node is gone": {
			given: func(w *world) {
				w.flow("x=Running")
				w.health["n1"] = finalizer.NodeHealth{Known: true, Gone: true}
				w.put(pod("x", deleted))
			},
			want: "release x",
		},
		"B32 the workflow went while the service was down": {
			given: func(w *world) { w.put(pod("x"), pod("y", deleted), pod("z", of("b"))) },
			want:  "release x, release y, release z",
		},
		"B33 another UID has the workflow's name": {
			given: func(w *world) {
				w.flow("x=Running")
				w.put(pod("x", func(p *finalizer.Pod) { p.Owner.UID = "wf-before" }))
			},
			want: "release x",
		},
		"B35 the namespace is Terminating": {
			given: func(w *world) { w.ending = true; w.flow("x=Running"); w.put(pod("x"), pod("y", unowned)) },
			want:  "release x, release y",
		},
		"B36 completed workflow, finished pod without the label": {
			given: func(w *world) { w.flow("!", "x=Running"); w.put(pod("x", phase("Succeeded"))) },
			want:  "release+label x",
		},
		"B37 younger than min-age, and its workflow not seen: left alone": {
			given: func(w *world) { w.put(pod("x", young)) },
			after: 29 * time.Second,
		},
		"B46 the stored node belongs to a newer attempt": {
			given: func(w *world) {
				w.flow("~", "y=Running")
				w.flows[flowA].Nodes["node-x"] = finalizer.Node{Type: "Pod", Phase: "Pending", StartedAt: time.Now()}
				w.put(pod("x", deleted))
			},
			want: "release x",
		},
		"B46 the node is gone from the stored workflow": {
			given: func(w *world) { w.flow("~", "y=Running"); w.put(pod("x", deleted)) },
			want:  "release x",
		},
		"B15 its controller died before it stored the node": {
			given: func(w *world) { w.flow("y=Running"); w.put(pod("x", deleted)) },
			after: time.Hour,
		},
		"the workflow is being deleted": {
			given: func(w *world) {
				w.setFlow(flowA, finalizer.Workflow{Exists: true, UID: "wf-a", Deleting: true})
				w.put(pod("x"), pod("y", phase("Succeeded"), deleted))
			},
			want: "release x, release y",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				tc.given(w)
				w.deaf = true
				w.start(t, func(c *Config) {
					if tc.policy != nil {
						tc.policy(&c.Policy)
					}
				})
				pause(max(tc.after, time.Second))
				w.wantWrites(t, tc.want)
			})
		})
	}
}

func TestB11UnownedPodsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(pod("x", unowned), pod("y", unowned))
		w.start(t)
		pause(time.Second)
		if got := w.standing(finalizer.ReasonUnowned); got != 2 {
			t.Errorf("noted as UNOWNED: %d pods, want 2", got)
		}
		w.wantCount(t, opFlow, 0)
	})
}

func TestB13AdmissionBlocksAreRetriedSlowlyForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("!", "x=Succeeded", "y=Succeeded")
		w.fault = func(op, what string) error {
			if op == opRelease && what == "x" {
				return blocked()
			}
			return nil
		}
		w.put(pod("x", phase("Succeeded")), pod("y", phase("Succeeded")))
		w.start(t)
		pause(48 * time.Hour)
		w.wantWrites(t, "release+label y")
		tries := w.tries["x"]
		for i := 1; i < len(tries); i++ {
			gap := tries[i].Sub(tries[i-1])
			if least := min(30*time.Second<<(min(i, 6)-1), 10*time.Minute) / 2; gap < least || gap > 10*time.Minute {
				t.Errorf("try %d came %v after the one before, want %v to 10m", i+1, gap, least)
			}
		}
		// Never less than one in ten minutes.
		if len(tries) < 48*6 || time.Since(tries[len(tries)-1]) > 10*time.Minute {
			t.Errorf("%d tries in two days", len(tries))
		}
		if len(w.eventsOf("BlockedByAdmission")) == 0 {
			t.Error("no Event tells of the block")
		}
		w.fail(nil)
		pause(10 * time.Minute)
		w.wantWrites(t, "release+label x, release+label y")
		w.wantCount(t, opFlow, 1)
	})
}

func TestB14RecoversByItselfOnceGranted(t *testing.T) {
	for _, op := range []string{opRelease, opFlow, opPod} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.flow("x=Pending")
				w.fail(forbidden(), op)
				w.put(pod("x", pending, deleted))
				if op == opFlow {
					w.pods["x"] = pod("x", phase("Succeeded"), deleted)
					w.flow("x=Succeeded")
				}
				w.start(t)
				pause(time.Hour)
				w.wantWrites(t, "")
				if n := w.count(op); n < 3600/30 || n > 3600/15+10 {
					t.Errorf("%d tries in an hour, want one each 15 to 30 seconds", n)
				}
				w.fail(nil)
				pause(30 * time.Second)
				w.wantWrites(t, "release x")
			})
		})
	}
}

func TestB15HeldUntilCaptured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running")
		w.put(pod("x", phase("Succeeded"), deleted))
		w.start(t)
		pause(24 * time.Hour)
		w.wantWrites(t, "")
		w.wantCount(t, opFlow, 1)
		w.flow("x=Succeeded")
		pause(time.Second)
		w.wantWrites(t, "release x")
		// Capture, once seen, holds for the UID.
		if w.standing(finalizer.ReasonNotCaptured) != 0 {
			t.Error("a released pod is still noted as held")
		}
	})
}

func TestB16MaxHoldCountsFromTheDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running")
		w.put(pod("x", phase("Succeeded")))
		w.start(t, func(c *Config) { c.Policy.MaxHold = time.Hour })
		pause(2 * time.Hour)
		w.edit("x", deleted)
		pause(time.Hour - time.Second)
		w.wantWrites(t, "")
		pause(2 * time.Second)
		w.wantWrites(t, "release x")
		if len(w.eventsOf("ForcedRelease")) != 1 {
			t.Errorf("events: %v", w.events)
		}
	})
}

func TestB18NeverStartedIsSeenByAddUpdateAndFirstListAlike(t *testing.T) {
	tests := map[string]func(t *testing.T, w *world){
		"add":        func(t *testing.T, w *world) { w.start(t); sleepAnd(w.put, pod("x", pending, deleted)) },
		"first list": func(t *testing.T, w *world) { w.put(pod("x", pending, deleted)); w.start(t) },
		"update": func(t *testing.T, w *world) {
			w.put(pod("x", pending))
			w.start(t)
			pause(time.Minute)
			w.edit("x", deleted)
		},
	}
	for name, arrive := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.flow("x=Pending")
				arrive(t, w)
				pause(time.Second)
				w.wantWrites(t, "release x")
			})
		})
	}
}

func sleepAnd(put func(...finalizer.Pod), p finalizer.Pod) {
	pause(time.Minute)
	put(p)
}
