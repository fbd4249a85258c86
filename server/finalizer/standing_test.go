package finalizer

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func TestNoteKeepsSinceWhenAReasonHasHeld(t *testing.T) {
	first, second := judgeNow, judgeNow.Add(time.Minute)
	hidden, orphaned := Decision{Reason: ReasonHidden}, Decision{Reason: ReasonOrphaned}
	for _, c := range []struct {
		name  string
		notes [2]Decision
		want  Standing
	}{
		{"an unchanged reason has held since it was first noted", [2]Decision{hidden, hidden}, Standing{Reason: ReasonHidden, Since: first}},
		{"a changed reason holds since its change", [2]Decision{hidden, orphaned}, Standing{Reason: ReasonOrphaned, Since: second}},
		{"what the objects tell counts more", [2]Decision{hidden, hidden.since(before(time.Hour))}, Standing{Reason: ReasonHidden, Since: before(time.Hour)}},
		{"and is kept once they tell no more", [2]Decision{hidden.since(before(time.Hour)), hidden}, Standing{Reason: ReasonHidden, Since: before(time.Hour)}},
		{"a time to look again is no time of release", [2]Decision{hidden, hidden.look(after(time.Hour))}, Standing{Reason: ReasonHidden, Since: first}},
		{"a time of release is", [2]Decision{hidden, hidden.until(after(time.Hour))}, Standing{Reason: ReasonHidden, Since: first, ReleaseAt: after(time.Hour)}},
		{"a release that is still to be carried out makes it releasable", [2]Decision{orphaned, releaseFor(ReasonOrphaned)}, Standing{Reason: ReasonOrphaned, Releasable: true, Since: first}},
		{"an unhide does not", [2]Decision{hidden, {Action: ActionUnhide, Reason: ReasonHidden}}, Standing{Reason: ReasonHidden, Since: first}},
		{"what still needs a read is noted all the same", [2]Decision{hidden, hidden.needs(NeedWorkflow)}, Standing{Reason: ReasonHidden, Since: first}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			pod := podOf(flowA, "p")
			w.put(pod)
			s := w.service()
			s.Note(&pod, c.notes[0], first)
			s.Note(&pod, c.notes[1], second)
			got, ok := s.standings.get(pod.UID)
			if diff := cmp.Diff(c.want, got); diff != "" || !ok {
				t.Errorf("noted: %v (-want +got):\n%s", ok, diff)
			}
		})
	}
}

func TestAStandingIsDroppedWithItsPod(t *testing.T) {
	for name, end := range map[string]func(*world, *Service, Pod){
		"when the pod is gone":                func(w *world, _ *Service, _ Pod) { w.remove("p") },
		"when another UID has taken its name": func(w *world, _ *Service, _ Pod) { w.put(podOf(flowA, "p", withUID("uid-2"))) },
		"when it is released": func(_ *world, s *Service, p Pod) {
			p.Finalizers = nil
			s.Note(&p, Decision{Reason: ReasonHidden}, judgeNow)
		},
		"when there is nothing to say of it": func(_ *world, s *Service, p Pod) { s.Note(&p, Decision{}, judgeNow) },
		"when it is noted after its end": func(w *world, s *Service, p Pod) {
			w.remove("p")
			s.Note(&p, Decision{Reason: ReasonHidden}, judgeNow)
		},
		"when it is noted after another UID has taken its name": func(w *world, s *Service, p Pod) {
			w.put(podOf(flowA, "p", withUID("uid-2")))
			s.Note(&p, Decision{Reason: ReasonHidden}, judgeNow)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.put(podOf(flowA, "p"), podOf(flowA, "q"))
			s := w.service()
			for _, name := range []string{"p", "q"} {
				pod, _ := w.Pod("ns", name)
				s.Note(&pod, Decision{Reason: ReasonHidden}, judgeNow)
			}
			p, _ := w.Pod("ns", "p")
			end(w, s, p)
			if diff := cmp.Diff(map[Reason]HeldFor{ReasonHidden: {1, judgeNow}}, s.HeldByReason()); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
			if _, ok := s.standings.get("uid-q"); !ok {
				t.Error("the other pod's is gone too")
			}
		})
	}
}

func TestB40HeldPodsAreCountedByReason(t *testing.T) {
	w := newWorld()
	s := w.service()
	if got := s.HeldByReason(); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i, d := range []Decision{
		kept.since(before(time.Hour)), kept.since(before(2 * time.Hour)), kept.since(before(time.Minute)),
		{Reason: ReasonHidden}, releaseFor(ReasonOrphaned), {},
	} {
		pod := podOf(flowA, fmt.Sprint("p", i))
		w.put(pod)
		s.Note(&pod, d, judgeNow)
	}
	want := map[Reason]HeldFor{
		ReasonNotCaptured: {3, before(2 * time.Hour)}, ReasonHidden: {1, judgeNow}, ReasonOrphaned: {1, judgeNow},
	}
	if diff := cmp.Diff(want, s.HeldByReason()); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// oneName is a cache in which any pod asked for is there.
type oneName struct {
	Cache
	pod *Pod
}

func (c oneName) Pod(string, string) (Pod, bool) { return *c.pod, true }

func TestB39StandingsAreBoundedByTheHeldPods(t *testing.T) {
	const pods, most = 100_000, 300 // bytes a pod
	w := newWorld()
	pod := podOf(flowA, "p")
	s := w.service(func(c *Config) { c.Cache = oneName{w, &pod} })
	uids := make([]types.UID, pods)
	for i := range uids {
		uids[i] = types.UID(fmt.Sprint("uid-", i))
	}
	noteAll := func() {
		for _, uid := range uids {
			pod.UID = uid
			s.Note(&pod, kept, judgeNow)
		}
	}
	was := heap()
	noteAll()
	if grown := heap() - was; grown > pods*most {
		t.Errorf("%d bytes a pod, want at most %d", grown/pods, most)
	} else {
		t.Logf("%d bytes a pod", grown/pods)
	}
	if n := testing.AllocsPerRun(1, noteAll); n > pods/1000 {
		t.Errorf("to note them again takes %v allocations", n)
	}
	if n := s.HeldByReason()[ReasonNotCaptured].Pods; n != pods {
		t.Errorf("%d are counted", n)
	}
	for _, uid := range uids {
		s.PodGone(uid)
	}
	if n := len(s.standings.byUID); n != 0 {
		t.Errorf("%d are left when their pods are gone", n)
	}
	runtime.KeepAlive(uids)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestB8NothingIsDoneInANamespaceThatIsNotServed(t *testing.T) {
	ctx, flow := t.Context(), WorkflowKey{"ns2", "a"}
	pod := PodID{"ns2", "p", "uid-p"}
	calls := map[string]func(*Service) error{
		"add": func(s *Service) error { _, err := s.AddFinalizer(ctx, AddRequest{Pod: pod}); return err },
		"release": func(s *Service) error {
			_, err := s.ReleasePod(ctx, ReleaseRequest{Pod: pod, Captured: true})
			return err
		},
		"force": func(s *Service) error { _, err := s.ReleasePod(ctx, ReleaseRequest{Pod: pod, Force: true}); return err },
		"bulk":  func(s *Service) error { _, err := s.Bulk(ctx, BulkRequest{Workflow: flow, All: true}); return err },
		"bulk with a request id": func(s *Service) error {
			_, err := s.Bulk(ctx, BulkRequest{Workflow: flow, All: true, RequestID: "id"})
			return err
		},
		"get": func(s *Service) error { _, err := s.GetPod(ctx, "ns2", "p"); return err },
		"list": func(s *Service) error {
			_, err := s.ListPods(ctx, ListRequest{Namespace: "ns2", Limit: 10})
			return err
		},
		"list one": func(s *Service) error {
			_, err := s.ListPods(ctx, ListRequest{Namespace: "ns2", Workflow: "a", Limit: 10})
			return err
		},
		"watch": func(s *Service) error {
			return s.Watch(ctx, WatchRequest{Workflow: flow, Until: UntilReleased}, func(Step) error { return nil })
		},
		"apply": func(s *Service) error {
			_, err := s.Apply(ctx, Evidence{Pod: podOf(flow, "p")}, releaseFor(ReasonOrphaned))
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.put(podOf(flow, "p", withFinalizers()))
			s := w.service(func(c *Config) { c.Namespaces = []string{"ns", "ns3"} })
			wantKind(t, call(s), KindNotServed)
			wantCounts(t, w, map[string]int{})
			served := w.service(func(c *Config) { c.Namespaces = []string{"ns", "ns2"} })
			if err := call(served); err != nil && KindOf(err) == KindNotServed {
				t.Errorf("where it is served: %v", err)
			}
		})
	}
	t.Run("a list of all is of those that are served", func(t *testing.T) {
		w := newWorld()
		s := w.service(func(c *Config) { c.Namespaces = []string{"ns"} })
		if _, err := s.ListPods(ctx, ListRequest{Limit: 10}); err != nil {
			t.Error(err)
		}
	})
}
