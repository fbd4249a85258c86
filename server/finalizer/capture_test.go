package finalizer

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestB43ALateCleanUpByNameIsRefusedUntilTheSuccessorIsCaptured(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"))
	w.flow(flowA, map[string]string{"p": "Failed"})
	s := w.service()
	if _, err := s.ReleasePod(t.Context(), byName("p")); err != nil {
		t.Fatal(err)
	}
	w.remove("p")
	// The node that is stored is the first attempt's until the retry is; the
	// successor is there and waits for its node.
	w.put(podOf(flowA, "p", withUID("uid-2"), pending, func(p *Pod) { p.CreatedAt = time.Now() }))
	late := byName("p")
	late.MarkCompleted = true
	for _, phase := range []string{"Failed", "Pending", "Running"} {
		w.flow(flowA, map[string]string{"p": phase})
		_, err := s.ReleasePod(t.Context(), late)
		wantKind(t, err, KindNotCaptured)
		late := late
		late.Pod.UID, late.Captured = "uid-p", true
		_, err = s.ReleasePod(t.Context(), late)
		wantKind(t, err, KindReplaced)
	}
	if p, _ := w.live("p"); p.Completed || !p.Has(fin) {
		t.Fatalf("the successor was touched: %+v", p)
	}
	wf := Workflow{Key: flowA, Exists: true, UID: flowUID(flowA)}
	wf.SetNodes(map[string]Node{"node-p": {Type: "Pod", Phase: "Succeeded", FinishedAt: time.Now()}})
	w.setFlow(wf)
	got, err := s.ReleasePod(t.Context(), late)
	if err != nil || got.Outcome != OutcomeReleased || got.Pod.UID != "uid-2" {
		t.Errorf("once captured: %+v, %v", got, err)
	}
	wantWrites(t, w, "release p/uid-p", "release p/uid-2")
}

func TestACaptureOnceSeenHoldsForTheUIDThatItWasSeenFor(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"), podOf(flowA, "q"))
	w.flow(flowA, map[string]string{"p": "Succeeded", "q": "Succeeded"})
	s := w.service()
	if _, err := s.ReleasePod(t.Context(), byName("p")); err != nil {
		t.Fatal(err)
	}
	w.flow(flowA, map[string]string{"q": "Pending"}) // a retry reset it
	w.forgetLog()
	got, err := s.ReleasePod(t.Context(), byName("q"))
	if err != nil || got.Reason != ReasonCaptured {
		t.Errorf("got %+v, %v", got, err)
	}
	wantCounts(t, w, map[string]int{opRelease: 1})

	w.remove("q")
	w.put(podOf(flowA, "q", withUID("uid-2")))
	_, err = s.ReleasePod(t.Context(), byName("q"))
	wantKind(t, err, KindNotCaptured)
	w.remove("p")
	w.remove("q")
	if n := len(s.captures.uids); n != 0 {
		t.Errorf("%d captures are remembered of pods that are gone", n)
	}
}

func TestB34NothingIsLearntFromANodeStatusThatIsUnknown(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"))
	w.flow(flowA, map[string]string{"p": "Succeeded"})
	wf := w.flows[flowA]
	wf.Unknown = "offloaded"
	w.setFlow(wf)
	s := w.service()
	for range 2 {
		_, err := s.ReleasePod(t.Context(), byName("p"))
		wantKind(t, err, KindNotCaptured)
		if r := asError(err).Reason; r != ReasonCaptureUnknown {
			t.Errorf("reason %d", r)
		}
	}
	wantWrites(t, w)
}

func TestACaptureIsNotLearntForAPodThatLeftDuringTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = 10 * time.Millisecond
		w.put(podOf(flowA, "p"), podOf(flowA, "q"))
		w.flow(flowA, map[string]string{"p": "Succeeded", "q": "Succeeded"})
		s := w.service()
		time.AfterFunc(5*time.Millisecond, func() { w.remove("q") })
		if _, err := s.ReleasePod(t.Context(), byName("p")); err != nil {
			t.Fatal(err)
		}
		if s.captures.has("uid-q") {
			t.Error("the capture of a pod that is gone is remembered for ever")
		}
	})
}

func TestAThousandReleasesOfOneWorkflowCostFewReads(t *testing.T) {
	const n = 1000
	name := func(i int) string { return fmt.Sprintf("p%04d", i) }
	fill := func(w *world) {
		phases := map[string]string{}
		for i := range n {
			w.put(podOf(flowA, name(i)))
			phases[name(i)] = "Succeeded"
		}
		w.flow(flowA, phases)
	}
	t.Run("at once: those who ask together share", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.latency = 10 * time.Millisecond
			fill(w)
			got := releaseAtOnce(t, w.service(), n, func(i int) ReleaseRequest { return byName(name(i)) })
			if got[OutcomeReleased] != n {
				t.Errorf("outcomes: %v", got)
			}
			if c := w.counts(); c[opGetWorkflow] > 2 || c[opGetPod]+c[opListPods] != 0 || c[opRelease] != n {
				t.Errorf("requests: %v", c)
			}
		})
	})
	t.Run("one after another: the first read tells of all", func(t *testing.T) {
		w := newWorld()
		fill(w)
		s := w.service()
		for i := range n {
			if _, err := s.ReleasePod(t.Context(), byName(name(i))); err != nil {
				t.Fatal(err)
			}
		}
		wantCounts(t, w, map[string]int{opGetWorkflow: 1, opRelease: n})
	})
}
