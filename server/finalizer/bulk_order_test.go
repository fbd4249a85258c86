package finalizer

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

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
