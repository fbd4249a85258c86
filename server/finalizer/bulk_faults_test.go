package finalizer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBulkWritesNothingWhenAReadFails(t *testing.T) {
	for name, c := range map[string]struct {
		request BulkRequest
		prepare func(*world)
	}{
		"the workflow's": {BulkRequest{All: true}, func(w *world) { w.readErr[flowA] = unavailable() }},
		"a pod's":        {BulkRequest{Pods: refs("p", "unknown"), Force: true}, func(w *world) { w.podErr["unknown"] = unavailable() }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.put(podOf(flowA, "p"))
			c.prepare(w)
			c.request.Workflow = flowA
			_, err := w.service().Bulk(t.Context(), c.request)
			wantKind(t, err, KindUnavailable)
			wantWrites(t, w)
		})
	}
}

func TestB25OnlyWhatFailsIsTriedAgainWithGrowingBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 20 {
			w.put(podOf(flowA, fmt.Sprintf("p%02d", i)))
		}
		w.fault["uid-p03"] = failing(5, throttled())
		w.fault["uid-p04"] = failing(100, unavailable())
		s := w.service()
		began := time.Now()
		got, err := s.Bulk(t.Context(), BulkRequest{Workflow: flowA, All: true, Force: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range got {
			switch r.Pod.Name {
			case "p04":
				if r.Outcome != OutcomeFailed || r.Err == nil || r.Err.Kind != KindUnavailable || r.Message == "" {
					t.Errorf("the fault is not told: %+v", r)
				}
			default:
				if r.Outcome != OutcomeReleased || r.Err != nil || r.Message != "" || r.Reason != ReasonForced {
					t.Errorf("pod: %+v", r)
				}
			}
		}
		at := map[string][]time.Duration{}
		for _, a := range w.accesses(access.write) {
			at[a.Pod.Name] = append(at[a.Pod.Name], a.At.Sub(began))
		}
		if len(at["p03"]) != 6 || len(at["p04"]) != maxAttempts {
			t.Errorf("tries: %d and %d", len(at["p03"]), len(at["p04"]))
		}
		for name, tries := range at {
			if name != "p03" && name != "p04" && !slices.Equal(tries, []time.Duration{0}) {
				t.Errorf("%s, which had no fault: %v", name, tries)
			}
		}
		tries := at["p04"]
		for i := 1; i < len(tries); i++ {
			full := min(firstBackoff<<(i-1), maxBackoff)
			if d := tries[i] - tries[i-1]; d < full/2 || d > full {
				t.Errorf("pause %d is %v, want %v to %v", i, d, full/2, full)
			}
		}
	})
}

func TestB25AFaultOnceOvercomeLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"), podOf(flowA, "q"))
		w.fault["uid-p"] = failing(2, throttled())
		for _, r := range []BulkRequest{{Workflow: flowA, Pods: refs("p"), Captured: true}, {Workflow: flowA, Pods: refs("q"), Captured: true, Delete: true}} {
			got, err := w.service().Bulk(t.Context(), r)
			if err != nil || got[0].Err != nil || got[0].Message != "" {
				t.Errorf("got %+v, %v", got, err)
			}
		}
	})
}

func TestB25RetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"))
		e := throttled()
		e.RetryAfter = 7 * time.Second
		w.fault["uid-p"] = failing(1, e)
		began := time.Now()
		got, err := w.service().Bulk(t.Context(), deleteRefs("p"))
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, map[string]Outcome{"p": OutcomeDeleted})
		if d := time.Since(began); d != 7*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

func TestB25ADeletionThatWentThroughIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"))
		fails := failing(2, unavailable())
		w.fault["uid-p"] = func(op string) error {
			if op == opRelease {
				return fails(op)
			}
			return nil
		}
		got, err := w.service().Bulk(t.Context(), deleteRefs("p"))
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, map[string]Outcome{"p": OutcomeDeleted})
		wantCounts(t, w, map[string]int{opDelete: 1, opRelease: 3})
	})
}

func TestTheAnswerComesBeforeTheDeadlineAndTellsWhatIsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = 100 * time.Millisecond
		for i := range 100 {
			w.put(podOf(flowA, fmt.Sprintf("p%02d", i)))
		}
		s := w.service(func(c *Config) { c.Workers = 1 })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		got, err := s.Bulk(ctx, BulkRequest{Workflow: flowA, All: true, Force: true})
		if err != nil || ctx.Err() != nil {
			t.Fatalf("error %v, deadline %v", err, ctx.Err())
		}
		n := map[Outcome]int{}
		for _, r := range got {
			n[r.Outcome]++
			if r.Outcome == OutcomeFailed && r.Err.Kind != KindDeadline {
				t.Errorf("why it is not done: %+v", r)
			}
		}
		wrote := w.counts()[opRelease]
		if n[OutcomeReleased] != wrote || n[OutcomeFailed] != 100-wrote || wrote < 17 || wrote > 19 {
			t.Errorf("outcomes %v, writes %d", n, wrote)
		}
	})
}
