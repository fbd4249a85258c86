// Package lane keeps order: the work of one key (a workflow) runs on one
// serialized path, the work of different keys side by side.
//
// Within a key, exclusive holders run alone; shared holders run side by side
// when their subs (pods) differ and one after another when they are equal.
// Order is first come first served. A shared waiter may pass an earlier shared
// waiter of another sub, never an exclusive one, so neither kind starves the
// other. [Calls] lets equal calls that wait together share one run.
//
// It may import the standard library only.
//
// It does not promise anything beyond this process: two replicas that hold the
// same key know nothing of each other. Nor does it bound how many hold at once,
// or notice a holder that never releases. Holds do not nest: a holder that asks
// for its own key again can wait for itself until its context ends.
package lane

import (
	"context"
	"errors"
	"sync"
	"time"
)

// DefaultMaxWaiters is the bound that stands in for an unset
// [Options.MaxWaiters].
const DefaultMaxWaiters = 10_000

// ErrBusy says that a key has as many waiters as it may have. Nothing was
// queued and nothing ran; it is safe to come again later. It is returned
// unwrapped.
var ErrBusy = errors.New("lane: too many waiters")

// Kind tells the two ways to hold a lane apart.
type Kind uint8

const (
	// KindExclusive holds the whole lane.
	KindExclusive Kind = iota + 1
	// KindShared holds one sub of the lane.
	KindShared
)

// String is "exclusive" or "shared", fit for a metric's label.
func (k Kind) String() string {
	switch k {
	case KindExclusive:
		return "exclusive"
	case KindShared:
		return "shared"
	}
	return "unknown"
}

// Options of [New]. The zero value is usable.
type Options struct {
	// MaxWaiters bounds the callers that wait for one key, joined calls
	// included; one more gets ErrBusy. Zero or less means DefaultMaxWaiters.
	// Holders, and callers who wait for the answer of a call that has begun,
	// do not count.
	MaxWaiters int
	// Observe, when set, is told of each grant and how long it was waited for:
	// zero when the lane was free. A joined call counts once, with the wait of
	// its oldest caller. Observe runs on the path of the work, from many
	// goroutines at once: it must neither block nor panic.
	Observe func(kind Kind, waited time.Duration)
}

// Depth is how full the lanes are at one moment.
type Depth struct {
	Lanes   int // keys with at least one holder or waiter
	Holders int // grants not yet released, over all keys
	Waiters int // callers not yet granted, over all keys, joined ones included
}

// Lanes orders work per key. A key costs memory only while somebody holds it
// or waits for it, and no goroutine ever. Keys and subs must be hashable and
// equal themselves (a NaN does not). Use [New]; a Lanes must not be copied.
type Lanes[K, S comparable] struct {
	maxWaiters int
	observe    func(Kind, time.Duration)

	// One mutex for all keys: what it guards takes constant time per caller.
	mu      sync.Mutex
	lanes   map[K]*lane[K, S]
	holders int
	waiters int
}

// New returns empty lanes. It starts nothing.
func New[K, S comparable](o Options) *Lanes[K, S] {
	if o.MaxWaiters <= 0 {
		o.MaxWaiters = DefaultMaxWaiters
	}
	return &Lanes[K, S]{
		maxWaiters: o.MaxWaiters,
		observe:    o.Observe,
		lanes:      make(map[K]*lane[K, S]),
	}
}

// Exclusive waits until the caller holds the whole lane of key. On success
// release must be called; calling it again does nothing. On failure release is
// nil and nothing is held: the error is ErrBusy, or ctx.Err() when ctx ended
// first. A ctx that has ended is never granted, even if the lane is free.
func (l *Lanes[K, S]) Exclusive(ctx context.Context, key K) (release func(), err error) {
	var none S
	return l.hold(ctx, KindExclusive, key, none)
}

// Shared waits until the caller holds sub in the lane of key. Release and
// errors are those of [Lanes.Exclusive].
func (l *Lanes[K, S]) Shared(ctx context.Context, key K, sub S) (release func(), err error) {
	return l.hold(ctx, KindShared, key, sub)
}

// Depth takes constant time.
func (l *Lanes[K, S]) Depth() Depth {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Depth{Lanes: len(l.lanes), Holders: l.holders, Waiters: l.waiters}
}

func (l *Lanes[K, S]) hold(ctx context.Context, kind Kind, key K, sub S) (func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w, err := l.arrive(kind, key, sub)
	if err != nil {
		return nil, err
	}
	if err := l.await(ctx, w); err != nil {
		return nil, err
	}
	return func() { l.leave(w) }, nil
}

// arrive takes a place in the lane: from here on the order is settled.
func (l *Lanes[K, S]) arrive(kind Kind, key K, sub S) (*entry[K, S], error) {
	w := &entry[K, S]{kind: kind, key: key, sub: sub}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.enter(w); err != nil {
		return nil, err
	}
	if w.state == waiting {
		w.granted = make(chan struct{})
		if l.observe != nil {
			w.arrived = time.Now()
		}
	}
	return w, nil
}

// await returns nil once w holds. Otherwise w has left the lane.
func (l *Lanes[K, S]) await(ctx context.Context, w *entry[K, S]) error {
	if w.granted != nil {
		select {
		case <-w.granted:
		case <-ctx.Done():
		}
	}
	// The grant and the end of ctx may have come together. Whoever hung up
	// must not act, and a grant that nobody uses must go on to the next.
	if err := ctx.Err(); err != nil {
		l.leave(w)
		return err
	}
	if l.observe != nil {
		var waited time.Duration
		if !w.arrived.IsZero() {
			waited = time.Since(w.arrived)
		}
		l.observe(w.kind, waited)
	}
	return nil
}

// leave ends w, whether it waits, holds or has left already.
func (l *Lanes[K, S]) leave(w *entry[K, S]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exit(w)
}
