package lane

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// fill lets n arrive on a held lane; every 50th is exclusive.
func fill(t testing.TB, l *Lanes[int, int], n int) (release func(), all []*entry[int, int]) {
	release, err := l.Exclusive(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		kind := KindShared
		if i%50 == 0 {
			kind = KindExclusive
		}
		w, err := l.arrive(kind, 0, i%7)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	return release, all
}

// perWaiter is the best of three, so that a busy machine does not spoil it.
func perWaiter(t *testing.T, n int, backwards bool) time.Duration {
	best := time.Hour
	for range 3 {
		l := New[int, int](Options{MaxWaiters: n})
		release, all := fill(t, l, n)
		if backwards {
			slices.Reverse(all)
		}
		start := time.Now()
		if !backwards {
			release()
		}
		for _, w := range all {
			l.leave(w)
		}
		best = min(best, time.Since(start))
		release()
		if d := l.Depth(); d != (Depth{}) {
			t.Fatalf("left behind: %+v", d)
		}
	}
	return best / time.Duration(n)
}

// A scan of the waiters at each grant or cancellation would cost a hundred
// times as much per waiter here.
func TestCostPerWaiterDoesNotGrowWithTheirNumber(t *testing.T) {
	for name, backwards := range map[string]bool{"grants from the front": false, "cancellations from the back": true} {
		t.Run(name, func(t *testing.T) {
			few, many := perWaiter(t, 1_000, backwards), perWaiter(t, 100_000, backwards)
			t.Logf("%v each of 1,000; %v each of 100,000", few, many)
			if many > 25*max(few, 50*time.Nanosecond) {
				t.Errorf("%v each of 1,000, but %v each of 100,000", few, many)
			}
		})
	}
}

func TestTenThousandWaitersOnOneLane(t *testing.T) {
	const n = 10_000
	l := New[int, int](Options{})
	release, err := l.Exclusive(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			hold := l.Shared
			if i%10 == 0 {
				hold = func(ctx context.Context, key, _ int) (func(), error) { return l.Exclusive(ctx, key) }
			}
			release, err := hold(t.Context(), 0, i%1000)
			if err != nil {
				t.Error(err)
				return
			}
			release()
		})
	}
	start := time.Now()
	release()
	wg.Wait()
	t.Logf("%d waiters in %v", n, time.Since(start))
	if d := l.Depth(); d != (Depth{}) {
		t.Errorf("left behind: %+v", d)
	}
}

func BenchmarkUncontended(b *testing.B) {
	ctx := b.Context()
	key := workflow{"namespace", "workflow"}
	b.Run("Exclusive", func(b *testing.B) {
		l := New[workflow, string](Options{})
		b.ReportAllocs()
		for b.Loop() {
			release, _ := l.Exclusive(ctx, key)
			release()
		}
	})
	b.Run("Shared", func(b *testing.B) {
		l := New[workflow, string](Options{})
		b.ReportAllocs()
		for b.Loop() {
			release, _ := l.Shared(ctx, key, "pod")
			release()
		}
	})
	b.Run("Shared beside another", func(b *testing.B) {
		l := New[workflow, string](Options{})
		other, _ := l.Shared(ctx, key, "other")
		defer other()
		b.ReportAllocs()
		for b.Loop() {
			release, _ := l.Shared(ctx, key, "pod")
			release()
		}
	})
	b.Run("Do", func(b *testing.B) {
		c := NewCalls[workflow, string, podCall, int](New[workflow, string](Options{}))
		b.ReportAllocs()
		for b.Loop() {
			_, _, _ = c.Do(ctx, key, "pod", podCall{}, func(context.Context) (int, error) { return 0, nil })
		}
	})
}

func BenchmarkContended(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n, " waiters"), func(b *testing.B) {
			for b.Loop() {
				l := New[int, int](Options{MaxWaiters: n})
				release, all := fill(b, l, n)
				release()
				for _, w := range all {
					l.leave(w)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/waiter")
		})
	}
}
