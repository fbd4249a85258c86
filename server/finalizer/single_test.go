package finalizer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/finalizerd/finalizerd/server/lane"
)

func wantWrites(t *testing.T, w *world, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

func wantCounts(t *testing.T, w *world, want map[string]int) {
	t.Helper()
	if diff := cmp.Diff(want, w.counts()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func captureOf(name string) ReleaseRequest {
	return ReleaseRequest{Pod: PodID{"ns", name, ref(name).UID}, Captured: true}
}

func byName(name string) ReleaseRequest {
	return ReleaseRequest{Pod: PodID{Namespace: "ns", Name: name}}
}

func TestReleasePod(t *testing.T) {
	released := []string{"release p/uid-p"}
	for _, c := range []struct {
		name    string
		prepare func(*world)
		request ReleaseRequest
		want    Outcome
		reason  Reason
		kind    Kind // with no outcome
		writes  []string
		reads   map[string]int
	}{
		{
			name:    "an asserted capture is one write and no read",
			prepare: func(w *world) { w.put(podOf(flowA, "p", running)) },
			request: captureOf("p"), want: OutcomeReleased, reason: ReasonAsserted, writes: released,
		},
		{
			name:    "a captured node is one read of the workflow and one write",
			prepare: func(w *world) { w.put(podOf(flowA, "p")); w.flow(flowA, map[string]string{"p": "Succeeded"}) },
			request: byName("p"), want: OutcomeReleased, reason: ReasonCaptured, writes: released, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name:    "B4 a pod that is gone is an outcome",
			request: byName("p"), want: OutcomeGone, reads: map[string]int{opGetPod: 1},
		},
		{
			name:    "B4 a pod that goes before the write is an outcome",
			prepare: func(w *world) { w.put(podOf(flowA, "p")); w.before["uid-p"] = func() { w.remove("p") } },
			request: captureOf("p"), want: OutcomeGone, reason: ReasonAsserted, writes: released,
		},
		{
			name: "B4 a pod that goes between the reads is an outcome",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p", terminating(0)))
				w.flow(flowA, map[string]string{"p": "Running"})
				w.lagging = true
				w.remove("p")
			},
			request: byName("p"), want: OutcomeGone, reads: map[string]int{opGetWorkflow: 1, opGetPod: 1},
		},
		{
			name:    "B4 a finalizer that is gone is an outcome, without a request",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers("other"))) },
			request: captureOf("p"), want: OutcomeAlreadyReleased,
		},
		{
			name:    "B1 a name that passed to another UID is refused, nothing is written",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withUID("uid-2"))) },
			request: captureOf("p"), kind: KindReplaced, reads: map[string]int{opGetPod: 1},
		},
		{
			name: "B1 a stale cache that still shows UID-1 sends UID-1, which the API server refuses",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p"))
				w.lagging = true
				w.put(podOf(flowA, "p", withUID("uid-2")))
			},
			request: captureOf("p"), kind: KindReplaced, writes: released,
		},
		{
			name: "B1 a name that passed to another UID between the reads is replaced, not uncaptured",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p", terminating(0)))
				w.flow(flowA, map[string]string{"p": "Running"})
				w.lagging = true
				w.put(podOf(flowA, "p", withUID("uid-2")))
			},
			request: byName("p"), kind: KindReplaced, reads: map[string]int{opGetWorkflow: 1, opGetPod: 1},
		},
		{
			name:    "B6 a pod that the cache does not know is read live",
			prepare: func(w *world) { w.lagging = true; w.put(podOf(flowA, "p")) },
			request: captureOf("p"), want: OutcomeReleased, reason: ReasonAsserted, writes: released, reads: map[string]int{opGetPod: 1},
		},
		{
			name: "B6 a read of the workflow that fails is no absence and no capture",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p"))
				w.readErr[flowA] = unavailable()
			},
			request: byName("p"), kind: KindUnavailable, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name:    "B15 a finished pod that is not captured is refused",
			prepare: func(w *world) { w.put(podOf(flowA, "p")); w.flow(flowA, map[string]string{"p": "Running"}) },
			request: byName("p"), kind: KindNotCaptured, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "B15 a finished terminating one is refused too, after a look at its status",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p", terminating(0)))
				w.flow(flowA, map[string]string{"p": "Running"})
			},
			request: byName("p"), kind: KindNotCaptured, reads: map[string]int{opGetWorkflow: 1, opGetPod: 1},
		},
		{
			name: "B18 a terminating pod that never started is released",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p", terminating(0), pending))
				w.flow(flowA, map[string]string{"p": "Pending"})
			},
			request: byName("p"), want: OutcomeReleased, reason: ReasonNeverStarted, writes: released,
			reads: map[string]int{opGetWorkflow: 1, opGetPod: 1},
		},
		{
			name:    "B33 an orphan is released",
			prepare: func(w *world) { w.put(podOf(flowA, "p", running)) },
			request: byName("p"), want: OutcomeReleased, reason: ReasonOrphaned, writes: released, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name:    "force reads nothing",
			prepare: func(w *world) { w.put(podOf(flowA, "p", running)) },
			request: ReleaseRequest{Pod: byName("p").Pod, Force: true}, want: OutcomeReleased, reason: ReasonForced, writes: released,
		},
		{
			name:    "validate_only writes nothing",
			prepare: func(w *world) { w.put(podOf(flowA, "p")) },
			request: func() ReleaseRequest { r := captureOf("p"); r.ValidateOnly = true; return r }(),
			want:    OutcomeReleased, reason: ReasonAsserted,
		},
		{
			name:    "B3 mark_completed on a pod without the finalizer writes the label",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers())) },
			request: func() ReleaseRequest { r := captureOf("p"); r.MarkCompleted = true; return r }(),
			want:    OutcomeAlreadyReleased, reason: ReasonAsserted, writes: released,
		},
		{
			name: "mark_completed on a pod that is completed and released writes nothing",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p", withFinalizers(), func(p *Pod) { p.Completed = true }))
			},
			request: func() ReleaseRequest { r := captureOf("p"); r.MarkCompleted = true; return r }(),
			want:    OutcomeAlreadyReleased,
		},
		{
			name:    "B7 a pod of another kind is refused, whatever its labels say",
			prepare: func(w *world) { w.put(podOf(flowA, "p", func(p *Pod) { p.Owner.Kind = "Job" })) },
			request: ReleaseRequest{Pod: byName("p").Pod, Force: true}, kind: KindNotWorkflowPod,
		},
		{
			name:    "B8 a pod of another instance is refused",
			prepare: func(w *world) { w.put(podOf(flowA, "p", func(p *Pod) { p.InstanceID = "other" })) },
			request: captureOf("p"), kind: KindOtherInstance,
		},
		{
			name:    "B45 an asserted capture without UID is refused",
			prepare: func(w *world) { w.put(podOf(flowA, "p")) },
			request: ReleaseRequest{Pod: byName("p").Pod, Captured: true}, kind: KindInvalid,
		},
		{
			name:    "a write that the API server throttles is an error",
			prepare: func(w *world) { w.put(podOf(flowA, "p")); w.fault["uid-p"] = failing(1, throttled()) },
			request: captureOf("p"), kind: KindThrottled, writes: released,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			if c.prepare != nil {
				c.prepare(w)
			}
			s := w.service()
			got, err := s.ReleasePod(t.Context(), c.request)
			if c.want == OutcomeUnknown {
				wantKind(t, err, c.kind)
			} else if err != nil || got.Outcome != c.want || got.Reason != c.reason {
				t.Errorf("got outcome %d, reason %d, error %v; want %d, %d", got.Outcome, got.Reason, err, c.want, c.reason)
			}
			wantWrites(t, w, c.writes...)
			reads := w.counts()
			delete(reads, opRelease)
			if diff := cmp.Diff(c.reads, reads); diff != "" && len(c.reads)+len(reads) > 0 {
				t.Errorf("reads (-want +got):\n%s", diff)
			}
		})
	}
}

func TestB2ForeignFinalizersStayAndAreNamed(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p", withFinalizers("other", fin, "another")))
	w.before["uid-p"] = func() {
		w.change("p", func(p *Pod) { p.Finalizers = append(p.Finalizers, "third") })
	}
	got, err := w.service().ReleasePod(t.Context(), captureOf("p"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"other", "another", "third"}
	if diff := cmp.Diff(want, got.Foreign); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if p, _ := w.live("p"); !cmp.Equal(want, p.Finalizers) {
		t.Errorf("left: %v", p.Finalizers)
	}
}

func TestB3MarkCompletedIsPartOfTheSameWrite(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"))
	r := captureOf("p")
	r.MarkCompleted = true
	if _, err := w.service().ReleasePod(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	wantWrites(t, w, "release p/uid-p")
	if p, _ := w.live("p"); !p.Completed || p.Has(fin) {
		t.Errorf("pod: %+v", p)
	}
}

func TestARepeatedReleaseThatTheCacheShowsCostsNothing(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"))
	s := w.service()
	for i, want := range []Outcome{OutcomeReleased, OutcomeAlreadyReleased} {
		if got, err := s.ReleasePod(t.Context(), captureOf("p")); err != nil || got.Outcome != want {
			t.Errorf("call %d: %v, %v", i, got, err)
		}
	}
	wantCounts(t, w, map[string]int{opRelease: 1})
}

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

func TestNothingIsDoneBeforeTheCachesAreFilled(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"))
	s := w.service(func(c *Config) { c.Synced = func() error { return &Error{Kind: KindNotSynced, Message: "filling"} } })
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"add":     func() error { _, err := s.AddFinalizer(ctx, AddRequest{Pod: captureOf("p").Pod}); return err },
		"release": func() error { _, err := s.ReleasePod(ctx, captureOf("p")); return err },
		"bulk":    func() error { _, err := s.Bulk(ctx, BulkRequest{Workflow: flowA, All: true}); return err },
		"get":     func() error { _, err := s.GetPod(ctx, "ns", "p"); return err },
		"list":    func() error { _, err := s.ListPods(ctx, ListRequest{Limit: 10}); return err },
		"watch":   func() error { return s.Watch(ctx, WatchRequest{Workflow: flowA}, func(Step) error { return nil }) },
	} {
		t.Run(name, func(t *testing.T) { wantKind(t, call(), KindNotSynced) })
	}
	wantCounts(t, w, map[string]int{})
}

func TestAddFinalizer(t *testing.T) {
	added := []string{"add p/uid-p"}
	for _, c := range []struct {
		name    string
		prepare func(*world)
		request AddRequest
		want    Outcome
		kind    Kind // with no outcome
		writes  []string
	}{
		{
			name:    "a pod without the finalizer gets it in one write",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers("other"))) },
			want:    OutcomeAdded, writes: added,
		},
		{
			name:    "a pod that has it is an outcome",
			prepare: func(w *world) { w.put(podOf(flowA, "p")) },
			want:    OutcomeAlreadyHeld,
		},
		{
			name:    "a terminating pod that has it is an outcome",
			prepare: func(w *world) { w.put(podOf(flowA, "p", terminating(0))) },
			want:    OutcomeAlreadyHeld,
		},
		{
			name:    "a pod that the cache does not know is read live",
			prepare: func(w *world) { w.lagging = true; w.put(podOf(flowA, "p", withFinalizers())) },
			want:    OutcomeAdded, writes: added,
		},
		{
			name:    "validate_only writes nothing",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers())) },
			request: AddRequest{ValidateOnly: true}, want: OutcomeAdded,
		},
		{name: "a pod that does not exist", kind: KindPodNotFound},
		{
			name: "a pod that goes before the write",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p", withFinalizers()))
				w.before["uid-p"] = func() { w.remove("p") }
			},
			kind: KindPodNotFound, writes: added,
		},
		{
			name:    "a terminating pod is refused without a write",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers("other"), terminating(0))) },
			kind:    KindTerminating,
		},
		{
			name: "B5 a pod that gets its deletionTimestamp between read and patch",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p", withFinalizers("other")))
				w.before["uid-p"] = func() { w.change("p", func(p *Pod) { p.DeletedAt = time.Now() }) }
			},
			kind: KindTerminating, writes: added,
		},
		{
			name:    "a completed pod is refused",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers(), func(p *Pod) { p.Completed = true })) },
			kind:    KindCompleted,
		},
		{
			name:    "B1 a name that passed to another UID is refused",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers(), withUID("uid-2"))) },
			request: AddRequest{Pod: PodID{UID: "uid-p"}}, kind: KindReplaced,
		},
		{
			name: "B1 a stale cache sends the UID that it knows",
			prepare: func(w *world) {
				w.put(podOf(flowA, "p", withFinalizers()))
				w.lagging = true
				w.put(podOf(flowA, "p", withFinalizers(), withUID("uid-2")))
			},
			kind: KindReplaced, writes: added,
		},
		{
			name:    "B7 a pod of another kind is refused",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers(), func(p *Pod) { p.Owner = Owner{} })) },
			kind:    KindNotWorkflowPod,
		},
		{
			name:    "B8 a pod of another instance is refused",
			prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers(), func(p *Pod) { p.InstanceID = "x" })) },
			kind:    KindOtherInstance,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			if c.prepare != nil {
				c.prepare(w)
			}
			c.request.Pod.Namespace, c.request.Pod.Name = "ns", "p"
			got, err := w.service().AddFinalizer(t.Context(), c.request)
			if c.want == OutcomeUnknown {
				wantKind(t, err, c.kind)
			} else if err != nil || got.Outcome != c.want {
				t.Errorf("got outcome %d, error %v; want %d", got.Outcome, err, c.want)
			}
			wantWrites(t, w, c.writes...)
		})
	}
}
