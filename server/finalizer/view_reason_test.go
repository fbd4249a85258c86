package finalizer

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// healthOf is Nodes with one answer.
type healthOf struct {
	health NodeHealth
	err    error
}

func (h healthOf) NodeHealth(context.Context, string) (NodeHealth, error) { return h.health, h.err }

// TestB41GetPodTellsSinceAndUntil runs in a bubble, so that now is one moment.
func TestB41GetPodTellsSinceAndUntil(t *testing.T) {
	const minutes = time.Minute
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	running1 := func(w *world) { w.flow(flowA, map[string]string{"p": "Running"}) }
	flowWith := func(f func(*Workflow)) func(*world) {
		return func(w *world) {
			running1(w)
			wf := w.flows[flowA]
			f(&wf)
			w.setFlow(wf)
		}
	}
	sleepy := func(p *Pod) { p.DeletedAt, p.GraceSeconds = time.Now().Add(-minutes), 30 }
	young := func(p *Pod) { p.CreatedAt = time.Now().Add(-10 * time.Second) }
	noOwner := func(p *Pod) { p.Owner = Owner{} }
	lost := healthOf{health: NodeHealth{Known: true, Since: time.Time{}}}
	for _, c := range []struct {
		name       string
		pod        []func(*Pod)
		prepare    func(*world)
		health     *healthOf
		maxHold    time.Duration
		reason     Reason
		since      time.Duration // ago; -1: unknown
		until      time.Duration // from now; 0: unknown
		releasable bool
		words      string
	}{
		{name: "not captured, since its creation", prepare: running1, reason: ReasonNotCaptured, since: 10 * minutes, words: `node "node-p" is stored as Running`},
		{name: "not captured and terminating, since its deletion was asked for", pod: []func(*Pod){sleepy}, prepare: running1, reason: ReasonNotCaptured, since: minutes + 30*time.Second, words: "once its result is stored"},
		{name: "node not stored", prepare: flowWith(func(w *Workflow) { w.SetNodes(nil) }), reason: ReasonNotCaptured, since: 10 * minutes, words: "not in the stored Workflow"},
		{name: "unknown", prepare: flowWith(func(w *Workflow) { w.Unknown = "offloaded" }), reason: ReasonCaptureUnknown, since: 10 * minutes, words: "offloaded"},
		{name: "cannot be read", prepare: func(w *world) { w.readErr[flowA] = unavailable() }, reason: ReasonCaptureUnknown, since: 10 * minutes, words: "cannot be read now: unavailable"},
		{name: "captured, since its node finished", prepare: func(w *world) { w.flow(flowA, map[string]string{"p": "Succeeded"}) }, reason: ReasonCaptured, since: minutes, releasable: true, words: "in the stored Workflow"},
		{name: "captured, and left to its controller for the grace", prepare: flowWith(func(w *Workflow) {
			w.SetNodes(map[string]Node{"node-p": {Phase: "Succeeded", FinishedAt: time.Now().Add(-time.Second)}})
		}), reason: ReasonCaptured, since: time.Second, until: 9 * time.Second, releasable: true, words: "in the stored Workflow"},
		{name: "a young orphan, until the minimum age", pod: []func(*Pod){young}, reason: ReasonOrphaned, since: -1, until: 20 * time.Second, releasable: true, words: "is gone"},
		{name: "workflow deleting", prepare: flowWith(func(w *Workflow) { w.Deleting = true }), reason: ReasonWorkflowDeleting, since: -1, releasable: true, words: "being deleted"},
		{name: "namespace terminating", prepare: flowWith(func(w *Workflow) { w.NamespaceTerminating = true }), reason: ReasonNamespaceTerminating, since: -1, releasable: true, words: "namespace"},
		{name: "a young straggler, until the minimum age", pod: []func(*Pod){young}, prepare: flowWith(func(w *Workflow) { w.Completed = true }), reason: ReasonWorkflowCompleted, since: 10 * time.Second, until: 20 * time.Second, words: "Workflow has completed"},
		{name: "completed", pod: []func(*Pod){func(p *Pod) { p.Completed = true }}, prepare: flowWith(func(w *Workflow) { w.Completed = true }), reason: ReasonCompleted, since: -1, releasable: true, words: "labelled completed"},
		{name: "hidden, found so now", pod: []func(*Pod){func(p *Pod) { p.Completed = true }}, prepare: running1, reason: ReasonHidden, since: 0, words: "cannot see it"},
		{name: "unowned", pod: []func(*Pod){noOwner}, reason: ReasonUnowned, since: -1, words: "not an Argo Workflow"},
		{name: "node lost", pod: []func(*Pod){sleepy, running}, prepare: running1, health: &healthOf{health: NodeHealth{Known: true, Gone: true}}, reason: ReasonNodeLost, since: -1, releasable: true, words: "cluster node"},
		{name: "node not ready since nobody knows when", pod: []func(*Pod){sleepy, running}, prepare: running1, health: &lost, reason: ReasonNotCaptured, since: minutes + 30*time.Second, words: "Running"},
		{name: "the health of the node cannot be learnt", pod: []func(*Pod){sleepy, running}, prepare: running1, health: &healthOf{err: unavailable()}, reason: ReasonNotCaptured, since: minutes + 30*time.Second, words: "Running"},
		{name: "until max-hold", pod: []func(*Pod){sleepy}, prepare: running1, maxHold: 5 * minutes, reason: ReasonNotCaptured, since: minutes + 30*time.Second, until: 4 * minutes, words: "Running"},
		{name: "node removed", pod: []func(*Pod){sleepy}, prepare: flowWith(func(w *Workflow) { w.SetNodes(nil); w.CompletedOnce, w.StartedAt = true, time.Now() }), reason: ReasonNodeRemoved, since: -1, releasable: true, words: "retry removed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.put(podOf(flowA, "p", c.pod...))
				if c.prepare != nil {
					c.prepare(w)
				}
				v, err := w.service(func(cfg *Config) {
					cfg.Policy.MaxHold = c.maxHold
					if c.health != nil {
						cfg.Nodes = *c.health
					}
				}).GetPod(t.Context(), "ns", "p")
				if err != nil {
					t.Fatal(err)
				}
				want := View{Held: true, Releasable: c.releasable, Reason: c.reason, Since: ago(c.since)}
				if c.since < 0 {
					want.Since = time.Time{}
				}
				if c.until > 0 {
					want.ReleaseAt = time.Now().Add(c.until)
				}
				if !strings.Contains(v.Explanation, c.words) {
					t.Errorf("explanation %q lacks %q", v.Explanation, c.words)
				}
				v.Pod, v.Explanation = Pod{}, ""
				if diff := cmp.Diff(want, v); diff != "" {
					t.Errorf("view (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAListOfNotedPodsCostsNoRead(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "noted"), podOf(flowB, "other"), podOf(flowA, "orphan"))
	s := w.service()
	for name, d := range map[string]Decision{
		"noted":  kept.until(after(time.Hour)),
		"other":  {Reason: ReasonHidden, Since: deleted},
		"orphan": releaseFor(ReasonOrphaned).since(deleted),
	} {
		pod, _ := w.Pod("ns", name)
		s.Note(&pod, d, judgeNow)
	}
	list := func(r Reason) map[string]View {
		t.Helper()
		page, err := s.ListPods(t.Context(), ListRequest{Reason: r, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]View{}
		for _, v := range page.Pods {
			if v.Explanation == "" {
				t.Errorf("no explanation: %+v", v)
			}
			name := v.Pod.Name
			v.Pod, v.Explanation = Pod{}, ""
			got[name] = v
		}
		return got
	}
	want := map[string]View{
		"noted":  {Held: true, Reason: ReasonNotCaptured, Since: created, ReleaseAt: after(time.Hour)},
		"other":  {Held: true, Reason: ReasonHidden, Since: deleted},
		"orphan": {Held: true, Reason: ReasonOrphaned, Releasable: true, Since: deleted},
	}
	if diff := cmp.Diff(want, list(ReasonNone)); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]View{"other": want["other"]}, list(ReasonHidden)); diff != "" {
		t.Errorf("hidden (-want +got):\n%s", diff)
	}
	wantCounts(t, w, map[string]int{})
	w.put(podOf(flowA, "new-1"), podOf(flowA, "new-2"))
	if got := list(ReasonNone); len(got) != 5 {
		t.Errorf("got %v", got)
	}
	wantCounts(t, w, map[string]int{opGetWorkflow: 1}) // for both that are new
}

func TestForceOnAPodWithoutController(t *testing.T) {
	abandoned := podOf(flowA, "p", func(p *Pod) { p.Owner = Owner{} })
	id := abandoned.PodID
	for _, c := range []struct {
		name    string
		change  func(*Pod)
		request ReleaseRequest
		kind    Kind // 0: it is released
	}{
		{"B11 a pod that only the finalizer holds is released", nil, ReleaseRequest{Pod: id, Force: true}, 0},
		{"B11 not without force", nil, ReleaseRequest{Pod: id}, KindNotWorkflowPod},
		{"B11 not on the word that it is captured", nil, ReleaseRequest{Pod: id, Captured: true}, KindNotWorkflowPod},
		{"B11 one without the finalizer is none of the service's", withFinalizers("other"), ReleaseRequest{Pod: id, Force: true, MarkCompleted: true}, KindNotWorkflowPod},
		{"B7 a pod of another kind is refused, forced or not", func(p *Pod) { p.Owner = Owner{"batch", "Job", "a", "u"} }, ReleaseRequest{Pod: id, Force: true}, KindNotWorkflowPod},
		{"B7 so is a Workflow of another group", func(p *Pod) { p.Owner = Owner{"example.com", "Workflow", "a", "u"} }, ReleaseRequest{Pod: id, Force: true}, KindNotWorkflowPod},
		{"B8 a pod of another instance is refused", func(p *Pod) { p.InstanceID = "other" }, ReleaseRequest{Pod: id, Force: true}, KindOtherInstance},
		{"B1 another UID is refused", withUID("uid-2"), ReleaseRequest{Pod: id, Force: true}, KindReplaced},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, pod := newWorld(), abandoned
			if c.change != nil {
				c.change(&pod)
			}
			w.put(pod)
			got, err := w.service().ReleasePod(t.Context(), c.request)
			if c.kind != KindInternal {
				wantKind(t, err, c.kind)
				wantWrites(t, w)
				return
			}
			if err != nil || got.Outcome != OutcomeReleased || got.Reason != ReasonForced {
				t.Errorf("got %+v, %v", got, err)
			}
			wantWrites(t, w, "release p/uid-p")
		})
	}
}
