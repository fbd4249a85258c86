package finalizer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func wantOutcomes(t *testing.T, got []Result, want map[string]Outcome) {
	t.Helper()
	if diff := cmp.Diff(want, outcomes(got)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if len(got) != len(want) {
		t.Errorf("%d results for %d pods", len(got), len(want))
	}
}

// deleteAll is a forced deletion of a workflow's pods.
func deleteAll(flow WorkflowKey) BulkRequest {
	return BulkRequest{Workflow: flow, All: true, Delete: true, Force: true}
}

func deleteRefs(names ...string) BulkRequest {
	return BulkRequest{Workflow: flowA, Pods: refs(names...), Delete: true, Captured: true}
}

func TestBulk(t *testing.T) {
	captured := func(names ...string) func(*world) {
		return func(w *world) {
			phases := map[string]string{}
			for _, n := range names {
				w.put(podOf(flowA, n))
				phases[n] = "Succeeded"
			}
			w.flow(flowA, phases)
		}
	}
	for _, c := range []struct {
		name    string
		prepare func(*world)
		request BulkRequest
		want    map[string]Outcome
		writes  []string
		reads   map[string]int
	}{
		{
			name: "B28 a workflow without pods is OK without a request", request: BulkRequest{All: true, Delete: true, Wait: true},
			want: map[string]Outcome{},
		},
		{
			name: "captured pods are released at one read and one write each", prepare: captured("p", "q"),
			request: BulkRequest{All: true},
			want:    map[string]Outcome{"p": OutcomeReleased, "q": OutcomeReleased},
			writes:  []string{"release p/uid-p", "release q/uid-q"}, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "captured pods are deleted at one read and two writes each, the deletion first", prepare: captured("p"),
			request: BulkRequest{All: true, Delete: true},
			want:    map[string]Outcome{"p": OutcomeDeleted},
			writes:  []string{"delete p/uid-p", "release p/uid-p"}, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "an asserted deletion reads nothing", prepare: captured("p"),
			request: deleteRefs("p"),
			want:    map[string]Outcome{"p": OutcomeDeleted}, writes: []string{"delete p/uid-p", "release p/uid-p"},
		},
		{
			name: "force reads nothing", prepare: func(w *world) { w.put(podOf(flowA, "p", running)) },
			request: deleteAll(flowA),
			want:    map[string]Outcome{"p": OutcomeDeleted}, writes: []string{"delete p/uid-p", "release p/uid-p"},
		},
		{
			name: "validate_only writes nothing", prepare: func(w *world) {
				captured("p", "q")(w)
				w.put(podOf(flowA, "q", withFinalizers(fin, "other")), podOf(flowA, "r", running))
			},
			request: BulkRequest{All: true, Delete: true, ValidateOnly: true, Wait: true},
			want:    map[string]Outcome{"p": OutcomeDeleted, "q": OutcomeHeldByForeign, "r": OutcomeNotCaptured},
			reads:   map[string]int{opGetWorkflow: 1, opGetPod: 1},
		},
		{
			name: "validate_only of a forced release writes and reads nothing", prepare: func(w *world) {
				w.put(podOf(flowA, "p", running), podOf(flowA, "q", withFinalizers()))
			},
			request: BulkRequest{All: true, Force: true, ValidateOnly: true, MarkCompleted: true},
			want:    map[string]Outcome{"p": OutcomeReleased, "q": OutcomeAlreadyReleased},
		},
		{
			name: "B21 a running pod is not deleted, the others are", prepare: func(w *world) {
				captured("p")(w)
				w.put(podOf(flowA, "q", running), podOf(flowA, "r", running))
			},
			request: BulkRequest{All: true, Delete: true},
			want:    map[string]Outcome{"p": OutcomeDeleted, "q": OutcomeNotCaptured, "r": OutcomeNotCaptured},
			writes:  []string{"delete p/uid-p", "release p/uid-p"}, reads: map[string]int{opGetWorkflow: 1, opListPods: 1},
		},
		{
			name: "B18 a pod that never started is deleted", prepare: func(w *world) {
				w.put(podOf(flowA, "p", pending))
				w.flow(flowA, map[string]string{"p": "Pending"})
			},
			request: BulkRequest{All: true, Delete: true},
			want:    map[string]Outcome{"p": OutcomeDeleted},
			writes:  []string{"delete p/uid-p", "release p/uid-p"}, reads: map[string]int{opGetWorkflow: 1, opGetPod: 1},
		},
		{
			name: "B43 a bulk release keeps a pending pod", prepare: func(w *world) {
				w.put(podOf(flowA, "p", pending))
				w.flow(flowA, map[string]string{"p": "Pending"})
			},
			request: BulkRequest{All: true, MarkCompleted: true},
			want:    map[string]Outcome{"p": OutcomeNotCaptured}, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "a pod that is released already costs nothing", prepare: func(w *world) { w.put(podOf(flowA, "p", withFinalizers())) },
			request: BulkRequest{All: true},
			want:    map[string]Outcome{"p": OutcomeAlreadyReleased},
		},
		{
			name: "B22 a crash between deletion and release: a terminating held pod needs only the release", prepare: func(w *world) {
				w.put(podOf(flowA, "p", terminating(0)))
			},
			request: deleteRefs("p"),
			want:    map[string]Outcome{"p": OutcomeDeleted}, writes: []string{"release p/uid-p"},
		},
		{
			name: "a pod that is terminating without the finalizer is not written to", prepare: func(w *world) {
				w.put(podOf(flowA, "p", terminating(30), withFinalizers()), podOf(flowA, "q", terminating(0), withFinalizers("other")))
			},
			request: deleteAll(flowA),
			want:    map[string]Outcome{"p": OutcomeDeleting, "q": OutcomeHeldByForeign},
		},
		{
			name: "B4 a pod that is gone is an outcome", request: deleteRefs("p"),
			want: map[string]Outcome{"p": OutcomeGone}, reads: map[string]int{opGetPod: 1},
		},
		{
			name: "B4 a pod that goes before the deletion is an outcome", prepare: func(w *world) {
				captured("p")(w)
				w.before["uid-p"] = func() { w.remove("p") }
			},
			request: deleteRefs("p"),
			want:    map[string]Outcome{"p": OutcomeGone}, writes: []string{"delete p/uid-p"},
		},
		{
			name: "B1 a name that passed to another UID is superseded", prepare: func(w *world) { w.put(podOf(flowA, "p", withUID("uid-2"))) },
			request: deleteRefs("p"),
			want:    map[string]Outcome{"p": OutcomeSuperseded}, reads: map[string]int{opGetPod: 1},
		},
		{
			name: "B1 a stale cache sends the UID that it knows, and the answer is superseded", prepare: func(w *world) {
				captured("p")(w)
				w.lagging = true
				w.put(podOf(flowA, "p", withUID("uid-2")))
			},
			request: BulkRequest{All: true, Delete: true},
			want:    map[string]Outcome{"p": OutcomeSuperseded}, writes: []string{"delete p/uid-p"}, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "B1 a status is never taken from another UID", prepare: func(w *world) {
				w.put(podOf(flowA, "p", running), podOf(flowA, "q", running))
				w.flow(flowA, map[string]string{"p": "Running", "q": "Running"})
				w.lagging = true
				w.put(podOf(flowA, "p", withUID("uid-2"), pending), podOf(flowA, "q", withUID("uid-2"), pending))
			},
			request: BulkRequest{All: true, Delete: true},
			want:    map[string]Outcome{"p": OutcomeSuperseded, "q": OutcomeSuperseded},
			reads:   map[string]int{opGetWorkflow: 1, opListPods: 1},
		},
		{
			name: "B31 the name passes to another UID after the deletion: the pod that was meant is deleted", prepare: func(w *world) {
				w.put(podOf(flowA, "p", terminating(0)))
				w.before["uid-p"] = func() { w.put(podOf(flowA, "p", withUID("uid-2"))) }
			},
			request: deleteRefs("p"),
			want:    map[string]Outcome{"p": OutcomeDeleted}, writes: []string{"release p/uid-p"},
		},
		{
			name: "B6 a pod that the cache does not know is read live before it is said to be gone", prepare: func(w *world) {
				w.lagging = true
				w.put(podOf(flowA, "p"))
			},
			request: deleteRefs("p"),
			want:    map[string]Outcome{"p": OutcomeDeleted}, writes: []string{"delete p/uid-p", "release p/uid-p"}, reads: map[string]int{opGetPod: 1},
		},
		{
			name: "B27 node IDs find pods by annotation; an unknown one is not found; one listed twice is handled once", prepare: captured("p", "q"),
			request: BulkRequest{NodeIDs: []string{"node-p", "nobody", "node-p"}, Delete: true},
			want:    map[string]Outcome{"p": OutcomeDeleted, "nobody": OutcomeNotFound},
			writes:  []string{"delete p/uid-p", "release p/uid-p"}, reads: map[string]int{opListPods: 1, opGetWorkflow: 1},
		},
		{
			name: "B27 a pod listed twice is handled once", prepare: captured("p"),
			request: BulkRequest{Pods: refs("p", "p")},
			want:    map[string]Outcome{"p": OutcomeReleased},
			writes:  []string{"release p/uid-p"}, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "B27 a node ID that the cache does not know is found live, by owner", prepare: func(w *world) {
				w.lagging = true
				w.put(podOf(flowA, "p"), podOf(flowB, "q"))
				w.labels["q"] = "a"
			},
			request: BulkRequest{NodeIDs: []string{"node-p", "node-q"}, Force: true},
			want:    map[string]Outcome{"p": OutcomeReleased, "node-q": OutcomeNotFound},
			writes:  []string{"release p/uid-p"}, reads: map[string]int{opListPods: 1},
		},
		{
			name: "B29 the siblings of named nodes are untouched", prepare: captured("p", "q", "r"),
			request: BulkRequest{NodeIDs: []string{"node-q"}, Delete: true},
			want:    map[string]Outcome{"q": OutcomeDeleted},
			writes:  []string{"delete q/uid-q", "release q/uid-q"}, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "B7 overwritten labels hide no pod and claim none", prepare: func(w *world) {
				w.put(podOf(flowA, "p", running), podOf(flowB, "q", running), podOf(flowA, "r", running, func(p *Pod) { p.Owner.Kind = "Job" }))
				w.labels["p"], w.labels["q"] = "b", "a"
			},
			request: deleteAll(flowA),
			want:    map[string]Outcome{"p": OutcomeDeleted}, writes: []string{"delete p/uid-p", "release p/uid-p"},
		},
		{
			name: "B7 a pod whose label hides it from the list has its status read singly", prepare: func(w *world) {
				w.put(podOf(flowA, "p", pending), podOf(flowA, "q", running))
				w.flow(flowA, map[string]string{"p": "Pending", "q": "Running"})
				w.labels["p"] = "b"
			},
			request: BulkRequest{All: true, Delete: true},
			want:    map[string]Outcome{"p": OutcomeDeleted, "q": OutcomeNotCaptured},
			writes:  []string{"delete p/uid-p", "release p/uid-p"}, reads: map[string]int{opGetWorkflow: 1, opListPods: 1, opGetPod: 1},
		},
		{
			name: "B8 pods of another instance and of another namespace's workflow are untouched", prepare: func(w *world) {
				w.put(podOf(flowA, "p"), podOf(flowA, "q", func(p *Pod) { p.InstanceID = "x" }), podOf(WorkflowKey{"ns2", "a"}, "p"))
			},
			request: deleteAll(flowA),
			want:    map[string]Outcome{"p": OutcomeDeleted, "q": OutcomeFailed}, writes: []string{"delete p/uid-p", "release p/uid-p"},
		},
		{
			name: "a named pod of another workflow is refused", prepare: func(w *world) { w.put(podOf(flowB, "p"), podOf(flowA, "q")) },
			request: deleteRefs("p", "q"),
			want:    map[string]Outcome{"p": OutcomeFailed, "q": OutcomeDeleted}, writes: []string{"delete q/uid-q", "release q/uid-q"},
		},
		{
			name: "B33 with a workflow UID the pods of another UID are untouched", prepare: func(w *world) {
				w.put(podOf(flowA, "p"), podOf(flowA, "q", func(p *Pod) { p.Owner.UID = "old" }))
			},
			request: BulkRequest{All: true, WorkflowUID: flowUID(flowA), Force: true},
			want:    map[string]Outcome{"p": OutcomeReleased}, writes: []string{"release p/uid-p"},
		},
		{
			name: "B33 pods of an older workflow of the name are orphans", prepare: func(w *world) {
				w.put(podOf(flowA, "q", func(p *Pod) { p.Owner.UID = "old" }))
				w.flow(flowA, map[string]string{"q": "Running"})
			},
			request: BulkRequest{All: true, Delete: true},
			want:    map[string]Outcome{"q": OutcomeDeleted},
			writes:  []string{"delete q/uid-q", "release q/uid-q"}, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "B13 a pod that admission blocks is told, the others go on", prepare: func(w *world) {
				captured("p", "q")(w)
				w.fault["uid-p"] = failing(1, &Error{Kind: KindBlocked, Field: "spec"})
			},
			request: BulkRequest{All: true},
			want:    map[string]Outcome{"p": OutcomeBlocked, "q": OutcomeReleased},
			writes:  []string{"release p/uid-p", "release q/uid-q"}, reads: map[string]int{opGetWorkflow: 1},
		},
		{
			name: "B14 a right that lacks fails at once", prepare: func(w *world) {
				captured("p")(w)
				w.fault["uid-p"] = failing(99, &Error{Kind: KindForbidden, Verb: "patch"})
			},
			request: BulkRequest{All: true},
			want:    map[string]Outcome{"p": OutcomeFailed},
			writes:  []string{"release p/uid-p"}, reads: map[string]int{opGetWorkflow: 1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				if c.prepare != nil {
					c.prepare(w)
				}
				c.request.Workflow = flowA
				began := time.Now()
				got, err := w.service().Bulk(t.Context(), c.request)
				if err != nil {
					t.Fatal(err)
				}
				wantOutcomes(t, got, c.want)
				if d := time.Since(began); d != 0 {
					t.Errorf("it took %v", d)
				}
				writes := w.writes()
				slices.SortStableFunc(writes, func(a, b string) int { return int(a[len(a)-1]) - int(b[len(b)-1]) })
				if diff := cmp.Diff(c.writes, writes); diff != "" {
					t.Errorf("writes (-want +got):\n%s", diff)
				}
				reads := w.counts()
				delete(reads, opRelease)
				delete(reads, opDelete)
				if diff := cmp.Diff(c.reads, reads); diff != "" && len(c.reads)+len(reads) > 0 {
					t.Errorf("reads (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestBulkRefusesWhatNamesAPodWithoutItsUID(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p"))
	s := w.service()
	for name, r := range map[string]BulkRequest{
		"B45 a capture asserted for all":      {All: true, Captured: true},
		"B45 a capture asserted for node IDs": {NodeIDs: []string{"node-p"}, Captured: true},
		"a pod without UID":                   {Pods: []PodRef{{Name: "p"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r.Workflow = flowA
			_, err := s.Bulk(t.Context(), r)
			wantKind(t, err, KindInvalid)
		})
	}
	wantCounts(t, w, map[string]int{})
}

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

func TestBulkResultsComeInTheOrderOfTheRequest(t *testing.T) {
	w := newWorld()
	for _, n := range []string{"a", "b", "c", "d"} {
		w.put(podOf(flowA, n))
	}
	s := w.service()
	names := func(rs []Result) (out []string) {
		for _, r := range rs {
			out = append(out, r.Pod.Name)
		}
		return out
	}
	got, err := s.Bulk(t.Context(), BulkRequest{Workflow: flowA, Pods: refs("c", "a", "gone", "b"), Force: true})
	if err != nil || !slices.Equal(names(got), []string{"c", "a", "gone", "b"}) {
		t.Errorf("named: %v, %v", names(got), err)
	}
	got, err = s.Bulk(t.Context(), BulkRequest{Workflow: flowA, All: true, Force: true})
	if err != nil || !slices.Equal(names(got), []string{"a", "b", "c", "d"}) {
		t.Errorf("all: %v, %v", names(got), err)
	}
}

// span is the part of the log that one caller filled.
type span struct{ begin, end int }

func spans(log []access) map[string]span {
	out := map[string]span{}
	for _, a := range log {
		s, ok := out[a.Caller]
		if !ok {
			s = span{a.Begin, a.End}
		}
		out[a.Caller] = span{min(s.begin, a.Begin), max(s.end, a.End)}
	}
	return out
}

func TestB22CallsOnOneWorkflowDoNotInterleaveAndOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = 10 * time.Millisecond
		for _, flow := range []WorkflowKey{flowA, flowB} {
			phases := map[string]string{}
			for i := range 40 {
				name := fmt.Sprint(flow.Name, i)
				w.put(podOf(flow, name, withFinalizers(fin, "other")))
				phases[name] = "Succeeded"
			}
			w.flow(flow, phases)
		}
		s := w.service(func(c *Config) { c.Workers = 4 })
		ctx := t.Context()
		bulk := func(caller string, r BulkRequest) func() {
			return func() {
				if _, err := s.Bulk(as(ctx, caller), r); err != nil {
					t.Error(caller, err)
				}
			}
		}
		single := func(name string) func() {
			return func() { _, _ = s.ReleasePod(as(ctx, "single "+name), captureOf(name)) }
		}
		for _, f := range []func(){
			single("a1"), single("a2"),
			bulk("bulk 1", BulkRequest{Workflow: flowA, All: true, MarkCompleted: true}),
			single("a3"), single("a4"),
			bulk("bulk 2", BulkRequest{Workflow: flowA, All: true, Delete: true}),
			single("a5"),
			bulk("bulk B", BulkRequest{Workflow: flowB, All: true, Delete: true}),
		} {
			go f()
			time.Sleep(time.Millisecond) // the bubble's: the order of arrival
		}
		time.Sleep(time.Minute)
		got := spans(w.accesses(nil))
		for _, b := range []string{"bulk 1", "bulk 2"} {
			for other, s := range got {
				if other != b && other != "bulk B" && s.begin < got[b].end && got[b].begin < s.end {
					t.Errorf("%s %v and %s %v interleave", b, got[b], other, s)
				}
			}
		}
		if got["bulk 1"].end > got["bulk 2"].begin {
			t.Errorf("not in the order of arrival: %v", got)
		}
		if got["bulk B"].begin > got["bulk 1"].end || len(w.accesses(func(a access) bool { return a.Flow == flowB && a.write() })) != 80 {
			t.Errorf("another workflow waited: %v", got)
		}
	})
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

func TestB26TenThousandPods(t *testing.T) {
	const n, workers = 10_000, 16
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = time.Millisecond
		phases := make(map[string]string, n)
		for i := range n {
			name := fmt.Sprintf("p%05d", i)
			w.put(podOf(flowA, name))
			phases[name] = []string{"Succeeded", "Failed"}[i%2]
		}
		w.flow(flowA, phases)
		s := w.service(func(c *Config) { c.Workers = workers })
		began := time.Now()
		got, err := s.Bulk(t.Context(), BulkRequest{Workflow: flowA, All: true, Delete: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != n || slices.ContainsFunc(got, func(r Result) bool { return r.Outcome != OutcomeDeleted }) {
			t.Error("not all are deleted")
		}
		wantCounts(t, w, map[string]int{opGetWorkflow: 1, opDelete: n, opRelease: n})
		if w.peak != workers {
			t.Errorf("%d writes in flight, want %d", w.peak, workers)
		}
		if d := time.Since(began); d > 2*n/workers*time.Millisecond+10*time.Millisecond {
			t.Errorf("something else than the requests takes time: %v", d)
		}
	})
}

func TestB26TheStatusOfManyPodsIsOnePagedRead(t *testing.T) {
	w := newWorld()
	for i := range 1000 {
		w.put(podOf(flowA, fmt.Sprintf("p%05d", i), running))
	}
	w.flow(flowA, nil)
	got, err := w.service().Bulk(t.Context(), BulkRequest{Workflow: flowA, All: true, Delete: true})
	if err != nil || len(got) != 1000 {
		t.Fatal(len(got), err)
	}
	wantCounts(t, w, map[string]int{opGetWorkflow: 1, opListPods: 1})
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

func TestBulkProgressIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = time.Second
		for i := range 10 {
			w.put(podOf(flowA, fmt.Sprint("p", i)))
		}
		w.fault["uid-p0"] = failing(1, &Error{Kind: KindForbidden})
		s := w.service(func(c *Config) { c.Workers = 2 })
		began := time.Now()
		go func() { _, _ = s.Bulk(t.Context(), BulkRequest{Workflow: flowA, All: true, Force: true}) }()
		time.Sleep(2500 * time.Millisecond)
		want := &Work{Total: 10, Done: 4, Failed: 1, Started: began}
		if diff := cmp.Diff(want, s.works.of(flowA)); diff != "" {
			t.Errorf("work (-want +got):\n%s", diff)
		}
		time.Sleep(10 * time.Second)
		if s.works.of(flowA) != nil {
			t.Error("the work has no end")
		}
	})
}

func TestB31AReleaseOfTheOldUIDDoesNotWaitForTheNewPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"))
		// The retry puts its pod under the name the moment that it is free.
		s := w.service()
		w.gone = func(uid types.UID) {
			s.PodGone(uid)
			go w.put(podOf(flowA, "p", withUID("uid-2"), pending))
		}
		r := deleteRefs("p")
		r.Wait = true
		began := time.Now()
		got, err := s.Bulk(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, map[string]Outcome{"p": OutcomeDeleted})
		if time.Since(began) != 0 {
			t.Errorf("it waited %v", time.Since(began))
		}
		synctest.Wait()
		if p, ok := w.live("p"); !ok || p.UID != "uid-2" || !p.Has(fin) {
			t.Errorf("the new pod: %+v", p)
		}
	})
}
