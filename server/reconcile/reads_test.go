package reconcile

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// crowd puts pods of flowA, named p0 and so on, whose nodes run.
func (w *world) crowd(n int, change ...edit) {
	nodes := make([]string, n)
	pods := make([]finalizer.Pod, n)
	for i := range n {
		nodes[i] = fmt.Sprintf("p%d=Running", i)
		pods[i] = pod(fmt.Sprint("p", i), change...)
	}
	w.flow(nodes...)
	w.put(pods...)
}

func TestOneReadForAllPodsOfAWorkflow(t *testing.T) {
	tests := map[string]struct {
		given    func(w *world)
		releases int
		lists    int
	}{
		"ten thousand that nobody deletes":      {func(w *world) { w.crowd(10_000) }, 0, 0},
		"ten thousand deleted, not captured":    {func(w *world) { w.crowd(10_000, deleted, phase("Succeeded")) }, 0, 1},
		"ten thousand whose workflow is gone":   {func(w *world) { w.crowd(10_000); w.dropFlow(flowA) }, 10_000, 0},
		"that are captured and deleted":         {func(w *world) { w.crowd(1000, deleted); w.captureAll(1000) }, 1000, 0},
		"stragglers of a workflow that is done": {func(w *world) { w.crowd(1000, phase("Failed")); w.complete() }, 1000, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				tc.given(w)
				w.latency = time.Millisecond
				w.start(t)
				pause(30 * time.Minute)
				w.wantCount(t, opFlow, 1)
				w.wantCount(t, opRelease, tc.releases)
				w.wantCount(t, opList, tc.lists)
				w.wantCount(t, opPod, 0)
			})
		})
	}
}

func (w *world) captureAll(n int) {
	nodes := make([]string, n)
	for i := range n {
		nodes[i] = fmt.Sprintf("p%d=Succeeded", i)
	}
	w.flow(nodes...)
}

func (w *world) complete() {
	wf := w.flows[flowA]
	wf.Completed = true
	w.setFlow(flowA, wf)
}

func TestUnchangedWorkflowIsNotReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.crowd(3, deleted, phase("Succeeded"))
		w.start(t)
		for range 1000 {
			pause(time.Second)
			w.changed(flowA)
		}
		w.wantCount(t, opFlow, 1)
		w.wantCount(t, opList, 1)
		w.flow("p0=Running", "p1=Running", "p2=Running") // a new version
		pause(time.Second)
		w.wantCount(t, opFlow, 2)
		w.wantCount(t, opList, 1) // the pods have not changed
		w.edit("p0", func(*finalizer.Pod) {})
		pause(time.Second)
		w.wantCount(t, opFlow, 2)
		w.wantCount(t, opPod, 1)
	})
}

func TestPodThatCameAfterTheReadForcesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		// The node of the first attempt is captured; a successor takes the name.
		w.flow("x=Succeeded", "y=Running")
		w.put(pod("y", deleted, phase("Succeeded")))
		w.start(t)
		pause(time.Minute)
		w.wantCount(t, opFlow, 1)
		w.put(pod("x", deleted, phase("Succeeded")))
		pause(time.Second)
		w.wantCount(t, opFlow, 2)
		w.wantWrites(t, "release x")
	})
}

func TestReadsOfOneWorkflowKeepTheirDistance(t *testing.T) {
	tests := map[string]struct {
		change []edit
		want   int // reads in a minute
	}{
		"pods that wait": {[]edit{deleted, phase("Succeeded")}, 20},
		"quiet pods":     {nil, 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.crowd(50, tc.change...)
				w.start(t)
				pause(time.Millisecond)
				for range 600 { // a version every 100 ms
					w.setFlow(flowA, w.flows[flowA])
					pause(100 * time.Millisecond)
				}
				if n := w.count(opFlow); n < tc.want || n > tc.want+1 {
					t.Errorf("%d reads in a minute, want %d", n, tc.want)
				}
			})
		})
	}
}

func TestWorkflowWithoutAWatchIsLookedAtInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.blind = true
		w.flow("x=Running")
		w.put(pod("x"))
		w.start(t)
		pause(30*time.Second + time.Minute)
		if n := w.count(opFlow); n < 4 || n > 5 {
			t.Errorf("%d reads in a minute, want one each 15 seconds", n)
		}
		w.flow("x=Succeeded")
		pause(20 * time.Second)
		w.wantWrites(t, "release x")
	})
}

// overtaken is a Core whose first read is out of date by the time it returns.
type overtaken struct {
	Core
	w    *world
	once *atomic.Bool
}

func (o overtaken) ReadWorkflow(ctx context.Context, key finalizer.WorkflowKey) (finalizer.Workflow, error) {
	wf, err := o.Core.ReadWorkflow(ctx, key)
	if o.once.CompareAndSwap(false, true) {
		o.w.flow("x=Succeeded")
	}
	return wf, err
}

func TestVersionIsTakenBeforeTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Running")
		w.put(pod("x", deleted, phase("Succeeded")))
		r := w.compose()
		r.config.Core = overtaken{w.core, w, new(atomic.Bool)}
		runIn(t, t.Context(), r)
		pause(10 * time.Second)
		w.wantWrites(t, "release x")
	})
}

func TestStatusIsListedOrReadByWhatCostsLess(t *testing.T) {
	tests := map[string]struct {
		pods, asking int
		lists, gets  int
	}{
		"one":            {1, 1, 0, 1},
		"few of few":     {10, 3, 1, 0},
		"few of many":    {1000, 3, 0, 3},
		"many of many":   {1000, 500, 1, 0},
		"none":           {10, 0, 0, 0},
		"one of several": {10, 1, 0, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.crowd(tc.pods)
				for i := range tc.asking {
					w.edit(fmt.Sprint("p", i), deleted)
				}
				w.start(t)
				pause(50 * time.Second)
				w.wantCount(t, opList, tc.lists)
				w.wantCount(t, opPod, tc.gets)
			})
		})
	}
}

// Labels prove nothing: a list by label may lack a pod.
func TestPodMissingInTheListIsReadByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Pending", "y=Pending")
		w.put(pod("x", pending, deleted), pod("y", pending, deleted))
		w.start(t, func(c *Config) { c.Status = lacking{liveReader{w}, "y"} })
		pause(time.Second)
		w.wantWrites(t, "release x, release y")
		w.wantCount(t, opList, 1)
		w.wantCount(t, opPod, 1)
	})
}

// lacking lists all pods but one.
type lacking struct {
	liveReader
	name string
}

func (l lacking) Pods(ctx context.Context, key finalizer.WorkflowKey) ([]finalizer.Pod, error) {
	pods, err := l.liveReader.Pods(ctx, key)
	var out []finalizer.Pod
	for _, p := range pods {
		if p.Name != l.name {
			out = append(out, p)
		}
	}
	return out, err
}

func TestRememberedReadsAreBounded(t *testing.T) {
	s := newReads(9)
	make := func(i, nodes int) *read {
		r := &read{key: finalizer.WorkflowKey{Name: fmt.Sprint(i)}, uids: map[types.UID]struct{}{"u": {}}}
		all := map[string]finalizer.Node{}
		for n := range nodes {
			all[fmt.Sprint(n)] = finalizer.Node{}
		}
		r.wf.SetNodes(all)
		return r
	}
	for i := range 4 {
		s.put(make(i, 1)) // of weight 3
	}
	s.put(make(3, 2)) // in place of the other
	for i, want := range []bool{false, false, true, true} {
		if got := s.get(finalizer.WorkflowKey{Name: fmt.Sprint(i)}) != nil; got != want {
			t.Errorf("read %d: remembered %t, want %t", i, got, want)
		}
	}
	if s.weight != 7 || s.byAge.Len() != 2 || len(s.byKey) != 2 {
		t.Errorf("weight %d, %d by age, %d by key", s.weight, s.byAge.Len(), len(s.byKey))
	}
	s.put(make(9, 100))
	if s.weight != 0 || len(s.byKey) != 0 {
		t.Errorf("one over the bound: weight %d, %d left", s.weight, len(s.byKey))
	}
	s.drop(finalizer.WorkflowKey{Name: "never"})
}

func TestReadHoldsWhileTheVersionStays(t *testing.T) {
	began := time.Unix(1000, 0)
	tests := map[string]struct {
		then, now string
		after     time.Duration
		want      bool
		gone      bool
	}{
		"a workflow that is gone, a day later": {"", "", 24 * time.Hour, true, true},
		"one of the name that came since":      {"", "5", 0, false, true},
		"the same version, a day later":        {"5", "5", 24 * time.Hour, true, false},
		"another version, at once":             {"5", "6", 0, false, false},
		"the watch knows it no more":           {"5", "", 0, false, false},
		"the watch has come to know it":        {"", "5", 0, false, false},
		"unknown before and now, at once":      {"", "", time.Second, true, false},
		"unknown before and now, later":        {"", "", 3 * time.Second, false, false},
		"unknown before and now, too early":    {"", "", 3*time.Second - 1, true, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := &read{version: tc.then, began: began, wf: finalizer.Workflow{Exists: !tc.gone}}
			if got := r.holds(tc.now, began.Add(tc.after), 3*time.Second); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
