package kube

import (
	"context"
	"sync"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const (
	limitFloor = 2
	limitStart = 16
	// probeEvery is how often the latency at limitStart is measured anew.
	probeEvery = time.Minute
	// maxPause bounds what a Retry-After can do to everybody's writes.
	maxPause = time.Minute
	// quietAfter is how long after the last write of a caller the background may
	// use most of the limit again.
	quietAfter = 2 * time.Second
)

// limiter bounds the writes in flight by one adaptive limit, shared fairly:
// first come first served within a workflow, turn by turn across workflows. An
// eighth of the places is closed to the workflow that holds all others: turns
// alone come only when places come back, and the writes of one namespace may
// hang in a webhook for as long as the API server lets them.
//
// Background writes, of all workflows together, hold at most seven eighths of
// the places, so that a caller's write finds one. While callers write, and for
// quietAfter, they hold a sixteenth, at least 1, which callers cannot take from
// them; above it callers go first. An eighth of what the background may hold, at
// least 1 of 4, is closed to the namespace that holds all the rest, and as much of
// a namespace's share to one workflow of it: the webhook that hangs is most often
// that of one namespace, and the reconciler would soon release nothing elsewhere.
//
// The limit starts at limitStart. It grows by one a window (as many answers as
// the limit) in which it was what held writes back, and halves, once a window,
// on a 429 or on our own time limit. From limitStart on it grows only while the smoothed
// latency is at most twice the best. The best is measured at limitStart and not
// below: on an API server whose CPU is full, latency is proportional to the
// writes in flight, so that a best measured at 2 would keep the limit at 4 for
// ever. It is measured anew each probeEvery, by one window at limitStart. A
// background that steps back is not held back by the limit, and its latency says
// nothing about it: windows end where it begins and ends to do so.
//
// Idle, it holds no goroutine, timer or map entry.
type limiter struct {
	max float64

	mu         sync.Mutex
	limit      float64
	callers    class
	background class
	called     time.Time // when a caller last came, or its write ended
	quiet      bool      // no caller writes, nor did one of late
	pause      time.Time
	alarm      *time.Timer
	adaptation
}

// claim is a write that asks for a place.
type claim struct {
	workflow   finalizer.WorkflowKey
	background bool
}

// signal is what a finished write tells of the API server.
type signal int

const (
	signalNone     signal = iota // no answer, or none that says anything about load
	signalOK                     // an answer, of whatever content
	signalOverload               // a 429, or no answer within our own time limit
)

// newLimiter takes the highest limit; less than limitFloor counts as that.
func newLimiter(most int) *limiter {
	top := float64(max(most, limitFloor))
	return &limiter{
		max: top, limit: min(limitStart, top), quiet: true,
		callers: newClass(), background: newClass(),
	}
}

func (l *limiter) class(c claim) *class {
	if c.background {
		return &l.background
	}
	return &l.callers
}

// acquire waits for a place. On error it is ctx's, and there is nothing to
// release. A grant never goes to a ctx that is done.
func (l *limiter) acquire(ctx context.Context, c claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	now := time.Now()
	l.arrive(c, now)
	if l.waiters() == 0 && l.open(now) && l.mayTake(c) {
		l.class(c).take(c.workflow)
		l.mu.Unlock()
		return nil
	}
	w := &waiter{granted: make(chan struct{})}
	l.class(c).enqueue(c.workflow, w)
	l.grant(now)
	l.mu.Unlock()
	select {
	case <-w.granted:
	case <-ctx.Done():
	}
	err := ctx.Err()
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now = time.Now()
	if w.done {
		l.class(c).giveBack(c.workflow)
	} else {
		l.class(c).leave(c.workflow, w)
	}
	l.arrive(c, now)
	l.grant(now)
	return err
}

// release gives the place of a write back. began is when the write was sent;
// retryAfter is what the API server asked for, 0 if nothing.
func (l *limiter) release(c claim, began time.Time, s signal, retryAfter time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.class(c).giveBack(c.workflow)
	l.arrive(c, now)
	if retryAfter > 0 {
		if until := now.Add(min(retryAfter, maxPause)); until.After(l.pause) {
			l.pause = until
		}
	}
	l.learn(now, began, s)
	l.grant(now)
}

// arrive notes that a caller comes or goes.
func (l *limiter) arrive(c claim, now time.Time) {
	if !c.background {
		l.called = now
	}
	l.look(now)
}

// look finds out whether callers are quiet.
func (l *limiter) look(now time.Time) {
	quiet := l.callers.idle() && now.Sub(l.called) >= quietAfter
	if quiet != l.quiet {
		l.quiet, l.steady = quiet, now
		l.newWindow()
	}
}

func (l *limiter) waiters() int { return len(l.callers.turns) + len(l.background.turns) }

func (l *limiter) open(now time.Time) bool {
	return l.callers.inFlight+l.background.inFlight < int(l.limit) && !now.Before(l.pause)
}

// mayTake reports whether the write is within the share of its workflow and, in
// the background, of its namespace. Callers share what the background leaves, and
// one place of it stays closed even where that is little.
func (l *limiter) mayTake(c claim) bool {
	if c.background {
		places := l.backgroundPlaces()
		ofNamespace := places
		if places >= 4 {
			ofNamespace -= max(places/8, 1)
		}
		return l.background.inFlight < places &&
			l.background.inside[c.workflow.Namespace] < ofNamespace &&
			l.background.using[c.workflow] < ofNamespace-ofNamespace/8
	}
	limit := int(l.limit)
	places := limit - l.background.inFlight
	closed := places / 8
	if limit >= 8 {
		closed = max(closed, 1)
	}
	return l.callers.using[c.workflow] < max(places-closed, 1)
}

// backgroundPlaces is how many places the background may hold.
func (l *limiter) backgroundPlaces() int {
	limit := int(l.limit)
	if l.quiet {
		return max(limit*7/8, 1)
	}
	return max(limit/16, 1)
}

// next returns the claim whose turn it is. A background that has nothing in
// flight goes first: it would otherwise starve where callers always wait. One
// that is at its bound is not searched: it may have thousands of workflows.
func (l *limiter) next() (claim, bool) {
	order := [...]bool{false, true}
	if l.background.inFlight == 0 {
		order = [...]bool{true, false}
	}
	for _, background := range order {
		if background && l.background.inFlight >= l.backgroundPlaces() {
			continue
		}
		c := claim{background: background}
		for _, q := range l.class(c).turns {
			if c.workflow = q.key; l.mayTake(c) {
				return c, true
			}
		}
	}
	return claim{}, false
}

// grant hands out free places, one a turn, and sets the alarm if it is time that
// keeps waiters back. A workflow at its share keeps its turn for later.
func (l *limiter) grant(now time.Time) {
	l.look(now)
	for l.open(now) {
		c, ok := l.next()
		if !ok {
			break
		}
		l.class(c).grant(c.workflow)
	}
	if l.waiters() == 0 {
		if l.alarm != nil {
			l.alarm.Stop()
			l.alarm = nil
		}
		return
	}
	paused := now.Before(l.pause)
	if !paused && (l.quiet || len(l.callers.turns) > 0) {
		l.windowFull = true
	}
	wake := l.pause
	if !paused {
		if l.quiet || !l.callers.idle() {
			return // places come back before anything else changes
		}
		wake = l.called.Add(quietAfter)
	}
	if l.alarm == nil {
		l.alarm = time.AfterFunc(wake.Sub(now), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.alarm = nil
			l.grant(time.Now())
		})
	}
}

// load returns the writes in flight, those that wait, and the limit.
func (l *limiter) load() (inFlight, waiting, limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.callers.inFlight + l.background.inFlight, l.callers.size() + l.background.size(), int(l.limit)
}
