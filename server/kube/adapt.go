package kube

import "time"

// adaptation is what the limiter learns from the latency of writes.
type adaptation struct {
	smooth, best time.Duration // of whole windows; 0: not measured
	since        time.Time     // writes begun before do not count: sent under another limit
	steady       time.Time     // nor does the latency of those begun before: another mix of writes
	windowSum    time.Duration
	windowCount  int
	windowFull   bool      // the limit made writes wait
	measured     time.Time // when best was begun anew
	resume       float64   // the limit to go back to after a probe; 0: no probe
}

// learn takes the end of a write that began then.
func (l *limiter) learn(now, began time.Time, s signal) {
	switch {
	case began.Before(l.since):
	case s == signalOverload:
		l.shrink(now)
	case s == signalOK && !began.Before(l.steady):
		l.sample(now, now.Sub(began))
	}
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
