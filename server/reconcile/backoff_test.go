package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestBackoffGrowsWithinItsBounds(t *testing.T) {
	seconds := func(n ...int) []time.Duration {
		var out []time.Duration
		for _, s := range n {
			out = append(out, time.Duration(s)*time.Second)
		}
		return out
	}
	tests := map[string]struct {
		kind finalizer.Kind
		want []time.Duration // the most each delay may be; the least is half
	}{
		"throttled":       {finalizer.KindThrottled, seconds(1, 2, 4, 8, 15, 15)},
		"unavailable":     {finalizer.KindUnavailable, seconds(1, 2, 4, 8, 15, 15)},
		"a fault of ours": {finalizer.KindInternal, seconds(1, 2, 4, 8, 16, 32, 60, 60)},
		"deadline":        {finalizer.KindDeadline, seconds(1, 2, 4, 8, 16, 32, 60, 60)},
		"busy":            {finalizer.KindBusy, seconds(1, 2, 4, 8, 16, 32, 60, 60)},
		"blocked":         {finalizer.KindBlocked, seconds(30, 60, 120, 240, 480, 600, 600)},
		"forbidden":       {finalizer.KindForbidden, seconds(5, 10, 20, 30, 30)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(0, 0)
			least, most := make([]time.Duration, len(tc.want)), make([]time.Duration, len(tc.want))
			for range 2000 {
				var b backoff
				for i, bound := range tc.want {
					b.fail(&finalizer.Error{Kind: tc.kind}, now)
					d := b.until.Sub(now)
					if d < bound/2 || d > bound {
						t.Fatalf("delay %d: %v, want %v to %v", i+1, d, bound/2, bound)
					}
					if least[i] == 0 || d < least[i] {
						least[i] = d
					}
					most[i] = max(most[i], d)
				}
			}
			for i, bound := range tc.want { // the whole half is used
				if most[i]-least[i] < bound*2/5 {
					t.Errorf("delay %d: only %v to %v of %v", i+1, least[i], most[i], bound)
				}
			}
		})
	}
}

func TestBackoffOfAnotherSortBeginsAnew(t *testing.T) {
	now := time.Unix(0, 0)
	var b backoff
	for range 10 {
		b.fail(blocked(), now)
	}
	b.fail(unavailable(), now)
	if d := b.until.Sub(now); d > time.Second {
		t.Errorf("the first delay after an outage began: %v", d)
	}
}

func TestBackoffHonoursRetryAfter(t *testing.T) {
	now := time.Unix(0, 0)
	var b backoff
	b.fail(&finalizer.Error{Kind: finalizer.KindThrottled, RetryAfter: 42 * time.Second}, now)
	if d := b.until.Sub(now); d != 42*time.Second {
		t.Errorf("delay %v, want what the API server asked for", d)
	}
}

func TestSuccessResetsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Pending")
		w.fail(unavailable(), opUnhide)
		w.put(pod("x", completed))
		w.start(t)
		pause(10 * time.Minute)
		w.fail(nil)
		pause(time.Minute)
		w.wantWrites(t, "unhide+hold x")
		w.fail(unavailable(), opUnhide)
		w.edit("x", completed)
		pause(15 * time.Second)
		before := w.count(opUnhide)
		pause(10 * time.Second)
		if n := w.count(opUnhide) - before; n < 2 {
			t.Errorf("%d tries in the first ten seconds, want the short delays of a new failure", n)
		}
	})
}

func TestStatusThatCannotBeReadBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.flow("x=Pending", "y=Pending")
		w.fail(unavailable(), opPod, opList)
		w.put(pod("x", pending, deleted), pod("y", pending, deleted))
		w.start(t)
		pause(time.Hour)
		if n := w.count(opPod) + w.count(opList); n < 240 || n > 1000 {
			t.Errorf("%d tries in an hour", n)
		}
		w.wantWrites(t, "")
		w.fail(nil)
		pause(time.Minute)
		w.wantWrites(t, "release x, release y")
	})
}
