package finalizer

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
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
