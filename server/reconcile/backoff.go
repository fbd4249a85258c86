package reconcile

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// pace is how the delays after failures of one sort grow.
type pace struct{ first, most time.Duration }

// paceOf never gives up: what blocks a release may be mended at any time.
func paceOf(k finalizer.Kind) pace {
	switch k {
	case finalizer.KindBlocked:
		return pace{30 * time.Second, 10 * time.Minute}
	case finalizer.KindForbidden:
		return pace{5 * time.Second, 30 * time.Second}
	case finalizer.KindThrottled, finalizer.KindUnavailable:
		// An outage is no pod's fault: when it ends, all go on soon. How many
		// writes are in flight meanwhile is the limit's to bound.
		return pace{time.Second, 15 * time.Second}
	}
	return pace{time.Second, time.Minute}
}

// backoff is the state of something that fails. The zero value: it does not.
type backoff struct {
	until time.Time
	pace  pace
	tries int // failures in a row at this pace
}

func (b *backoff) waits(now time.Time) bool { return now.Before(b.until) }

// fail doubles the delay, jittered by half, and never undercuts what the API
// server asked for.
func (b *backoff) fail(err error, now time.Time) {
	if p := paceOf(finalizer.KindOf(err)); p != b.pace {
		b.pace, b.tries = p, 0
	}
	d := b.pace.first
	for range b.tries {
		if d = min(2*d, b.pace.most); d == b.pace.most {
			break
		}
	}
	b.tries++
	d = d/2 + rand.N(d/2+1)
	var e *finalizer.Error
	if errors.As(err, &e) {
		d = max(d, e.RetryAfter)
	}
	b.until = now.Add(d)
}
