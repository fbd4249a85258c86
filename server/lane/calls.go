package lane

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Calls joins equal calls that wait together: one runs, all get its answer. C
// describes a call completely (UID, operation, flags): whatever differs
// between two calls and matters to their answer or to who may get it must be
// in it. Like a key, it must be hashable and equal itself. Use [NewCalls]; a Calls must not
// be copied. Several Calls may share one Lanes; they keep order with each
// other and do not join.
type Calls[K, S, C comparable, V any] struct {
	lanes *Lanes[K, S]
	// waiting, guarded by lanes.mu, has the calls that can still be joined.
	waiting map[callID[K, S, C]]*run[K, S, C, V]
}

type callID[K, S, C comparable] struct {
	key  K
	sub  S
	call C
}

// run is one execution and everybody who waits for it.
type run[K, S, C comparable, V any] struct {
	id    callID[K, S, C]
	entry entry[K, S]

	// Guarded by lanes.mu.
	members fifo[member[V]]
	cancel  context.CancelFunc

	// Written by the run's goroutine before it closes done.
	v       V
	err     error
	shared  bool
	skipped bool
	done    chan struct{}
}

type member[V any] struct {
	ctx     context.Context
	fn      func(context.Context) (V, error)
	arrived time.Time
	link    link[member[V]]
}

// PanicError is what every caller of a joined call gets when fn panicked or
// called runtime.Goexit. If all callers have left by then, nobody gets it.
type PanicError struct {
	Value any    // what fn panicked with
	Stack []byte // of the goroutine that panicked; for logs, not for callers
}

// Error leaves the stack out.
func (e *PanicError) Error() string { return fmt.Sprintf("lane: call panicked: %v", e.Value) }

// Unwrap gives the panic's value when that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// NewCalls returns a Calls over l. It starts nothing.
func NewCalls[K, S, C comparable, V any](l *Lanes[K, S]) *Calls[K, S, C, V] {
	return &Calls[K, S, C, V]{lanes: l, waiting: make(map[callID[K, S, C]]*run[K, S, C, V])}
}

// Do runs fn as a shared holder of (key, sub) and returns its answer. Equal
// calls that wait for the same grant share one run: that of the earliest
// caller who is still there when it begins. shared tells that the run served
// more than one; v is then the same value for all and must not be changed. A
// caller who joins takes the place of the call it joins, ahead of others that
// came in between, exclusive ones too: nobody waits longer for it. A call that
// comes once fn has begun waits for a run of its own, so an answer always
// rests on what was read after the call came.
//
// A caller whose ctx ends leaves at once with ctx.Err(). Others are not
// affected; the last to leave cancels fn, or, before fn began, takes the call
// out of the lane, and fn never runs. The lane stays held until fn returns,
// which may be after the last caller left.
//
// fn runs on a goroutine of its own. Its context has the values of the caller
// whose fn it is, the latest deadline of those who were there when it began
// (none if one of them had none), and ends early only when the last one
// leaves.
//
// Errors: fn's own; ErrBusy; ctx.Err(); *PanicError when fn panicked, in which
// case the lane is released all the same.
func (c *Calls[K, S, C, V]) Do(
	ctx context.Context, key K, sub S, call C, fn func(context.Context) (V, error),
) (v V, shared bool, err error) {
	if err := ctx.Err(); err != nil {
		return v, false, err
	}
	m := &member[V]{ctx: ctx, fn: fn}
	if c.lanes.observe != nil {
		m.arrived = time.Now()
	}
	r, err := c.join(callID[K, S, C]{key, sub, call}, m)
	if err != nil {
		return v, false, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if !c.leave(r, m) {
			return v, false, ctx.Err()
		}
	}
	if r.skipped {
		return v, false, ctx.Err()
	}
	return r.v, r.shared, r.err
}

// join adds m to the equal call that waits, or opens a new one.
func (c *Calls[K, S, C, V]) join(id callID[K, S, C], m *member[V]) (*run[K, S, C, V], error) {
	l := c.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := c.waiting[id]; r != nil {
		if err := l.addCaller(&r.entry); err != nil {
			return nil, err
		}
		r.members.push(&m.link, m)
		return r, nil
	}
	r := &run[K, S, C, V]{id: id, done: make(chan struct{})}
	r.members.push(&m.link, m)
	r.entry = entry[K, S]{kind: KindShared, key: id.key, sub: id.sub, begin: func() {
		// From here on equal calls must not join: fn may already be reading.
		delete(c.waiting, id)
		go c.run(r)
	}}
	if err := l.enter(&r.entry); err != nil {
		return nil, err
	}
	if r.entry.state == waiting {
		c.waiting[id] = r
	}
	return r, nil
}

// leave takes m out of r. It reports whether the answer was there already.
func (c *Calls[K, S, C, V]) leave(r *run[K, S, C, V], m *member[V]) (answered bool) {
	cancel := c.remove(r, m)
	select {
	case <-r.done:
		return true
	default:
	}
	if cancel != nil {
		cancel()
	}
	return false
}

// remove returns what cancels fn when m was the last that waited for it.
func (c *Calls[K, S, C, V]) remove(r *run[K, S, C, V], m *member[V]) context.CancelFunc {
	l := c.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	m.link.unlink()
	last := r.members.empty()
	if r.entry.state == waiting {
		if last {
			delete(c.waiting, r.id)
			l.exit(&r.entry)
		} else {
			l.dropCallers(&r.entry, 1)
		}
		return nil
	}
	if !last {
		return nil
	}
	return r.cancel
}

func (c *Calls[K, S, C, V]) run(r *run[K, S, C, V]) {
	// Deferred, because Goexit in fn comes past here too. The lane is free
	// before the callers go on, so that what they do next does not wait for
	// their own call.
	defer close(r.done)
	defer c.lanes.leave(&r.entry)
	ctx, m := c.start(r)
	if m == nil {
		r.skipped = true
		return
	}
	defer r.cancel()
	if c.lanes.observe != nil {
		c.lanes.observe(KindShared, time.Since(m.arrived))
	}
	r.err = &PanicError{Value: errors.New("runtime.Goexit called")}
	r.v, r.err = protect(ctx, m.fn)
}

// start picks the member whose fn runs, nil if no living one is left: a caller
// may have hung up and not found the time to leave.
func (c *Calls[K, S, C, V]) start(r *run[K, S, C, V]) (context.Context, *member[V]) {
	c.lanes.mu.Lock()
	defer c.lanes.mu.Unlock()
	var first *member[V]
	var latest time.Time
	bounded := true
	for n := r.members.head; n != nil; n = n.next {
		m := n.item
		if m.ctx.Err() != nil {
			continue
		}
		if first == nil {
			first = m
		} else {
			r.shared = true
		}
		deadline, ok := m.ctx.Deadline()
		bounded = bounded && ok
		if deadline.After(latest) {
			latest = deadline
		}
	}
	if first == nil {
		return nil, nil
	}
	ctx := context.WithoutCancel(first.ctx)
	if bounded {
		ctx, r.cancel = context.WithDeadline(ctx, latest)
	} else {
		ctx, r.cancel = context.WithCancel(ctx)
	}
	return ctx, first
}

func protect[V any](ctx context.Context, fn func(context.Context) (V, error)) (v V, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return fn(ctx)
}
