package reconcile

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// pass is one look at all pods of a workflow.
type pass struct {
	*loop
	key   finalizer.WorkflowKey
	mem   *memory
	began time.Time

	cached []finalizer.Pod // all of the workflow
	hint   finalizer.Workflow
	items  []*item
	read   *read // a live read that still holds
	tried  bool  // a live read was begun in this pass

	look       time.Time     // the earliest time to look again
	away       time.Duration // spent waiting for others
	unfinished bool
	done       tally
}

// item is a pod that the rule has to decide on.
type item struct {
	e     finalizer.Evidence
	d     finalizer.Decision
	mem   *podMemory
	asked finalizer.Need // the last that was tried to meet in this pass, beyond the workflow
}

func (it *item) held(p *pass) bool { return it.e.Pod.Has(p.Policy.Finalizer) }

// run decides on all pods, and acts.
func (p *pass) run(ctx context.Context) {
	p.mem.passes++
	p.collect()
	if len(p.items) > 0 {
		p.decide(ctx)
		p.remember()
		p.note()
		p.act(ctx)
	}
	p.mem.forgetOthers()
	if len(p.items) == 0 {
		p.reads.drop(p.key)
		// A workflow whose pods come and go must not be read for each.
		if end := p.mem.lastRead.Add(p.GlanceInterval); p.began.Before(end) {
			p.lookAt(end)
		}
	}
	p.mem.look = p.look
}

// lookAt calls for a pass at a time, if none is called for earlier.
func (p *pass) lookAt(at time.Time) {
	if !at.IsZero() && (p.look.IsZero() || at.Before(p.look)) {
		p.look = at
	}
}

// outside runs what waits for others, which costs no computing.
func (p *pass) outside(f func()) {
	start := time.Now()
	f()
	p.away += time.Since(start)
}

// collect takes the pods that matter from the cache, with what is known of them.
func (p *pass) collect() {
	p.hint = p.Seen.Workflow(p.key)
	p.cached = p.Pods.PodsOfWorkflow(p.key)
	for i := range p.cached {
		pod := &p.cached[i]
		if !pod.Completed && !pod.Has(p.Policy.Finalizer) {
			p.released(pod)
			continue
		}
		it := &item{mem: p.mem.pod(pod.UID)}
		it.e = finalizer.Evidence{Pod: *pod, Workflow: p.hint, HiddenSince: it.mem.hiddenSince}
		it.e.Pod.Status = it.mem.statusAt(pod.ResourceVersion)
		p.items = append(p.items, it)
	}
	if r := p.reads.get(p.key); r != nil && r.holds(p.Seen.ResourceVersion(p.key), p.began, p.ReadInterval) {
		p.read = r
	}
}

// released withdraws what was noted of a pod that is held no more.
func (p *pass) released(pod *finalizer.Pod) {
	if pm := p.mem.pods[pod.UID]; pm != nil && pm.noted {
		pm.noted = false
		p.Core.Note(pod, finalizer.Decision{}, p.began)
	}
}

// rounds bounds how often the rule is asked in one pass after the first time: for
// a remembered read, a new one, the status and the health.
const rounds = 4

// decide asks the rule on what the watches tell, and then on what it asked for.
func (p *pass) decide(ctx context.Context) {
	p.judge(p.items)
	for range rounds {
		better := p.giveWorkflow(ctx)
		better = append(better, p.giveStatus(ctx)...)
		better = append(better, p.giveHealth(ctx)...)
		if len(better) == 0 || ctx.Err() != nil {
			return
		}
		p.judge(better)
	}
}

func (p *pass) judge(items []*item) {
	now := time.Now()
	for _, it := range items {
		it.e.Now = now
		it.e.Remembered = p.Core.Remembered(it.e.Pod.UID)
		it.d = p.Policy.Decide(it.e)
	}
}

// remember keeps since when pods are hidden.
func (p *pass) remember() {
	for _, it := range p.items {
		switch {
		case !it.e.Pod.Completed || it.e.Remembered:
			it.mem.hiddenSince = time.Time{}
		case !it.mem.hiddenSince.IsZero():
		case it.d.Reason == finalizer.ReasonHidden, !it.held(p) && !it.d.At.IsZero():
			it.mem.hiddenSince = it.e.Now
		}
	}
}

// note tells lists and metrics what is known of held pods, before any is
// released: that takes its time.
func (p *pass) note() {
	for _, it := range p.items {
		if !it.held(p) {
			p.released(&it.e.Pod)
			continue
		}
		p.Core.Note(&it.e.Pod, it.d, it.e.Now)
		it.mem.noted = true
	}
}

// each calls f for 0 to n-1, some at a time, and returns when all have returned.
func each(n int, f func(i int)) {
	const width = 16
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(n, width) {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	running.Wait()
}
