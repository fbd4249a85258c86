package kube

import (
	"context"
	"slices"
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
)

// limiter bounds the writes in flight by one adaptive limit, shared fairly:
// first come first served within a workflow, turn by turn across workflows. An
// eighth of the places is closed to the workflow that holds all others: turns
// alone come only when places come back, and the writes of one namespace may
// hang in a webhook for as long as the API server lets them.
//
// The limit starts at limitStart. It grows by one a window (as many answers as
// the limit) in which it was what held writes back, and halves, once a window,
// on a 429 or a timeout. From limitStart on it grows only while the smoothed
// latency is at most twice the best. The best is measured at limitStart and not
// below: on an API server whose CPU is full, latency is proportional to the
// writes in flight, so that a best measured at 2 would keep the limit at 4 for
// ever. It is measured anew each probeEvery, by one window at limitStart.
//
// Idle, it holds no goroutine, timer or map entry.
type limiter struct {
	max float64

	mu       sync.Mutex
	limit    float64
	inFlight int
	using    map[finalizer.WorkflowKey]int // of inFlight; never 0
	waiting  map[finalizer.WorkflowKey]*queue
	turns    []*queue // those with waiters, in order of turn
	pause    time.Time
	alarm    *time.Timer

	smooth, best time.Duration // of whole windows; 0: not measured
	since        time.Time     // writes begun before do not count: sent under another limit
	windowSum    time.Duration
	windowCount  int
	windowFull   bool      // writes had to wait
	measured     time.Time // when best was begun anew
	resume       float64   // the limit to go back to after a probe; 0: no probe
}

type queue struct {
	key     finalizer.WorkflowKey
	waiters []*waiter
}

type waiter struct {
	granted chan struct{}
	done    bool // granted; under the limiter's lock
}

// signal is what a finished write tells of the API server.
type signal int

const (
	signalNone     signal = iota // no answer, or none that says anything about load
	signalOK                     // an answer, of whatever content
	signalOverload               // a 429 or a timeout
)

// newLimiter takes the highest limit; less than limitFloor counts as that.
func newLimiter(most int) *limiter {
	top := float64(max(most, limitFloor))
	return &limiter{
		max: top, limit: min(limitStart, top),
		using:   map[finalizer.WorkflowKey]int{},
		waiting: map[finalizer.WorkflowKey]*queue{},
	}
}

// acquire waits for a place. On error it is ctx's, and there is nothing to
// release. A grant never goes to a ctx that is done.
func (l *limiter) acquire(ctx context.Context, key finalizer.WorkflowKey) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	if len(l.turns) == 0 && l.open(time.Now()) && l.mayUse(key) {
		l.take(key)
		l.mu.Unlock()
		return nil
	}
	w := &waiter{granted: make(chan struct{})}
	l.enqueue(key, w)
	l.grant(time.Now())
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
	if w.done {
		l.giveBack(key)
	} else {
		l.leave(key, w)
	}
	l.grant(time.Now())
	return err
}

// mayUse reports whether the workflow is below its share.
func (l *limiter) mayUse(key finalizer.WorkflowKey) bool {
	return l.using[key] < int(l.limit)-int(l.limit)/8
}

func (l *limiter) take(key finalizer.WorkflowKey) {
	l.inFlight++
	l.using[key]++
}

func (l *limiter) giveBack(key finalizer.WorkflowKey) {
	l.inFlight--
	if l.using[key]--; l.using[key] == 0 {
		delete(l.using, key)
	}
}

// release gives the place of a write back. began is when the write was sent;
// retryAfter is what the API server asked for, 0 if nothing.
func (l *limiter) release(key finalizer.WorkflowKey, began time.Time, s signal, retryAfter time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giveBack(key)
	if retryAfter > 0 {
		if until := now.Add(min(retryAfter, maxPause)); until.After(l.pause) {
			l.pause = until
		}
	}
	switch {
	case began.Before(l.since):
	case s == signalOverload:
		l.shrink(now)
	case s == signalOK:
		l.sample(now, now.Sub(began))
	}
	l.grant(now)
}

func (l *limiter) shrink(now time.Time) {
	if l.resume > 0 {
		l.limit, l.resume = l.resume, 0
	}
	l.limit = max(l.limit/2, limitFloor)
	l.since = now
	l.newWindow()
}

func (l *limiter) sample(now time.Time, took time.Duration) {
	l.windowSum += took
	l.windowCount++
	if l.windowCount < int(l.limit) {
		return
	}
	mean, full := l.windowSum/time.Duration(l.windowCount), l.windowFull
	l.newWindow()
	if !full {
		return // latency of an unused limit tells nothing about that limit
	}
	if l.resume > 0 {
		l.best, l.limit, l.resume = mean, l.resume, 0
		return
	}
	if l.limit < min(limitStart, l.max) {
		l.limit = min(l.limit+1, l.max)
		return
	}
	if l.smooth == 0 {
		l.smooth = mean
	}
	l.smooth = (7*l.smooth + 3*mean) / 10
	if l.best == 0 {
		l.measured = now
	}
	if l.best == 0 || mean < l.best {
		l.best = mean
	}
	old := now.Sub(l.measured) >= probeEvery
	switch {
	case old && l.limit > limitStart:
		l.measured, l.resume, l.limit = now, l.limit, limitStart
		l.since = now
	case old:
		l.measured, l.best = now, l.smooth
	case l.smooth <= 2*l.best:
		l.limit = min(l.limit+1, l.max)
	}
}

func (l *limiter) newWindow() {
	l.windowSum, l.windowCount, l.windowFull = 0, 0, false
}

func (l *limiter) open(now time.Time) bool {
	return l.inFlight < int(l.limit) && !now.Before(l.pause)
}

func (l *limiter) enqueue(key finalizer.WorkflowKey, w *waiter) {
	q := l.waiting[key]
	if q == nil {
		q = &queue{key: key}
		l.waiting[key] = q
		l.turns = append(l.turns, q)
	}
	q.waiters = append(q.waiters, w)
}

func (l *limiter) leave(key finalizer.WorkflowKey, w *waiter) {
	q := l.waiting[key]
	for i, other := range q.waiters {
		if other == w {
			q.waiters = append(q.waiters[:i], q.waiters[i+1:]...)
			break
		}
	}
	if len(q.waiters) > 0 {
		return
	}
	delete(l.waiting, key)
	for i, other := range l.turns {
		if other == q {
			l.turns = append(l.turns[:i], l.turns[i+1:]...)
			break
		}
	}
}

// grant hands out free places, one a turn, and sets the alarm if a pause keeps
// waiters back. A workflow at its share keeps its turn for later.
func (l *limiter) grant(now time.Time) {
	for l.open(now) {
		i := slices.IndexFunc(l.turns, func(q *queue) bool { return l.mayUse(q.key) })
		if i < 0 {
			break
		}
		q := l.turns[i]
		l.turns = slices.Delete(l.turns, i, i+1)
		w := q.waiters[0]
		q.waiters[0] = nil
		q.waiters = q.waiters[1:]
		if len(q.waiters) > 0 {
			l.turns = append(l.turns, q)
		} else {
			delete(l.waiting, q.key)
		}
		w.done = true
		close(w.granted)
		l.take(q.key)
	}
	if len(l.turns) == 0 {
		l.turns = nil
		if l.alarm != nil {
			l.alarm.Stop()
			l.alarm = nil
		}
		return
	}
	if !now.Before(l.pause) {
		l.windowFull = true
	}
	if wait := l.pause.Sub(now); wait > 0 && l.alarm == nil {
		l.alarm = time.AfterFunc(wait, func() {
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
	for _, q := range l.waiting {
		waiting += len(q.waiters)
	}
	return l.inFlight, waiting, int(l.limit)
}
