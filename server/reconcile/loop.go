package reconcile

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// loop is the state of one Run. The queue is a set, so that its size is bounded
// by the workflows that have pods.
type loop struct {
	Config
	queue workqueue.TypedDelayingInterface[finalizer.WorkflowKey]
	reads *reads

	mu    sync.Mutex
	dirty map[finalizer.WorkflowKey]time.Time // since when a change waits for a pass
	known map[finalizer.WorkflowKey]*memory
}

func newLoop(c Config) *loop {
	return &loop{
		Config: c, reads: newReads(maxNodesKept),
		queue: workqueue.NewTypedDelayingQueue[finalizer.WorkflowKey](),
		dirty: make(map[finalizer.WorkflowKey]time.Time),
		known: make(map[finalizer.WorkflowKey]*memory),
	}
}

func (l *loop) changed(key finalizer.WorkflowKey) {
	l.mu.Lock()
	if _, ok := l.dirty[key]; !ok {
		l.dirty[key] = time.Now()
	}
	l.mu.Unlock()
	l.queue.Add(key)
}

// all returns the workflows that have something to look at, and those of which
// something is remembered, in order, so that each is as far from its next turn in
// the walk as any other.
func (l *loop) all() []finalizer.WorkflowKey {
	keys := make(map[finalizer.WorkflowKey]struct{})
	for _, key := range l.Pods.Workflows() {
		keys[key] = struct{}{}
	}
	l.mu.Lock()
	for key := range l.known {
		keys[key] = struct{}{}
	}
	l.mu.Unlock()
	return slices.SortedFunc(maps.Keys(keys), func(a, b finalizer.WorkflowKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

const (
	// restFactor bounds the part of a processor that the passes of one workflow
	// take, however fast its many pods change: one in restFactor+1.
	restFactor = 4
	minRest    = 10 * time.Millisecond
	maxRest    = time.Second
)

// work takes workflows from the queue until it is shut down.
func (l *loop) work(ctx context.Context) {
	for {
		key, down := l.queue.Get()
		if down {
			return
		}
		if ctx.Err() != nil {
			l.queue.Done(key)
			continue
		}
		rest := min(restFactor*l.turn(ctx, key), maxRest)
		if rest < minRest {
			l.queue.Done(key)
			continue
		}
		// Changes meanwhile wait in the queue, and the worker is free.
		time.AfterFunc(rest, func() { l.queue.Done(key) })
	}
}

// turn makes a pass over the workflow if there is a reason to, and returns what
// it cost in computing.
func (l *loop) turn(ctx context.Context, key finalizer.WorkflowKey) time.Duration {
	began := time.Now()
	l.mu.Lock()
	since, changed := l.dirty[key]
	delete(l.dirty, key)
	mem := l.known[key]
	l.mu.Unlock()
	if !changed {
		// A scheduled look cannot be called off: it may be out of date.
		if mem == nil || mem.look.IsZero() {
			return 0
		}
		if began.Before(mem.look) {
			l.queue.AddAfter(key, mem.look.Sub(began))
			return 0
		}
		since = mem.look
	}
	if mem == nil {
		mem = &memory{}
	}
	p := &pass{loop: l, key: key, mem: mem, began: began}
	p.run(ctx)
	l.keep(key, mem)
	if p.unfinished {
		l.changed(key)
	}
	if !mem.look.IsZero() {
		l.queue.AddAfter(key, time.Until(mem.look))
	}
	took := time.Since(began)
	l.Observe.Pass(began.Sub(since), took)
	return took - p.away
}

// keep stores what the pass remembers, or drops it where there is nothing.
func (l *loop) keep(key finalizer.WorkflowKey, mem *memory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if mem.empty() {
		delete(l.known, key)
		return
	}
	l.known[key] = mem
}
