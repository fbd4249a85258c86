package reconcile

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestB17QuietCaptureIsLeftToTheControllerForTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running")
		w.put(pod("x", phase("Succeeded")))
		w.start(t)
		pause(time.Hour)
		w.flow() // the node is stored as of now
		wf := w.flows[flowA]
		wf.SetNodes(map[string]finalizer.Node{"node-x": {Type: "Pod", Phase: "Succeeded", StartedAt: time.Now().Add(-time.Hour), FinishedAt: time.Now()}})
		w.setFlow(flowA, wf)
		pause(9 * time.Second)
		w.wantWrites(t, "")
		pause(2 * time.Second)
		w.wantWrites(t, "release x")
		if got := w.core.HeldByReason(); len(got) != 0 {
			t.Errorf("still noted as held: %v", got)
		}
	})
}

func TestPodReleasedByOthersIsNotedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running", "y=Running")
		w.put(pod("x"), pod("y"))
		w.start(t)
		pause(time.Second)
		w.edit("x", unheld)
		w.edit("y", func(p *finalizer.Pod) { unheld(p); completed(p) })
		pause(time.Second)
		if got := w.core.HeldByReason(); len(got) != 0 {
			t.Errorf("still noted as held: %v", got)
		}
	})
}

func TestB35NamespaceThatTurnsTerminatingUnderAnUnchangedWorkflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running")
		w.put(pod("x", deleted, phase("Succeeded")))
		w.start(t)
		pause(time.Hour)
		w.wantWrites(t, "")
		w.mu.Lock()
		w.ending = true
		w.mu.Unlock()
		w.changed(flowA)
		pause(time.Second)
		w.wantWrites(t, "release x")
		w.wantCount(t, opFlow, 1)
	})
}

func TestB20NotReadyPastItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running", "y=Running")
		w.health["n1"] = finalizer.NodeHealth{Known: true, Since: time.Now()}
		w.put(pod("x", deleted), pod("y", deleted, func(p *finalizer.Pod) { p.Status.NodeName = "n2" }))
		w.start(t)
		pause(5*time.Minute - time.Second)
		w.wantWrites(t, "")
		pause(2 * time.Second)
		w.wantWrites(t, "release x")
		if len(w.eventsOf("NodeLost")) != 1 {
			t.Errorf("events: %v", w.events)
		}
		// A node gives no event: it is looked at once a minute.
		w.mu.Lock()
		w.health["n2"] = finalizer.NodeHealth{Known: true, Gone: true}
		w.mu.Unlock()
		pause(time.Minute)
		w.wantWrites(t, "release x, release y")
	})
}

func TestB20NodeThatCannotBeReadIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running")
		w.fail(unavailable(), opNode)
		w.put(pod("x", deleted))
		w.start(t)
		pause(time.Hour)
		w.wantWrites(t, "")
		if n := w.count(opNode); n < 50 || n > 70 {
			t.Errorf("%d reads of the node in an hour, want one a minute", n)
		}
	})
}

func TestB34FailedReadIsNeitherGoneNorCaptured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fail(unavailable(), opFlow)
		w.put(pod("old"), pod("going", phase("Succeeded"), deleted), pod("fresh", pending, deleted))
		w.start(t)
		pause(time.Hour)
		// What needs no workflow goes on.
		w.wantWrites(t, "release fresh")
		if n := w.standing(finalizer.ReasonCaptureUnknown); n != 2 {
			t.Errorf("noted as CAPTURE_UNKNOWN: %d, want 2", n)
		}
		if n := w.count(opFlow); n < 240 || n > 500 {
			t.Errorf("%d reads in an hour, want about five or six a minute", n)
		}
		// A pod that comes during the back-off is not held up by it.
		w.put(pod("later", pending, deleted))
		pause(100 * time.Millisecond)
		w.wantWrites(t, "release fresh, release later")
		w.fail(nil)
		pause(time.Minute)
		w.wantWrites(t, "release fresh, release going, release later, release old")
	})
}

func TestB34UnreadableNodeStatusIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.setFlow(flowA, finalizer.Workflow{Exists: true, UID: "wf-a", Unknown: "offloaded"})
		w.put(pod("x", phase("Succeeded"), deleted))
		w.start(t)
		pause(time.Hour)
		w.wantWrites(t, "")
		w.wantCount(t, opFlow, 1)
	})
}

func TestB37YoungPodIsAnOrphanOnceItIsOldEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(pod("x", young))
		w.start(t)
		pause(29 * time.Second)
		w.wantCount(t, opFlow, 0)
		pause(5 * time.Second)
		w.wantWrites(t, "release x")
	})
}

func TestB39OutageUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const flows, pods = 20, 25
		w := newWorld()
		r := w.start(t)
		pause(time.Second)
		w.fail(unavailable())
		for f := range flows {
			for p := range pods {
				w.put(pod(fmt.Sprintf("p-%d-%d", f, p), of(fmt.Sprint("f", f)), deleted, phase("Succeeded")))
			}
		}
		// Changes go on for ten minutes, and nothing piles up.
		for range 600 {
			pause(time.Second)
			w.edit("p-0-0", func(*finalizer.Pod) {})
			if d := r.Depth(); d > flows {
				t.Fatalf("%d workflows wait", d)
			}
		}
		w.wantWrites(t, "")
		l := r.loop.Load()
		l.mu.Lock()
		if len(l.known) > flows || len(l.dirty) > flows {
			t.Errorf("remembered: %d and %d workflows", len(l.known), len(l.dirty))
		}
		for _, mem := range l.known {
			if len(mem.pods) > pods {
				t.Errorf("remembered: %d pods of a workflow that has %d", len(mem.pods), pods)
			}
		}
		l.mu.Unlock()
		if n := w.count(opFlow); n > flows*90 {
			t.Errorf("%d reads of %d workflows in ten minutes", n, flows)
		}
		w.fail(nil)
		pause(20 * time.Second)
		if n := w.count(opRelease); n != flows*pods {
			t.Errorf("%d pods released within 20 s, want %d", n, flows*pods)
		}
		pause(time.Minute)
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.known) != 0 || len(l.reads.byKey) != 0 || l.reads.weight != 0 {
			t.Errorf("left in memory: %d workflows, %d reads", len(l.known), len(l.reads.byKey))
		}
	})
}

func TestB44PrematureLabelIsTakenBack(t *testing.T) {
	tests := map[string]struct {
		change []edit
		want   string
	}{
		"not held":               {[]edit{completed, unheld}, "unhide+hold x"},
		"held":                   {[]edit{completed}, "unhide+hold x"},
		"not held, terminating":  {[]edit{completed, unheld, deleted}, "unhide x"},
		"without the label":      {nil, ""},
		"unheld, without either": {[]edit{unheld}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.flow("x=Pending")
				w.put(pod("x", tc.change...))
				w.start(t)
				pause(14 * time.Second)
				w.wantWrites(t, "")
				pause(10 * time.Second)
				w.wantWrites(t, tc.want)
				pause(time.Hour)
				w.wantWrites(t, tc.want)
			})
		})
	}
}

func TestB44LabelOfACapturedPodStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running", "y=Running")
		w.put(pod("x", phase("Succeeded"), unheld), pod("y"))
		r := w.start(t)
		for range 100 { // each time the controller labels a while before it stores
			w.edit("x", completed)
			pause(5 * time.Second)
			w.flow("x=Succeeded", "y=Running")
			pause(30 * time.Second)
		}
		w.wantWrites(t, "")
		l := r.loop.Load()
		l.mu.Lock()
		defer l.mu.Unlock()
		if pm := l.known[flowA].pods["uid-x"]; !pm.hiddenSince.IsZero() {
			t.Error("it is still thought hidden")
		}
	})
}

func TestB46PodThatIsMerelyNewIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow()
		w.put(pod("x", young, deleted))
		w.start(t)
		pause(29 * time.Second)
		w.wantWrites(t, "")
		w.flow("x=Running")
		pause(time.Hour)
		w.wantWrites(t, "")
	})
}

// The rule wants a read that begins when the pod is old enough, although the
// version has not changed since the last.
func TestB46NodeThatIsNotStoredInTimeIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("~")
		w.put(pod("x", young, deleted))
		w.start(t)
		pause(29 * time.Second)
		w.wantWrites(t, "")
		pause(5 * time.Second)
		w.wantWrites(t, "release x")
		if n := w.count(opFlow); n > 3 {
			t.Errorf("%d reads", n)
		}
	})
}
