package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
	"github.com/finalizerd/finalizerd/server/lane"
)

const fin = finalizer.DefaultFinalizer

var flowA = finalizer.WorkflowKey{Namespace: "ns", Name: "a"}

// written is one write that reached the API server, in the words "release x".
type written struct {
	op  string
	pod string
	at  time.Time
}

// world is an API server with its watch caches: the ports of finalizer.Service
// and of the reconciler, all but the reads, which liveReader has.
type world struct {
	mu      sync.Mutex
	pods    map[string]finalizer.Pod // live, with status, by name
	version int
	flows   map[finalizer.WorkflowKey]finalizer.Workflow
	ending  bool // the namespace is Terminating
	blind   bool // workflows are not watched
	lagging bool // the watch of workflows tells nothing new
	deaf    bool // no event reaches the reconciler
	seen    map[finalizer.WorkflowKey]finalizer.Workflow
	stamps  map[finalizer.WorkflowKey]int // version of flows
	told    map[finalizer.WorkflowKey]int // version of seen
	health  map[string]finalizer.NodeHealth

	fault   func(op, what string) error // asked before each request; nil: none
	latency time.Duration               // of each request
	counts  map[string]int
	writes  []written
	tries   map[string][]time.Time // writes begun, by pod
	events  []finalizer.Event
	changed func(finalizer.WorkflowKey)
	born    time.Time
	core    *finalizer.Service
}

func newWorld() *world {
	return &world{
		pods: map[string]finalizer.Pod{}, flows: map[finalizer.WorkflowKey]finalizer.Workflow{},
		seen: map[finalizer.WorkflowKey]finalizer.Workflow{}, stamps: map[finalizer.WorkflowKey]int{},
		told: map[finalizer.WorkflowKey]int{}, health: map[string]finalizer.NodeHealth{},
		born: time.Now(), counts: map[string]int{}, tries: map[string][]time.Time{}, changed: func(finalizer.WorkflowKey) {},
	}
}

// compose makes a reconciler in mode On over the world, and tells it of changes.
func (w *world) compose(change ...func(*Config)) *Reconciler {
	c := Config{Pods: w, Seen: seenBy{w}, Status: liveReader{w}, Nodes: w, Events: w, Policy: finalizer.DefaultPolicy(), Mode: On}
	for _, f := range change {
		f(&c)
	}
	w.core = finalizer.New(finalizer.Config{
		Cache: w, Held: w, Reader: liveReader{w}, Writer: w, Unhider: w, Events: w, Nodes: w,
		Lanes: lane.New[finalizer.WorkflowKey, string](lane.Options{MaxWaiters: 100_000}), Policy: c.Policy,
	})
	c.Core = w.core
	r := New(c)
	if !w.deaf {
		w.changed = r.Changed
	}
	return r
}

// start runs a reconciler until the test ends.
func (w *world) start(t *testing.T, change ...func(*Config)) *Reconciler {
	t.Helper()
	r := w.compose(change...)
	runIn(t, t.Context(), r)
	return r
}

// runIn runs r, and at the end of the test wants it to have ended well.
func runIn(t *testing.T, ctx context.Context, r *Reconciler) {
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// pod is a held pod of flowA that runs, ten minutes old.
func pod(name string, change ...func(*finalizer.Pod)) finalizer.Pod {
	p := finalizer.Pod{
		PodID:      finalizer.PodID{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Owner:      finalizer.Owner{Group: "argoproj.io", Kind: "Workflow", Name: "a", UID: "wf-a"},
		Finalizers: []string{fin}, NodeID: "node-" + name, CreatedAt: time.Now().Add(-10 * time.Minute),
		Status: &finalizer.PodStatus{Phase: "Running", Started: true, NodeName: "n1"},
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

type edit = func(*finalizer.Pod)

func deleted(p *finalizer.Pod)   { p.DeletedAt = time.Now() }
func completed(p *finalizer.Pod) { p.Completed = true }
func unheld(p *finalizer.Pod)    { p.Finalizers = nil }
func young(p *finalizer.Pod)     { p.CreatedAt = time.Now() }
func pending(p *finalizer.Pod)   { p.Status = &finalizer.PodStatus{Phase: "Pending"} }
func unowned(p *finalizer.Pod)   { p.Owner = finalizer.Owner{} }
func phase(s string) edit        { return func(p *finalizer.Pod) { p.Status.Phase = s } }
func of(flow string) edit {
	return func(p *finalizer.Pod) { p.Owner.Name, p.Owner.UID = flow, types.UID("wf-"+flow) }
}

func keyOf(p *finalizer.Pod) finalizer.WorkflowKey {
	return finalizer.WorkflowKey{Namespace: p.Namespace, Name: p.Owner.Name}
}

// put adds or replaces pods.
func (w *world) put(pods ...finalizer.Pod) {
	for _, p := range pods {
		w.mu.Lock()
		w.store(p)
		w.mu.Unlock()
		w.changed(keyOf(&p))
	}
}

// store is called with the mutex held.
func (w *world) store(p finalizer.Pod) {
	w.version++
	p.ResourceVersion = fmt.Sprint(w.version)
	w.pods[p.Name] = p
}

func (w *world) edit(name string, f edit) {
	w.mu.Lock()
	p := w.pods[name]
	f(&p)
	w.store(p)
	w.mu.Unlock()
	w.changed(keyOf(&p))
}

// flow stores flowA with a node for each name and phase, "name=Phase"; "!" for
// the phase of the workflow: completed; "~": a retry set it to run again just now.
func (w *world) flow(nodes ...string) { w.flowOf(flowA, nodes...) }

func (w *world) flowOf(key finalizer.WorkflowKey, nodes ...string) {
	wf := finalizer.Workflow{Exists: true, UID: types.UID("wf-" + key.Name), Phase: "Running", StartedAt: w.born.Add(-20 * time.Minute)}
	stored := map[string]finalizer.Node{}
	for _, s := range nodes {
		name, phase, _ := strings.Cut(s, "=")
		switch name {
		case "!":
			wf.Completed = true
			continue
		case "~":
			wf.CompletedOnce, wf.StartedAt = true, time.Now()
			continue
		}
		n := finalizer.Node{Type: "Pod", Phase: phase, StartedAt: w.born.Add(-10 * time.Minute)}
		if phase == "Succeeded" || phase == "Failed" {
			n.FinishedAt = time.Now().Add(-time.Minute)
		}
		stored["node-"+name] = n
	}
	wf.SetNodes(stored)
	w.setFlow(key, wf)
}

func (w *world) setFlow(key finalizer.WorkflowKey, wf finalizer.Workflow) {
	w.mu.Lock()
	w.version++
	wf.Key = key
	w.flows[key], w.stamps[key] = wf, w.version
	if !w.lagging {
		wf.Nodes = nil
		w.seen[key], w.told[key] = wf, w.version
	}
	w.mu.Unlock()
	w.changed(key)
}

func (w *world) dropFlow(key finalizer.WorkflowKey) {
	w.mu.Lock()
	delete(w.flows, key)
	delete(w.seen, key)
	delete(w.told, key)
	w.mu.Unlock()
	w.changed(key)
}

// fail makes every request whose op is among ops end in the error; nil: none.
func (w *world) fail(err *finalizer.Error, ops ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = func(op, _ string) error {
		if err == nil || len(ops) > 0 && !slices.Contains(ops, op) {
			return nil
		}
		c := *err
		return &c
	}
}

func (w *world) count(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[op]
}

// log returns the writes as "release x" or "release+label x", sorted.
func (w *world) log() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, e := range w.writes {
		out = append(out, e.op+" "+e.pod)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// wantWrites fails the test unless these writes were made so far.
func (w *world) wantWrites(t *testing.T, want string) {
	t.Helper()
	if got := w.log(); got != want {
		t.Errorf("writes: got %q, want %q", got, want)
	}
}

func (w *world) wantCount(t *testing.T, op string, want int) {
	t.Helper()
	if got := w.count(op); got != want {
		t.Errorf("%s: got %d, want %d", op, got, want)
	}
}

func (w *world) standing(r finalizer.Reason) int { return w.core.HeldByReason()[r].Pods }

func (w *world) eventsOf(reason string) []finalizer.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []finalizer.Event
	for _, e := range w.events {
		if e.Reason == reason {
			out = append(out, e)
		}
	}
	return out
}

func comparePods(a, b finalizer.Pod) int { return cmp.Compare(a.Name, b.Name) }

// pause lets the bubble's clock go on, and all that is due by then happen.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
