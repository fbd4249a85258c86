package finalizer

import (
	"cmp"
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
	opGetPod      = "get pod"
	opListPods    = "list pods"
	opGetWorkflow = "get workflow"
)

// access is one request to the API server. Begin and End count the starts and
// ends of all requests, so that overlap can be told without a clock.
type access struct {
	Op         string
	Flow       WorkflowKey
	Pod        PodID
	Caller     string
	Mark       bool
	Begin, End int
	At         time.Time
}

func (a access) write() bool { return a.Op == opRelease || a.Op == opDelete || a.Op == opAdd }

type nameKey struct{ namespace, name string }

// world is an API server with its watch cache: it implements Cache, Held and
// Writer, and liveReader Reader. What others do reaches the cache at once unless lagging.
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
		Cache: w, Held: w, Reader: liveReader{w}, Writer: w, Policy: DefaultPolicy(),
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

// Pod implements Cache.
func (w *world) Pod(namespace, name string) (Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.cached[nameKey{namespace, name}]
	return p, ok
}

func (w *world) PodsOfWorkflow(key WorkflowKey) []Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Pod
	for _, p := range w.cached {
		if p.Owner.IsWorkflow() && p.workflow() == key {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (w *world) Subscribe(key WorkflowKey) (<-chan struct{}, func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{}, 1)
	w.subs[c] = key
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.subs, c)
	}
}

func (w *world) subscriptions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.subs)
}

func (w *world) HeldPods(namespace string, after PodID, limit int) []Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Pod
	for _, p := range w.cached {
		past := cmp.Or(cmp.Compare(p.Namespace, after.Namespace), cmp.Compare(p.Name, after.Name)) > 0
		if p.Has(fin) && past && (namespace == "" || p.Namespace == namespace) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(limit, len(out))]
}

// liveReader is the world's Reader; Cache and Reader both have a method Pod.
type liveReader struct{ w *world }

func (l liveReader) Workflow(ctx context.Context, key WorkflowKey) (Workflow, error) {
	w := l.w
	end, err := w.request(ctx, access{Op: opGetWorkflow, Flow: key})
	if err != nil {
		return Workflow{}, err
	}
	defer end()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.readErr[key]; err != nil {
		return Workflow{}, err
	}
	wf := w.flows[key]
	wf.Key = key
	return wf, nil
}

func (l liveReader) Pod(ctx context.Context, namespace, name string) (Pod, error) {
	w := l.w
	end, err := w.request(ctx, access{Op: opGetPod, Pod: PodID{Namespace: namespace, Name: name}})
	if err != nil {
		return Pod{}, err
	}
	defer end()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.podErr[name]; err != nil {
		return Pod{}, err
	}
	p, ok := w.pods[nameKey{namespace, name}]
	if !ok {
		return Pod{}, &Error{Kind: KindPodNotFound, Message: "the pod does not exist"}
	}
	return p, nil
}

// Pods goes by label: the owner's name, unless labels has another.
func (l liveReader) Pods(ctx context.Context, key WorkflowKey) ([]Pod, error) {
	w := l.w
	end, err := w.request(ctx, access{Op: opListPods, Flow: key})
	if err != nil {
		return nil, err
	}
	defer end()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Pod
	for _, p := range w.pods {
		label := p.Owner.Name
		if l, ok := w.labels[p.Name]; ok {
			label = l
		}
		if p.Namespace == key.Namespace && label == key.Name {
			out = append(out, p)
		}
	}
	return out, nil
}

func (w *world) AddFinalizer(ctx context.Context, t Target) (Pod, error) {
	return w.send(ctx, access{Op: opAdd, Flow: t.Workflow, Pod: t.Pod}, func(p *Pod) error {
		if p.Terminating() {
			return &Error{Kind: KindTerminating, Pod: t.Pod, Message: "no new finalizer"}
		}
		if !p.Has(fin) {
			p.Finalizers = append(p.Finalizers, fin)
		}
		return nil
	})
}

func (w *world) Release(ctx context.Context, t Target, mark bool) (Pod, error) {
	return w.send(ctx, access{Op: opRelease, Flow: t.Workflow, Pod: t.Pod, Mark: mark}, func(p *Pod) error {
		p.Finalizers = p.Foreign(fin)
		p.Completed = p.Completed || mark
		return nil
	})
}

func (w *world) Delete(ctx context.Context, t Target) (Pod, error) {
	return w.send(ctx, access{Op: opDelete, Flow: t.Workflow, Pod: t.Pod}, func(p *Pod) error {
		if p.Terminating() {
			return nil
		}
		p.GraceSeconds = w.grace[p.UID]
		p.DeletedAt = time.Now().Add(time.Duration(p.GraceSeconds) * time.Second)
		return nil
	})
}

func (w *world) send(ctx context.Context, a access, f func(*Pod) error) (Pod, error) {
	end, err := w.request(ctx, a)
	if err != nil {
		return Pod{}, err
	}
	defer end()
	if before := w.before[a.Pod.UID]; before != nil {
		before()
	}
	if fault := w.fault[a.Pod.UID]; fault != nil {
		if err := fault(a.Op); err != nil {
			return Pod{}, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.pods[nameKey{a.Pod.Namespace, a.Pod.Name}]
	switch {
	case !ok:
		return Pod{}, &Error{Kind: KindGone, Pod: a.Pod, Message: "gone"}
	case p.UID != a.Pod.UID:
		return Pod{}, &Error{Kind: KindReplaced, Pod: a.Pod, Message: "another UID"}
	}
	p.Finalizers = slices.Clone(p.Finalizers)
	if err := f(&p); err != nil {
		return Pod{}, err
	}
	return w.settle(p, true), nil
}

// failing returns a fault that fails the first n writes.
func failing(n int, e *Error) func(string) error {
	var mu sync.Mutex
	return func(string) error {
		mu.Lock()
		defer mu.Unlock()
		if n--; n >= 0 {
			c := *e
			return &c
		}
		return nil
	}
}

func throttled() *Error   { return &Error{Kind: KindThrottled, Message: "throttled"} }
func unavailable() *Error { return &Error{Kind: KindUnavailable, Message: "unavailable"} }

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
