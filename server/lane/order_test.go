package lane

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// place is one arrival as the model sees it. The whole rule of order is in
// conflicts and grantable.
type place struct {
	id     int
	kind   Kind
	sub    int
	ended  bool // released, or its context was cancelled
	cancel context.CancelFunc
}

func (p *place) conflicts(q *place) bool {
	return p.kind == KindExclusive || q.kind == KindExclusive || p.sub == q.sub
}

// grantable are the ids of those with no live conflicting arrival before them.
func grantable(arrivals []*place) []int {
	ids := []int{}
	for i, p := range arrivals {
		if p.ended || slices.ContainsFunc(arrivals[:i], func(q *place) bool { return !q.ended && q.conflicts(p) }) {
			continue
		}
		ids = append(ids, p.id)
	}
	return ids
}

func arrival(rnd *rand.Rand, id int) *place {
	p := &place{id: id, kind: KindShared, sub: rnd.IntN(4)}
	if rnd.IntN(4) == 0 {
		p.kind, p.sub = KindExclusive, 0
	}
	return p
}

// After every step of a random script, exactly those hold whom the model lets
// hold: nobody too early, nobody late, nobody lost.
func TestHoldersAreThoseOfTheModelAfterEachStep(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { followModel(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func followModel(t *testing.T, rnd *rand.Rand) {
	l := New[workflow, int](Options{})
	var mu sync.Mutex
	holders := map[int]func(){}
	var live []*place
	for step := range 400 {
		if pick := rnd.IntN(10); pick < 5 && step < 300 {
			p := arrival(rnd, step)
			ctx, cancel := context.WithCancel(t.Context())
			p.cancel = cancel
			live = append(live, p)
			go func() {
				release, err := l.hold(ctx, p.kind, wf, p.sub)
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				holders[p.id] = release
			}()
		} else if len(live) > 0 {
			// From the front half mostly, so that scripts make progress.
			p := live[rnd.IntN(len(live)/2+1)]
			p.ended = true
			mu.Lock()
			release := holders[p.id]
			delete(holders, p.id)
			mu.Unlock()
			if release != nil {
				release()
			}
			p.cancel()
		}
		synctest.Wait()
		live = slices.DeleteFunc(live, func(p *place) bool { return p.ended })
		compareWithModel(t, step, l, live, holders)
	}
	for _, p := range live {
		p.cancel()
	}
	synctest.Wait()
	for _, release := range holders {
		release()
	}
	if d := l.Depth(); d != (Depth{}) || len(l.lanes) != 0 {
		t.Errorf("left behind: %+v", d)
	}
}

func compareWithModel(t *testing.T, step int, l *Lanes[workflow, int], live []*place, holders map[int]func()) {
	t.Helper()
	want := grantable(live)
	got := []int{}
	for id := range holders {
		got = append(got, id)
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("step %d: holders (-want +got):\n%s", step, d)
	}
	depth := Depth{Lanes: min(len(live), 1), Holders: len(want), Waiters: len(live) - len(want)}
	if d := cmp.Diff(depth, l.Depth()); d != "" {
		t.Fatalf("step %d: depth (-want +got):\n%s", step, d)
	}
}

// referee checks, with real goroutines, that nobody is granted while an
// earlier conflicting arrival is live. Mutual exclusion follows from it: of two
// conflicting holders the later one would be caught.
type referee struct {
	mu       sync.Mutex
	next     int
	arrivals []*place
	most     int // holders side by side, to see that the test tests something
	now      int
}

func (r *referee) end(p *place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.ended = true
	r.arrivals = slices.DeleteFunc(r.arrivals, func(q *place) bool { return q == p })
}

func TestB22HundredsOfGoroutinesWithRandomCancelsKeepOrder(t *testing.T) {
	const workers, rounds = 300, 30
	l := New[int, int](Options{})
	var referees [2]referee
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), 2))
			for range rounds {
				key := rnd.IntN(len(referees))
				takeTurn(t, l, key, &referees[key], rnd)
			}
		})
	}
	wg.Wait()
	if d := l.Depth(); d != (Depth{}) || len(l.lanes) != 0 {
		t.Errorf("left behind: %+v", d)
	}
	if referees[0].most < 2 {
		t.Error("no two shared holders ever ran side by side")
	}
}

func takeTurn(t *testing.T, l *Lanes[int, int], key int, r *referee, rnd *rand.Rand) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := arrival(rnd, 0)
	r.mu.Lock()
	p.id = r.next
	r.next++
	r.arrivals = append(r.arrivals, p)
	w, err := l.arrive(p.kind, key, p.sub)
	r.mu.Unlock()
	if err != nil {
		t.Error(err)
		return
	}
	if rnd.IntN(3) == 0 {
		go func() {
			r.end(p) // before the cancel: from then on others may pass
			cancel()
		}()
	}
	if l.await(ctx, w) != nil {
		return
	}
	r.mu.Lock()
	if !p.ended && !slices.Contains(grantable(r.arrivals), p.id) {
		t.Errorf("arrival %d (%v, sub %d) was granted before a live earlier one", p.id, p.kind, p.sub)
	}
	r.now++
	r.most = max(r.most, r.now)
	r.mu.Unlock()
	runtime.Gosched()
	r.mu.Lock()
	r.now--
	r.mu.Unlock()
	r.end(p)
	l.leave(w)
}

// The plain invariants once more through the public methods only, with
// unguarded variables that -race watches.
func TestB22HoldersNeverInterleave(t *testing.T) {
	l := New[string, int](Options{})
	var whole int
	var subs [4]int
	var wg sync.WaitGroup
	for worker := range 200 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), 3))
			for range 50 {
				if rnd.IntN(4) == 0 {
					release, err := l.Exclusive(t.Context(), "wf")
					if err != nil {
						t.Error(err)
						return
					}
					whole++
					for i := range subs {
						subs[i]++
					}
					release()
					continue
				}
				sub := rnd.IntN(len(subs))
				release, err := l.Shared(t.Context(), "wf", sub)
				if err != nil {
					t.Error(err)
					return
				}
				before := whole
				subs[sub]++
				runtime.Gosched()
				if whole != before {
					t.Error("an exclusive holder ran beside a shared one")
				}
				release()
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range subs {
		total += n - whole
	}
	if total+whole != 200*50 {
		t.Errorf("%d steps counted, want %d: two ran at once", total+whole, 200*50)
	}
}
