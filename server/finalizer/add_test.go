package finalizer

import (
	"testing"
	"time"
)

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
