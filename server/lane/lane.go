package lane

import "time"

// lane is the state of one key.
//
// An arrival either joins the running phase or waits in line for a later one.
// A phase is one exclusive holder, or any number of subs, each with one shared
// holder and its own queue. line holds whoever arrived while an exclusive one
// was running or waiting, and so begins with an exclusive waiter unless an
// exclusive holder is running. An entry moves from line to a sub's queue once
// and is granted once: the work is constant per entry, however long the line.
//
// A lane with neither alone nor subs is idle and not in the map.
type lane[K, S comparable] struct {
	alone *entry[K, S]
	// subs has a key for each shared holder; the queue is nil until somebody
	// waits for that sub.
	subs    map[S]*fifo[entry[K, S]]
	line    fifo[entry[K, S]]
	waiters int
}

type state uint8

const (
	arriving state = iota
	waiting
	holding
	gone
)

// entry is one place in a lane. It is guarded by Lanes.mu, but for kind, key,
// sub, arrived and granted, which do not change once it is in the lane.
type entry[K, S comparable] struct {
	kind  Kind
	state state
	key   K
	sub   S
	lane  *lane[K, S]
	link  link[entry[K, S]]
	// callers is how many callers wait here: several when equal calls joined.
	callers int
	arrived time.Time
	// At the grant, begin is called with the mutex held, or granted is closed;
	// either may be nil.
	granted chan struct{}
	begin   func()
}

// enter grants w, queues it, or refuses it with ErrBusy. It and the methods
// below are called with the mutex held.
func (l *Lanes[K, S]) enter(w *entry[K, S]) error {
	ln := l.lanes[w.key]
	if ln == nil {
		ln = &lane[K, S]{}
		l.lanes[w.key] = ln
	}
	w.lane = ln
	q := &ln.line
	switch {
	case ln.alone != nil || !ln.line.empty():
	case w.kind == KindExclusive:
		if len(ln.subs) == 0 {
			ln.alone = w
			l.grant(w)
			return nil
		}
	default:
		if q = ln.admit(w.sub); q == nil {
			l.grant(w)
			return nil
		}
	}
	if err := l.addCaller(w); err != nil {
		return err
	}
	w.state = waiting
	q.push(&w.link, w)
	return nil
}

// admit takes a free sub for a shared holder and returns nil, or returns the
// queue to wait in.
func (ln *lane[K, S]) admit(sub S) *fifo[entry[K, S]] {
	q, held := ln.subs[sub]
	if held && q != nil {
		return q
	}
	if held {
		q = &fifo[entry[K, S]]{}
	} else if ln.subs == nil {
		ln.subs = make(map[S]*fifo[entry[K, S]])
	}
	ln.subs[sub] = q
	return q
}

// addCaller counts one more caller that waits at w.
func (l *Lanes[K, S]) addCaller(w *entry[K, S]) error {
	if w.lane.waiters >= l.maxWaiters {
		return ErrBusy
	}
	w.callers++
	w.lane.waiters++
	l.waiters++
	return nil
}

func (l *Lanes[K, S]) dropCallers(w *entry[K, S], n int) {
	w.callers -= n
	w.lane.waiters -= n
	l.waiters -= n
}

func (l *Lanes[K, S]) grant(w *entry[K, S]) {
	l.dropCallers(w, w.callers)
	l.holders++
	w.state = holding
	switch {
	case w.begin != nil:
		w.begin()
	case w.granted != nil:
		close(w.granted)
	}
}

// exit takes w out of its lane and lets those behind it advance.
func (l *Lanes[K, S]) exit(w *entry[K, S]) {
	ln := w.lane
	switch w.state {
	case waiting:
		w.link.unlink()
		l.dropCallers(w, w.callers)
	case holding:
		l.holders--
		l.vacate(ln, w)
	default:
		return
	}
	w.state, w.lane, w.begin = gone, nil, nil
	l.advance(ln)
	if ln.alone == nil && len(ln.subs) == 0 {
		delete(l.lanes, w.key)
	}
}

// vacate frees what w holds; a sub goes straight to its next waiter.
func (l *Lanes[K, S]) vacate(ln *lane[K, S], w *entry[K, S]) {
	if w.kind == KindExclusive {
		ln.alone = nil
		return
	}
	if q := ln.subs[w.sub]; q != nil && !q.empty() {
		next := q.front()
		next.link.unlink()
		l.grant(next)
		return
	}
	delete(ln.subs, w.sub)
}

// advance lets the line go as far as it can: the exclusive entry at its head
// once nobody holds, or else all shared ones up to the next exclusive.
func (l *Lanes[K, S]) advance(ln *lane[K, S]) {
	for ln.alone == nil && !ln.line.empty() {
		w := ln.line.front()
		if w.kind == KindExclusive {
			if len(ln.subs) > 0 {
				return
			}
			w.link.unlink()
			ln.alone = w
			l.grant(w)
			return
		}
		w.link.unlink()
		if q := ln.admit(w.sub); q != nil {
			q.push(&w.link, w)
		} else {
			l.grant(w)
		}
	}
}
