package finalizer

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// witness is Events, and takes what is observed.
type witness struct {
	mu     sync.Mutex
	events []Event
	acts   []Act
}

func (w *witness) Record(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *witness) observe(a Act) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acts = append(w.acts, a)
}

func (w *witness) attach(c *Config) { c.Events, c.Observe = w, w.observe }

func blocked() *Error {
	return &Error{Kind: KindBlocked, Message: "admission refuses", Field: "spec.containers", Webhook: "hook"}
}

// applied decides on pod p and carries it out.
func applied(change ...func(*Evidence)) func(*testing.T, *world, *Service) {
	return func(t *testing.T, w *world, s *Service) {
		e := w.found(t, s, "p")
		for _, f := range change {
			f(&e)
		}
		_, _ = s.Apply(t.Context(), e, s.policy.Decide(e))
	}
}

func called(r ReleaseRequest) func(*testing.T, *world, *Service) {
	return func(t *testing.T, _ *world, s *Service) { _, _ = s.ReleasePod(t.Context(), r) }
}

func bulked(r BulkRequest) func(*testing.T, *world, *Service) {
	r.Workflow = flowA
	return func(t *testing.T, _ *world, s *Service) { _, _ = s.Bulk(t.Context(), r) }
}

// TestEvents compares events but for their notes, of which it wants the words.
func TestEvents(t *testing.T) {
	pod := PodID{"ns", "p", "uid-p"}
	forced := Event{Pod: pod, Warning: true, Reason: "ForcedRelease", Action: "Release"}
	block := Event{Pod: pod, Warning: true, Reason: "BlockedByAdmission", Action: "Release"}
	summary := Event{Workflow: flowA, WorkflowUID: flowUID(flowA), Reason: "PodsReleased", Action: "ReleasePods"}
	deletion := Event{Workflow: flowA, WorkflowUID: flowUID(flowA), Reason: "PodsDeleted", Action: "DeletePods"}
	loud := func(e Event) Event { e.Warning = true; return e }
	long := func(w *world) { // terminating for two hours, its node running
		w.put(podOf(flowA, "p", func(p *Pod) { p.DeletedAt, p.GraceSeconds = time.Now().Add(-2*time.Hour), 30 }))
		w.flow(flowA, map[string]string{"p": "Running"})
	}
	refusing := func(w *world) { capturedPod(w); w.fault["uid-p"] = failing(1, blocked()) }
	for _, c := range []struct {
		name    string
		prepare func(*world)
		do      func(*testing.T, *world, *Service)
		want    []Event
		words   []string
	}{
		{"an ordinary release of the rule is no event", func(w *world) { capturedPod(w) }, applied(), nil, nil},
		{"an ordinary release of a caller is no event", func(w *world) { capturedPod(w) }, called(byName("p")), nil, nil},
		{"a call that is refused is no event", long, called(byName("p")), nil, nil},
		{"a call that only validates is no event", long, called(ReleaseRequest{Pod: pod, Force: true, ValidateOnly: true}), nil, nil},
		{"a throttled write is no event", func(w *world) { capturedPod(w); w.fault["uid-p"] = failing(1, throttled()) }, applied(), nil, nil},
		{"B42 a forced release is told at the pod", long, called(ReleaseRequest{Pod: pod, Force: true}), []Event{forced}, []string{"a caller forced it"}},
		{"B16 so is max-hold", long, applied(), []Event{forced}, []string{"--max-hold"}},
		{"B20 so is a lost node", func(w *world) { long(w); w.change("p", running) },
			applied(func(e *Evidence) { e.Health = NodeHealth{Known: true, Gone: true} }),
			[]Event{{Pod: pod, Warning: true, Reason: "NodeLost", Action: "Release"}}, []string{"cluster node"}},
		{"B44 so is a hidden pod", func(w *world) { hiddenPod(w) }, applied(func(e *Evidence) { e.HiddenSince = e.Now.Add(-time.Minute) }),
			[]Event{{Pod: pod, Warning: true, Reason: "Hidden", Action: "Unhide"}}, []string{LabelCompleted}},
		{"B13 an admission block of a call names the field", refusing, called(byName("p")), []Event{block}, []string{"spec.containers", "webhook"}},
		{"B13 an admission block of the rule too", refusing, applied(), []Event{block}, []string{"spec.containers"}},
		{"B13 an admission block of an unhide too", func(w *world) { hiddenPod(w); w.fault["uid-p"] = failing(1, blocked()) },
			applied(func(e *Evidence) { e.HiddenSince = e.Now.Add(-time.Minute) }), []Event{block}, []string{"spec.containers"}},
		{"B13 an admission block of a DELETE too, and the summary is a warning", refusing, bulked(BulkRequest{All: true, Delete: true}),
			[]Event{block, loud(deletion)}, []string{"spec.containers", "1 failed"}},
		{"B13 an admission block of a bulk release too", refusing, bulked(BulkRequest{All: true}), []Event{block, loud(summary)}, []string{"", "1 failed"}},
		{"a bulk release is told once at its workflow", func(w *world) { capturedPod(w) }, bulked(BulkRequest{All: true}), []Event{summary}, []string{"1 pods done"}},
		{"a bulk deletion tells what still terminates", func(w *world) { capturedPod(w); w.grace["uid-p"] = 30 }, bulked(BulkRequest{All: true, Delete: true}),
			[]Event{deletion}, []string{"0 pods done, 1 still terminating"}},
		{"a forced bulk call tells of each pod, and says so", long, bulked(BulkRequest{All: true, Force: true}), []Event{forced, summary}, []string{"", "forced"}},
		{"a bulk call that refuses all tells nothing", long, bulked(BulkRequest{All: true}), nil, nil},
		{"a bulk call that only validates tells nothing", long, bulked(BulkRequest{All: true, Force: true, ValidateOnly: true}), nil, nil},
		{"B28 a bulk call without pods tells nothing", func(*world) {}, bulked(BulkRequest{All: true}), nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, seen := newWorld(), &witness{}
			c.prepare(w)
			c.do(t, w, w.service(seen.attach, func(c *Config) { c.Policy.MaxHold = time.Hour }))
			if diff := cmp.Diff(c.want, seen.events, cmpopts.IgnoreFields(Event{}, "Note")); diff != "" {
				t.Fatalf("events (-want +got):\n%s", diff)
			}
			for i, e := range seen.events {
				if e.Note == "" || !strings.Contains(e.Note, c.words[i]) {
					t.Errorf("note %q lacks %q", e.Note, c.words[i])
				}
			}
		})
	}
}

func TestB40EachAttemptIsObserved(t *testing.T) {
	pod := PodID{"ns", "p", "uid-p"}
	for _, c := range []struct {
		name    string
		prepare func(*world)
		do      func(*testing.T, *world, *Service)
		want    []Act
		forced  bool
	}{
		{"a release of the rule", func(w *world) { capturedPod(w) }, applied(), []Act{{Pod: pod, Reason: ReasonCaptured, Background: true}}, false},
		{"a release of a caller", func(w *world) { capturedPod(w) }, called(byName("p")), []Act{{Pod: pod, Reason: ReasonCaptured}}, false},
		{"a forced one", func(w *world) { capturedPod(w) }, called(ReleaseRequest{Pod: pod, Force: true}), []Act{{Pod: pod, Reason: ReasonForced}}, true},
		{"an unhide", func(w *world) { hiddenPod(w) }, applied(func(e *Evidence) { e.HiddenSince = e.Now.Add(-time.Minute) }), []Act{{Pod: pod, Reason: ReasonHidden, Background: true}}, false},
		{"a fault", func(w *world) { capturedPod(w); w.fault["uid-p"] = failing(1, throttled()) }, applied(),
			[]Act{{Pod: pod, Reason: ReasonCaptured, Background: true, Err: throttled()}}, false},
		{"each pod of a bulk deletion, once", func(w *world) { capturedPod(w) }, bulked(BulkRequest{All: true, Delete: true}), []Act{{Pod: pod, Reason: ReasonCaptured}}, false},
		{"a DELETE that admission refuses", func(w *world) { capturedPod(w); w.fault["uid-p"] = failing(1, blocked()) }, bulked(BulkRequest{All: true, Delete: true}),
			[]Act{{Pod: pod, Err: blocked()}}, false},
		{"nothing where nothing is tried", func(w *world) { capturedPod(w) }, bulked(BulkRequest{All: true, ValidateOnly: true}), nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, seen := newWorld(), &witness{}
			c.prepare(w)
			c.do(t, w, w.service(seen.attach))
			if diff := cmp.Diff(c.want, seen.acts); diff != "" {
				t.Errorf("acts (-want +got):\n%s", diff)
			}
			if got := slices.ContainsFunc(seen.acts, Act.Forced); got != c.forced {
				t.Errorf("forced: %v", got)
			}
		})
	}
	if !(Act{Reason: ReasonMaxHold}).Forced() {
		t.Error("B16: max-hold does not count as forced")
	}
}
