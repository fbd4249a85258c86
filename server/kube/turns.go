package kube

import (
	"slices"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// class is the writes of callers, or those of the background: in flight, and
// waiting. It is under the limiter's lock.
type class struct {
	inFlight int
	using    map[finalizer.WorkflowKey]int // of inFlight; never 0
	inside   map[string]int                // of inFlight, by namespace; never 0
	waiting  map[finalizer.WorkflowKey]*queue
	turns    []*queue // those with waiters, in order of turn
}

type queue struct {
	key     finalizer.WorkflowKey
	waiters []*waiter
}

type waiter struct {
	granted chan struct{}
	done    bool // granted; under the limiter's lock
}

func newClass() class {
	return class{
		using: map[finalizer.WorkflowKey]int{}, inside: map[string]int{}, waiting: map[finalizer.WorkflowKey]*queue{},
	}
}

func (c *class) idle() bool { return c.inFlight == 0 && len(c.turns) == 0 }

func (c *class) take(key finalizer.WorkflowKey) {
	c.inFlight++
	c.using[key]++
	c.inside[key.Namespace]++
}

func (c *class) giveBack(key finalizer.WorkflowKey) {
	c.inFlight--
	if c.using[key]--; c.using[key] == 0 {
		delete(c.using, key)
	}
	if c.inside[key.Namespace]--; c.inside[key.Namespace] == 0 {
		delete(c.inside, key.Namespace)
	}
}

func (c *class) enqueue(key finalizer.WorkflowKey, w *waiter) {
	q := c.waiting[key]
	if q == nil {
		q = &queue{key: key}
		c.waiting[key] = q
		c.turns = append(c.turns, q)
	}
	q.waiters = append(q.waiters, w)
}

func (c *class) leave(key finalizer.WorkflowKey, w *waiter) {
	q := c.waiting[key]
	if i := slices.Index(q.waiters, w); i >= 0 {
		q.waiters = slices.Delete(q.waiters, i, i+1)
	}
	if len(q.waiters) == 0 {
		delete(c.waiting, key)
		c.skip(q)
	}
}

// grant gives a place to the workflow's first waiter, and the next turn to the
// workflow after all others.
func (c *class) grant(key finalizer.WorkflowKey) {
	q := c.waiting[key]
	c.skip(q)
	w := q.waiters[0]
	q.waiters[0] = nil
	q.waiters = q.waiters[1:]
	if len(q.waiters) > 0 {
		c.turns = append(c.turns, q)
	} else {
		delete(c.waiting, key)
	}
	w.done = true
	close(w.granted)
	c.take(key)
}

// skip takes the workflow's turn away.
func (c *class) skip(q *queue) {
	if i := slices.Index(c.turns, q); i >= 0 {
		c.turns = slices.Delete(c.turns, i, i+1)
	}
	if len(c.turns) == 0 {
		c.turns = nil
	}
}

// size returns the number of waiters.
func (c *class) size() int {
	n := 0
	for _, q := range c.waiting {
		n += len(q.waiters)
	}
	return n
}
