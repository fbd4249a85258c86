package finalizer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func withID(r BulkRequest, id string) BulkRequest {
	r.RequestID = id
	return r
}

func TestB23ARepeatGetsTheFirstAnswerAndTouchesNoNewPod(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"), podOf(flowA, "q", withFinalizers(fin, "other")))
	s := w.service()
	first, err := s.Bulk(t.Context(), withID(deleteAll(flowA), "id"))
	if err != nil {
		t.Fatal(err)
	}
	w.put(podOf(flowA, "p", withUID("uid-2"), pending), podOf(flowA, "r", pending))
	w.forgetLog()
	again, err := s.Bulk(t.Context(), withID(deleteAll(flowA), "id"))
	if diff := cmp.Diff(first, again); err != nil || diff != "" {
		t.Errorf("error %v, answer (-first +again):\n%s", err, diff)
	}
	wantCounts(t, w, map[string]int{})

	t.Run("another id, and the same id on another workflow, are other requests", func(t *testing.T) {
		w.put(podOf(flowB, "s"))
		if got, err := s.Bulk(t.Context(), withID(deleteAll(flowB), "id")); err != nil || len(got) != 1 {
			t.Errorf("got %v, %v", got, err)
		}
		if got, err := s.Bulk(t.Context(), withID(deleteAll(flowA), "id2")); err != nil || len(got) != 3 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("the caller's changes to an answer do not reach the memory", func(t *testing.T) {
		again[0].Outcome = OutcomeFailed
		if third, _ := s.Bulk(t.Context(), withID(deleteAll(flowA), "id")); third[0].Outcome != first[0].Outcome {
			t.Error("they do")
		}
	})
}

func TestB23AnIDUsedForAnotherRequestIsRefused(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"))
	s := w.service()
	first := withID(BulkRequest{Workflow: flowA, Pods: refs("p"), Force: true}, "id")
	if _, err := s.Bulk(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	w.forgetLog()
	for name, change := range map[string]func(*BulkRequest){
		"a deletion":     func(r *BulkRequest) { r.Delete = true },
		"other pods":     func(r *BulkRequest) { r.Pods = refs("p", "q") },
		"validate_only":  func(r *BulkRequest) { r.ValidateOnly = true },
		"without force":  func(r *BulkRequest) { r.Force = false },
		"of another UID": func(r *BulkRequest) { r.WorkflowUID = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			r := first
			change(&r)
			_, err := s.Bulk(t.Context(), r)
			wantKind(t, err, KindRequestIDReused)
		})
	}
	wantCounts(t, w, map[string]int{})
}

// cutOffThenRepeat runs the request until ctx ends, adds a pod, and repeats it.
func cutOffThenRepeat(t *testing.T, w *world, s *Service, ctx context.Context, r BulkRequest) (cut, again []Result) {
	t.Helper()
	cut, _ = s.Bulk(ctx, r)
	synctest.Wait()
	w.put(podOf(r.Workflow, "new"))
	again, err := s.Bulk(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := w.live("new"); !p.Has(fin) || p.Terminating() {
		t.Error("the repeat touched a pod that the first call did not see")
	}
	third, err := s.Bulk(t.Context(), r)
	if diff := cmp.Diff(again, third); err != nil || diff != "" {
		t.Errorf("third time: error %v, answer (-second +third):\n%s", err, diff)
	}
	return cut, again
}

func TestB23ARepeatGoesOnWhereTheFirstWasCutOff(t *testing.T) {
	fill := func() *world {
		w := newWorld()
		w.latency = 100 * time.Millisecond
		for i := range 50 {
			w.put(podOf(flowA, fmt.Sprintf("p%02d", i)))
		}
		return w
	}
	one := func(c *Config) { c.Workers = 1 }
	want := map[string]Outcome{}
	for i := range 50 {
		want[fmt.Sprintf("p%02d", i)] = OutcomeReleased
	}
	request := withID(BulkRequest{Workflow: flowA, All: true, Force: true}, "id")

	t.Run("by its deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := fill()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			cut, again := cutOffThenRepeat(t, w, w.service(one), ctx, request)
			if len(cut) != 50 || cut[49].Outcome != OutcomeFailed {
				t.Errorf("the first answer: %v", outcomes(cut))
			}
			wantOutcomes(t, again, want)
			wantCounts(t, w, map[string]int{opRelease: 50})
		})
	})
	t.Run("by a caller that hung up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := fill()
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			_, again := cutOffThenRepeat(t, w, w.service(one), ctx, request)
			wantOutcomes(t, again, want)
			wantCounts(t, w, map[string]int{opRelease: 50})
		})
	})
	t.Run("by its deadline in a pause before the next try", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.put(podOf(flowA, "p"), podOf(flowA, "q"))
			e := throttled()
			e.RetryAfter = time.Minute
			w.fault["uid-q"] = failing(1, e)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			cut, again := cutOffThenRepeat(t, w, w.service(), ctx, request)
			if o := outcomes(cut); o["p"] != OutcomeReleased || o["q"] != OutcomeFailed {
				t.Errorf("the first answer: %v", o)
			}
			wantOutcomes(t, again, map[string]Outcome{"p": OutcomeReleased, "q": OutcomeReleased})
		})
	})
	t.Run("by a read that failed", func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"))
		w.flow(flowA, map[string]string{"p": "Succeeded"})
		w.readErr[flowA] = unavailable()
		s := w.service()
		r := withID(BulkRequest{Workflow: flowA, All: true}, "id")
		_, err := s.Bulk(t.Context(), r)
		wantKind(t, err, KindUnavailable)
		delete(w.readErr, flowA)
		w.put(podOf(flowA, "new"))
		got, err := s.Bulk(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, map[string]Outcome{"p": OutcomeReleased})
	})
}

func TestB23APodThatFailedForGoodIsNotTriedAgainByARepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"))
		w.fault["uid-p"] = failing(maxAttempts, throttled())
		s := w.service()
		r := withID(BulkRequest{Workflow: flowA, All: true, Force: true}, "id")
		for range 2 {
			got, err := s.Bulk(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			wantOutcomes(t, got, map[string]Outcome{"p": OutcomeFailed})
		}
		wantCounts(t, w, map[string]int{opRelease: maxAttempts})
	})
}

func TestB23TwoCallsOfOneIDRunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = time.Second
		w.put(podOf(flowA, "p"), podOf(flowA, "q"))
		s := w.service()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				got, err := s.Bulk(t.Context(), withID(deleteAll(flowA), "id"))
				if err != nil || len(got) != 2 || got[0].Outcome != OutcomeDeleted || got[1].Outcome != OutcomeDeleted {
					t.Errorf("got %v, %v", got, err)
				}
			})
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		time.Sleep(time.Millisecond)
		_, err := s.Bulk(impatient, withID(deleteAll(flowA), "id"))
		wantKind(t, err, KindDeadline)
		wg.Wait()
		wantCounts(t, w, map[string]int{opDelete: 2, opRelease: 2})
	})
}

func TestB23AnAnswerIsForgottenInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.service(func(c *Config) { c.RequestMemory = 10 * time.Minute })
		pods := func(id string) int {
			got, err := s.Bulk(t.Context(), withID(BulkRequest{Workflow: flowA, All: true, Force: true, ValidateOnly: true}, id))
			if err != nil {
				t.Fatal(err)
			}
			return len(got)
		}
		pods("x")
		w.put(podOf(flowA, "p"))
		time.Sleep(9 * time.Minute)
		if pods("x") != 0 {
			t.Error("forgotten too early")
		}
		time.Sleep(10*time.Minute + 1)
		if pods("x") != 1 {
			t.Error("remembered too long")
		}
		time.Sleep(time.Hour)
		pods("y")
		m := s.requests
		if len(m.entries) != 1 || len(m.order) != 1 {
			t.Errorf("%d entries, %d in order", len(m.entries), len(m.order))
		}
	})
}

// fillMemory answers n requests with so many pods each.
func fillMemory(t *testing.T, m *requestMemory, n int, request func(int) BulkRequest, pods int) {
	t.Helper()
	for i := range n {
		if _, err := m.do(t.Context(), request(i), func(*plan) ([]Result, error) { return make([]Result, pods), nil }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestB39TheMemoryOfRequestsIsBounded(t *testing.T) {
	const most = 1000
	bounded := func() *requestMemory {
		m := newRequestMemory(time.Hour)
		m.most = most
		return m
	}
	id := func(i int) BulkRequest { return BulkRequest{Workflow: flowA, RequestID: fmt.Sprint(i)} }
	t.Run("by the pods answered for, the oldest going first", func(t *testing.T) {
		m := bounded()
		fillMemory(t, m, 15, id, most/10)
		if len(m.entries) > 11 || len(m.entries) < 9 {
			t.Errorf("%d answers of a tenth of the bound are kept", len(m.entries))
		}
		if m.entries[requestKey{flowA, "0"}] != nil || m.entries[requestKey{flowA, "14"}] == nil {
			t.Error("the oldest is kept, or the newest is not")
		}
		if len(m.order) != len(m.entries) {
			t.Errorf("%d in order, %d entries", len(m.order), len(m.entries))
		}
	})
	t.Run("by the pods asked for, though nothing was answered", func(t *testing.T) {
		m := bounded()
		big := make([]PodRef, most/10)
		for i := range 30 {
			r := id(i)
			r.Pods = big
			_, _ = m.do(t.Context(), r, func(*plan) ([]Result, error) { return nil, unavailable() })
		}
		if len(m.entries) > 11 {
			t.Errorf("%d requests of a tenth of the bound are kept", len(m.entries))
		}
	})
	t.Run("by the number of requests, though none has pods", func(t *testing.T) {
		m := bounded()
		fillMemory(t, m, 2*most, id, 0)
		if len(m.entries) > most+1 {
			t.Errorf("%d empty answers are kept", len(m.entries))
		}
	})
	t.Run("but a request under way stays", func(t *testing.T) {
		m := bounded()
		_, err := m.do(t.Context(), id(-1), func(*plan) ([]Result, error) {
			fillMemory(t, m, 15, id, most/10)
			return nil, nil
		})
		if err != nil || m.entries[requestKey{flowA, "-1"}] == nil {
			t.Errorf("error %v, entry %v", err, m.entries[requestKey{flowA, "-1"}])
		}
	})
	t.Run("and its weight is what its entries weigh", func(t *testing.T) {
		m := newRequestMemory(0)
		fillMemory(t, m, 100, id, 7)
		m.expire()
		if len(m.entries) != 0 || m.weight != 0 || len(m.order) != 0 {
			t.Errorf("%d entries, weight %d, %d in order", len(m.entries), m.weight, len(m.order))
		}
	})
}
