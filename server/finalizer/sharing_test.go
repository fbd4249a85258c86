package finalizer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/finalizerd/finalizerd/server/lane"
)

// release runs n equal calls at once and returns their outcomes.
func releaseAtOnce(t *testing.T, s *Service, n int, request func(int) ReleaseRequest) map[Outcome]int {
	t.Helper()
	var mu sync.Mutex
	got := map[Outcome]int{}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			res, err := s.ReleasePod(t.Context(), request(i))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[res.Outcome]++
		})
	}
	wg.Wait()
	return got
}

func TestB4CallersOfOneUIDShareOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = 10 * time.Millisecond
		w.put(podOf(flowA, "p"))
		got := releaseAtOnce(t, w.service(), 20, func(int) ReleaseRequest { return captureOf("p") })
		if diff := cmp.Diff(map[Outcome]int{OutcomeReleased: 1, OutcomeAlreadyReleased: 19}, got); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		wantCounts(t, w, map[string]int{opRelease: 1})
	})
}

func TestB4CallersThatWaitTogetherShareOneAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = 10 * time.Millisecond
		w.put(podOf(flowA, "p"))
		s := w.service()
		hold, err := s.lanes.Exclusive(t.Context(), flowA)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, hold)
		got := releaseAtOnce(t, s, 20, func(int) ReleaseRequest { return captureOf("p") })
		if diff := cmp.Diff(map[Outcome]int{OutcomeReleased: 20}, got); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		wantCounts(t, w, map[string]int{opRelease: 1})
	})
}

func TestAnAssertionIsNotSharedWithWhoDoesNotMakeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p", running))
		w.flow(flowA, map[string]string{"p": "Running"})
		s := w.service()
		hold, err := s.lanes.Exclusive(t.Context(), flowA)
		if err != nil {
			t.Fatal(err)
		}
		var unasserted error
		go func() { _, unasserted = s.ReleasePod(t.Context(), byName("p")) }()
		synctest.Wait()
		var forced Result
		go func() { forced, _ = s.ReleasePod(t.Context(), captureOf("p")) }()
		synctest.Wait()
		hold()
		synctest.Wait()
		wantKind(t, unasserted, KindNotCaptured)
		if forced.Outcome != OutcomeReleased {
			t.Errorf("asserted: %+v", forced)
		}
	})
}

func TestAWaiterWhoseDeadlinePassesLeavesWithoutAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"))
		s := w.service()
		hold, err := s.lanes.Exclusive(t.Context(), flowA)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.ReleasePod(ctx, captureOf("p"))
		wantKind(t, err, KindDeadline)
		_, err = s.AddFinalizer(ctx, AddRequest{Pod: captureOf("p").Pod})
		wantKind(t, err, KindDeadline)
		_, err = s.Bulk(ctx, BulkRequest{Workflow: flowA, All: true, Force: true})
		wantKind(t, err, KindDeadline)
		hold()
		synctest.Wait()
		wantCounts(t, w, map[string]int{})
		if d := s.lanes.Depth(); d != (lane.Depth{}) {
			t.Errorf("lanes: %+v", d)
		}
	})
}

func TestAFullLaneIsBusyAndSaysWhenToComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"), podOf(flowA, "q"))
		s := w.service(func(c *Config) { c.Lanes = lane.New[WorkflowKey, string](lane.Options{MaxWaiters: 1}) })
		hold, err := s.lanes.Exclusive(t.Context(), flowA)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = s.ReleasePod(t.Context(), captureOf("p")) }()
		synctest.Wait()
		_, err = s.ReleasePod(t.Context(), captureOf("q"))
		wantKind(t, err, KindBusy)
		if e := asError(err); e.RetryAfter <= 0 {
			t.Errorf("no time to come again: %+v", e)
		}
		hold()
	})
}
