package finalizer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/lane"
)

// flowA and flowB are the workflows of most tests.
var (
	flowA = WorkflowKey{"ns", "a"}
	flowB = WorkflowKey{"ns", "b"}
)

const fin = DefaultFinalizer

// The operations in a world's log.
const (
	opRelease     = "release"
	opDelete      = "delete"
	opAdd         = "add"
	opUnhide      = "unhide"
	opGetPod      = "get pod"
	opListPods    = "list pods"
	opGetWorkflow = "get workflow"
)

// access is one request to the API server. Begin and End count the starts and
// ends of all requests, so that overlap can be told without a clock.
type access struct {
	Op         string
	Background bool
	Flow       WorkflowKey
	Pod        PodID
	Caller     string
	Mark       bool
	Begin, End int
	At         time.Time
}

func (a access) write() bool {
	return a.Op == opRelease || a.Op == opDelete || a.Op == opAdd || a.Op == opUnhide
}

type nameKey struct{ namespace, name string }

// world is an API server with its watch cache: it implements Cache, Held,
// Writer and Unhider, and liveReader Reader. What others do reaches the cache at once unless lagging.
type world struct {
	mu       sync.Mutex
	pods     map[nameKey]Pod // live, with status
	grace    map[types.UID]int64
	cached   map[nameKey]Pod
	lagging  bool
	flows    map[WorkflowKey]Workflow
	readErr  map[WorkflowKey]error
	podErr   map[string]error                 // by pod name, for reads
	fault    map[types.UID]func(string) error // asked before each write
	before   map[types.UID]func()             // runs before each write takes effect
	labels   map[string]string                // by pod name: what user metadata made of it
	latency  time.Duration                    // of each request
	log      []*access
	seq      int
	inFlight int
	peak     int
	version  int
	subs     map[chan struct{}]WorkflowKey
	gone     func(types.UID)
}

func newWorld() *world {
	return &world{
		pods: map[nameKey]Pod{}, cached: map[nameKey]Pod{}, grace: map[types.UID]int64{},
		flows: map[WorkflowKey]Workflow{}, readErr: map[WorkflowKey]error{}, podErr: map[string]error{},
		fault: map[types.UID]func(string) error{}, before: map[types.UID]func(){},
		labels: map[string]string{}, subs: map[chan struct{}]WorkflowKey{},
	}
}

// service composes a Service over the world.
func (w *world) service(change ...func(*Config)) *Service {
	c := Config{
		Cache: w, Held: w, Reader: liveReader{w}, Writer: w, Unhider: w, Policy: DefaultPolicy(),
		Lanes: lane.New[WorkflowKey, string](lane.Options{}),
	}
	for _, f := range change {
		f(&c)
	}
	s := New(c)
	w.gone = s.PodGone
	return s
}

// podOf is a held pod of the workflow, ten minutes old, whose node ID is its
// name with "node-" in front.
func podOf(flow WorkflowKey, name string, change ...func(*Pod)) Pod {
	p := Pod{
		PodID:      PodID{flow.Namespace, name, types.UID("uid-" + name)},
		Owner:      Owner{"argoproj.io", "Workflow", flow.Name, flowUID(flow)},
		Finalizers: []string{fin}, NodeID: "node-" + name,
		CreatedAt: time.Now().Add(-10 * time.Minute),
		Status:    &PodStatus{Phase: "Succeeded", Started: true, NodeName: "n1"},
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

func flowUID(flow WorkflowKey) types.UID { return types.UID("wf-" + flow.Name) }

func withUID(uid types.UID) func(*Pod)      { return func(p *Pod) { p.UID = uid } }
func withFinalizers(f ...string) func(*Pod) { return func(p *Pod) { p.Finalizers = f } }
func terminating(grace int64) func(*Pod) {
	return func(p *Pod) {
		p.GraceSeconds = grace
		p.DeletedAt = time.Now().Add(time.Duration(grace) * time.Second)
	}
}
func running(p *Pod) { p.Status = &PodStatus{Phase: "Running", Started: true, NodeName: "n1"} }
func pending(p *Pod) { p.Status = &PodStatus{Phase: "Pending"} }
func bare(p *Pod)    { p.Status = nil }

// put adds pods as others would.
func (w *world) put(pods ...Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range pods {
		w.store(p, !w.lagging)
	}
}

// store is called with the mutex held.
func (w *world) store(p Pod, seen bool) Pod {
	w.version++
	p.ResourceVersion = fmt.Sprint(w.version)
	w.pods[nameKey{p.Namespace, p.Name}] = p
	if seen {
		w.show(p)
	}
	return p
}

func (w *world) show(p Pod) {
	k := nameKey{p.Namespace, p.Name}
	if old, ok := w.cached[k]; ok && old.UID != p.UID {
		w.hide(old)
	}
	p.Status = nil
	w.cached[k] = p
	w.signal(p.workflow())
}

// hide drops a pod from the cache. Called with the mutex held.
func (w *world) hide(p Pod) {
	k := nameKey{p.Namespace, p.Name}
	if w.cached[k].UID != p.UID {
		return
	}
	delete(w.cached, k)
	w.signal(p.workflow())
	if w.gone != nil {
		w.gone(p.UID)
	}
}

func (w *world) signal(flow WorkflowKey) {
	for c, f := range w.subs {
		if f != flow {
			continue
		}
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// remove takes the pod out of the API, whatever holds it.
func (w *world) remove(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[nameKey{"ns", name}]
	delete(w.pods, nameKey{"ns", name})
	if !w.lagging {
		w.hide(p)
	}
}

// change alters a live pod as others would; a terminating one that nothing
// holds any more vanishes.
func (w *world) change(name string, f func(*Pod)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[nameKey{"ns", name}]
	p.Finalizers = slices.Clone(p.Finalizers)
	f(&p)
	w.settle(p, !w.lagging)
}

// settle stores the pod or, when it is removed, drops it.
func (w *world) settle(p Pod, seen bool) Pod {
	if p.Removed() {
		delete(w.pods, nameKey{p.Namespace, p.Name})
		if seen {
			w.hide(p)
		}
		p.Status = nil
		return p
	}
	p = w.store(p, seen)
	p.Status = nil
	return p
}

// catchUp shows all that the cache lags behind, in one moment.
func (w *world) catchUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, p := range w.cached {
		if _, ok := w.pods[k]; !ok {
			w.hide(p)
		}
	}
	for k, p := range w.pods {
		if w.cached[k].ResourceVersion != p.ResourceVersion {
			w.show(p)
		}
	}
}

// kubelet ends the grace period of a pod.
func (w *world) kubelet(name string) { w.change(name, func(p *Pod) { p.GraceSeconds = 0 }) }

func (w *world) live(name string) (Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.pods[nameKey{"ns", name}]
	return p, ok
}

// flow stores a running workflow with nodes of the given phases, by pod name.
func (w *world) flow(key WorkflowKey, phases map[string]string) {
	nodes := make(map[string]Node, len(phases))
	for name, phase := range phases {
		n := Node{Type: "Pod", Phase: phase, StartedAt: time.Now().Add(-10 * time.Minute)}
		if phase == "Succeeded" || phase == "Failed" || phase == "Error" {
			n.FinishedAt = time.Now().Add(-time.Minute)
		}
		nodes["node-"+name] = n
	}
	wf := Workflow{Key: key, Exists: true, UID: flowUID(key)}
	wf.SetNodes(nodes)
	w.setFlow(wf)
}

func (w *world) setFlow(wf Workflow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flows[wf.Key] = wf
}

// accesses returns the log, or the part of it that f takes.
func (w *world) accesses(f func(access) bool) []access {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []access
	for _, a := range w.log {
		if f == nil || f(*a) {
			out = append(out, *a)
		}
	}
	return out
}

// forgetLog empties the log.
func (w *world) forgetLog() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = nil
}

// writes lists the writes as "op name/uid".
func (w *world) writes() []string {
	var out []string
	for _, a := range w.accesses(access.write) {
		out = append(out, fmt.Sprintf("%s %s/%s", a.Op, a.Pod.Name, a.Pod.UID))
	}
	return out
}

// counts is the log by operation.
func (w *world) counts() map[string]int {
	n := map[string]int{}
	for _, a := range w.accesses(nil) {
		n[a.Op]++
	}
	return n
}

type callerKey struct{}

func as(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// request logs one request and takes its time. Nothing is sent after ctx is done.
func (w *world) request(ctx context.Context, a access) (end func(), err error) {
	if ctx.Err() != nil {
		return nil, laneError(ctx.Err())
	}
	a.Caller, _ = ctx.Value(callerKey{}).(string)
	a.At = time.Now()
	w.mu.Lock()
	w.seq++
	a.Begin = w.seq
	w.log = append(w.log, &a)
	w.inFlight++
	if a.write() {
		w.peak = max(w.peak, w.inFlight)
	}
	w.mu.Unlock()
	end = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seq++
		a.End = w.seq
		w.inFlight--
	}
	if w.latency > 0 {
		time.Sleep(w.latency) // a bubble's clock
	}
	return end, nil
}

// wantKind fails the test unless err has the kind; it tells nil apart.
func wantKind(t *testing.T, err error, want Kind) {
	t.Helper()
	if err == nil || KindOf(err) != want {
		t.Fatalf("error: got %v (kind %d), want kind %d", err, KindOf(err), want)
	}
}

func outcomes(rs []Result) map[string]Outcome {
	out := make(map[string]Outcome, len(rs))
	for _, r := range rs {
		name := r.Pod.Name
		if name == "" {
			name = r.NodeID
		}
		out[name] = r.Outcome
	}
	return out
}

func ref(name string) PodRef { return PodRef{name, types.UID("uid-" + name)} }

func refs(names ...string) []PodRef {
	var out []PodRef
	for _, n := range names {
		out = append(out, ref(n))
	}
	return out
}
