package finalizer

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
