package finalizer

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGetPodSaysWhyAPodIsHeld(t *testing.T) {
	for _, c := range []struct {
		name       string
		pod        Pod
		prepare    func(*world)
		releasable bool
		reason     Reason
	}{
		{name: "captured", pod: podOf(flowA, "p"), prepare: func(w *world) { w.flow(flowA, map[string]string{"p": "Succeeded"}) }, releasable: true, reason: ReasonCaptured},
		{name: "B41 not captured", pod: podOf(flowA, "p", running), prepare: func(w *world) { w.flow(flowA, map[string]string{"p": "Running"}) }, reason: ReasonNotCaptured},
		{name: "B34 a workflow that cannot be read", pod: podOf(flowA, "p"), prepare: func(w *world) { w.readErr[flowA] = unavailable() }, reason: ReasonCaptureUnknown},
		{name: "B11 without owner", pod: podOf(flowA, "p", func(p *Pod) { p.Owner = Owner{} }), reason: ReasonUnowned},
		{name: "B18 never started", pod: podOf(flowA, "p", pending, terminating(0)), prepare: func(w *world) { w.flow(flowA, map[string]string{"p": "Pending"}) }, releasable: true, reason: ReasonNeverStarted},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			w.put(c.pod)
			if c.prepare != nil {
				c.prepare(w)
			}
			v, err := w.service().GetPod(t.Context(), "ns", "p")
			if err != nil {
				t.Fatal(err)
			}
			if !v.Held || v.Releasable != c.releasable || v.Reason != c.reason || v.Explanation == "" || v.Pod.Status == nil {
				t.Errorf("got %+v", v)
			}
		})
	}
	t.Run("a pod that does not exist", func(t *testing.T) {
		_, err := newWorld().service().GetPod(t.Context(), "ns", "p")
		wantKind(t, err, KindPodNotFound)
	})
}

// pages lists until there is no more.
func pages(t *testing.T, s *Service, r ListRequest) (names []string, n int) {
	t.Helper()
	for {
		p, err := s.ListPods(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		n++
		for _, v := range p.Pods {
			names = append(names, v.Pod.Namespace+"/"+v.Pod.Name)
			if v.Explanation == "" || v.Reason == ReasonNone {
				t.Errorf("no reason: %+v", v)
			}
		}
		if !p.More {
			return names, n
		}
		r.After = p.Next
	}
}

func TestListPods(t *testing.T) {
	w := newWorld()
	phases := map[string]string{}
	for i := range 5 {
		name := fmt.Sprint("p", i)
		w.put(podOf(flowA, name))
		phases[name] = []string{"Running", "Succeeded"}[i%2]
	}
	w.flow(flowA, phases)
	w.put(podOf(flowB, "q"), podOf(flowA, "released", withFinalizers("other")), podOf(WorkflowKey{"ns2", "a"}, "p0"))
	w.put(podOf(flowA, "left", func(p *Pod) { p.Completed = true }))
	s := w.service()
	for _, c := range []struct {
		name    string
		request ListRequest
		want    []string
		pages   int
		reads   map[string]int
	}{
		{"B10 all held pods, also those labelled completed", ListRequest{Limit: 3}, []string{"ns/left", "ns/p0", "ns/p1", "ns/p2", "ns/p3", "ns/p4", "ns/q", "ns2/p0"}, 3, map[string]int{opGetWorkflow: 4}},
		{"of one namespace", ListRequest{Namespace: "ns2", Limit: 3}, []string{"ns2/p0"}, 1, map[string]int{opGetWorkflow: 1}},
		{"of one workflow, a page at a time", ListRequest{Namespace: "ns", Workflow: "a", Limit: 2}, []string{"ns/left", "ns/p0", "ns/p1", "ns/p2", "ns/p3", "ns/p4"}, 3, map[string]int{opGetWorkflow: 3}},
		{"of one reason", ListRequest{Namespace: "ns", Workflow: "a", Reason: ReasonCaptured, Limit: 100}, []string{"ns/p1", "ns/p3"}, 1, map[string]int{opGetWorkflow: 1}},
		{"of another reason, over workflows at one read each", ListRequest{Namespace: "ns", Reason: ReasonOrphaned, Limit: 100}, []string{"ns/q"}, 1, map[string]int{opGetWorkflow: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.forgetLog()
			got, n := pages(t, s, c.request)
			if diff := cmp.Diff(c.want, got); diff != "" || n != c.pages {
				t.Errorf("%d pages, pods (-want +got):\n%s", n, diff)
			}
			wantCounts(t, w, c.reads)
		})
	}
	t.Run("B34 a workflow that cannot be read makes its pods unknown, not orphans", func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p", func(p *Pod) { p.CreatedAt = time.Now().Add(-time.Hour) }))
		w.readErr[flowA] = unavailable()
		got, err := w.service().ListPods(t.Context(), ListRequest{Namespace: "ns", Workflow: "a", Limit: 1})
		if err != nil || len(got.Pods) != 1 || got.Pods[0].Reason != ReasonCaptureUnknown || got.Pods[0].Releasable {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}
