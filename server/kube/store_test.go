package kube

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const fin = finalizer.DefaultFinalizer

// object is a workflow pod as the watch delivers it.
func object(name, uid string, version int, finalizers ...string) *metav1.PartialObjectMetadata {
	yes := true
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: fmt.Sprint(version), Finalizers: finalizers,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Name: "w", UID: "wu", Controller: &yes}},
	}}
}

func terminating(m *metav1.PartialObjectMetadata, at time.Time, grace int64) *metav1.PartialObjectMetadata {
	m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &metav1.Time{Time: at}, &grace
	return m
}

func answer(m *metav1.PartialObjectMetadata) *finalizer.Pod {
	p := podOf(&m.ObjectMeta)
	return &p
}

func TestCacheIsNewerOfWatchAndOwnWrites(t *testing.T) {
	at := time.Now()
	type step func(*podStore)
	list := func(version int, objects ...*metav1.PartialObjectMetadata) step {
		return func(s *podStore) {
			var all []any
			for _, o := range objects {
				all = append(all, o)
			}
			_ = s.feed("").Replace(all, fmt.Sprint(version))
		}
	}
	event := func(m *metav1.PartialObjectMetadata) step { return func(s *podStore) { _ = s.feed("").Update(m) } }
	gone := func(m *metav1.PartialObjectMetadata) step { return func(s *podStore) { _ = s.feed("").Delete(m) } }
	wrote := func(m *metav1.PartialObjectMetadata) step { return func(s *podStore) { s.wrote(answer(m)) } }
	removed := func(uid string, version int) step {
		return wrote(terminating(object("p", uid, version), at, 0))
	}
	cases := map[string]struct {
		steps []step
		want  string // uid@version held, or nothing
		gone  []types.UID
		marks int // removed pods still remembered
	}{
		"an own write is seen before the watch tells":             {steps: []step{list(1, object("p", "a", 1, fin)), wrote(object("p", "a", 5))}, want: "a@5"},
		"an older event does not undo it":                         {steps: []step{list(1, object("p", "a", 1, fin)), wrote(object("p", "a", 5)), event(object("p", "a", 3, fin))}, want: "a@5"},
		"a newer event counts":                                    {steps: []step{list(1, object("p", "a", 1, fin)), wrote(object("p", "a", 5)), event(object("p", "a", 9, fin))}, want: "a@9 held"},
		"versions are compared as numbers":                        {steps: []step{list(9, object("p", "a", 9, fin)), wrote(object("p", "a", 10))}, want: "a@10"},
		"answers in the wrong order":                              {steps: []step{list(1, object("p", "a", 1, fin)), wrote(object("p", "a", 7, fin)), wrote(object("p", "a", 5))}, want: "a@7 held"},
		"a pod that the watch has not told of":                    {steps: []step{list(1), wrote(object("p", "a", 5, fin))}, want: "a@5 held"},
		"before the first list":                                   {steps: []step{wrote(object("p", "a", 5, fin))}, want: "a@5 held"},
		"a first list that is older than an own write":            {steps: []step{wrote(object("p", "a", 5)), list(3, object("p", "a", 2, fin))}, want: "a@5"},
		"a relist without a pod that was written since":           {steps: []step{list(1), wrote(object("p", "a", 5)), list(3)}, want: "a@5"},
		"a relist without a pod ends it":                          {steps: []step{list(1, object("p", "a", 1)), list(3)}, gone: []types.UID{"a"}},
		"a relist with a successor":                               {steps: []step{list(1, object("p", "a", 1)), list(9, object("p", "b", 8, fin))}, want: "b@8 held", gone: []types.UID{"a"}},
		"an own removal is seen at once":                          {steps: []step{list(1, object("p", "a", 1, fin)), removed("a", 5)}, gone: []types.UID{"a"}, marks: 1},
		"stale events do not revive it":                           {steps: []step{list(1, object("p", "a", 1, fin)), removed("a", 5), event(object("p", "a", 3, fin))}, gone: []types.UID{"a"}, marks: 1},
		"its delete event ends the memory, and is told once":      {steps: []step{list(1, object("p", "a", 1, fin)), removed("a", 5), gone(object("p", "a", 6))}, gone: []types.UID{"a"}},
		"a relist ends the memory":                                {steps: []step{list(1, object("p", "a", 1, fin)), removed("a", 5), list(8)}, gone: []types.UID{"a"}},
		"a stale relist does not":                                 {steps: []step{list(1, object("p", "a", 1, fin)), removed("a", 5), list(4, object("p", "a", 4))}, gone: []types.UID{"a"}, marks: 1},
		"the successor shows through an own removal":              {steps: []step{list(1, object("p", "a", 1, fin)), removed("a", 5), event(object("p", "b", 7, fin))}, want: "b@7 held", gone: []types.UID{"a"}, marks: 1},
		"the late delete event of the old pod spares the new":     {steps: []step{list(1, object("p", "a", 1)), wrote(object("p", "b", 7, fin)), gone(object("p", "a", 6))}, want: "b@7 held", gone: []types.UID{"a"}},
		"B1: an own write never masks a later pod":                {steps: []step{list(1, object("p", "a", 1)), wrote(object("p", "a", 5)), event(object("p", "b", 8, fin))}, want: "b@8 held", gone: []types.UID{"a"}},
		"B1: an answer for the old pod after the new was seen":    {steps: []step{list(9, object("p", "b", 8, fin)), wrote(object("p", "a", 5))}, want: "b@8 held"},
		"an answer after the delete event does not revive":        {steps: []step{list(1, object("p", "a", 1)), gone(object("p", "a", 6)), wrote(object("p", "a", 5))}, gone: []types.UID{"a"}},
		"a removal noted after the delete event leaves no memory": {steps: []step{list(1, object("p", "a", 1)), gone(object("p", "a", 6)), removed("a", 5)}, gone: []types.UID{"a"}},
		"a bookmark moves the watch on":                           {steps: []step{list(1), func(s *podStore) { s.feed("").UpdateResourceVersion("20") }, wrote(object("p", "a", 5))}},
		"two answers of which the first removed":                  {steps: []step{list(1, object("p", "a", 1, fin)), removed("a", 5), wrote(object("p", "a", 4))}, gone: []types.UID{"a"}, marks: 1},
		"a tombstone is a delete": {steps: []step{list(1, object("p", "a", 1)), func(s *podStore) {
			_ = s.feed("").Delete(cache.DeletedFinalStateUnknown{Key: "ns/p", Obj: object("p", "a", 1)})
		}}, gone: []types.UID{"a"}},
		"unreadable versions: the watch's word counts":             {steps: []step{list(1, object("p", "a", 1, fin)), event(func() *metav1.PartialObjectMetadata { m := object("p", "a", 1); m.ResourceVersion = "x"; return m }())}, want: "a@x"},
		"an object of another type is passed over":                 {steps: []step{list(1), func(s *podStore) { _ = s.feed("").Add("x"); _ = s.feed("").Delete(3) }}},
		"the delete event of a pod that was never seen is nothing": {steps: []step{list(1), gone(object("p", "a", 3))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var told []types.UID
			s := newPodStore(fin, func(u types.UID) { told = append(told, u) }, nil)
			for _, do := range tc.steps {
				do(s)
			}
			c := &Cache{pods: s}
			got := ""
			if p, ok := c.Pod("ns", "p"); ok {
				got = fmt.Sprintf("%s@%s", p.UID, p.ResourceVersion)
				if p.Has(fin) {
					got += " held"
				}
				if n := len(c.PodsOfWorkflow(finalizer.WorkflowKey{Namespace: "ns", Name: "w"})); n != 1 {
					t.Errorf("%d pods by workflow, want 1", n)
				}
				if held := c.HeldPods("", finalizer.PodID{}, 10); len(held) != c.Counts(at).Held || (len(held) == 1) != p.Has(fin) {
					t.Errorf("held list %v, counts %+v", held, c.Counts(at))
				}
			} else if len(s.byKey) != 0 || s.held.count != 0 || len(s.ending) != 0 {
				t.Error("an index is not empty without a pod")
			}
			if got != tc.want {
				t.Errorf("cache has %q, want %q", got, tc.want)
			}
			if diff := cmp.Diff(tc.gone, told); diff != "" {
				t.Errorf("told gone (-want +got)\n%s", diff)
			}
			if len(s.gone) != tc.marks {
				t.Errorf("%d removed pods remembered, want %d", len(s.gone), tc.marks)
			}
		})
	}
}

func TestCacheMemoryOfRemovedPodsIsBounded(t *testing.T) {
	s := newPodStore(fin, nil, nil)
	_ = s.feed("").Replace(nil, "1")
	for i := range maxGone + 100 {
		s.wrote(answer(terminating(object("p", fmt.Sprint("u", i), i+2), time.Now(), 0)))
	}
	if len(s.gone) != maxGone {
		t.Errorf("%d remembered, want %d", len(s.gone), maxGone)
	}
}

func TestCacheOwnershipIsTheControllerReference(t *testing.T) {
	yes, no := true, false
	ref := func(api, kind string, controller *bool) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: api, Kind: kind, Name: "w", UID: "wu", Controller: controller}}
	}
	cases := map[string]struct {
		refs []metav1.OwnerReference
		want int
	}{
		"a workflow":                      {ref("argoproj.io/v1alpha1", "Workflow", &yes), 1},
		"a workflow of a later version":   {ref("argoproj.io/v2", "Workflow", &yes), 1},
		"another kind of the group":       {ref("argoproj.io/v1alpha1", "WorkflowArtifactGCTask", &yes), 0},
		"the kind in another group":       {ref("example.com/v1", "Workflow", &yes), 0},
		"an owner that does not control":  {ref("argoproj.io/v1alpha1", "Workflow", &no), 0},
		"a label without an owner":        {nil, 0},
		"an owner of a malformed version": {ref("a/b/c", "Workflow", &yes), 0},
	}
	for name, tc := range cases {
		t.Run("B7: "+name, func(t *testing.T) {
			s := newPodStore(fin, nil, nil)
			m := object("p", "a", 2)
			m.OwnerReferences, m.Labels = tc.refs, map[string]string{finalizer.LabelWorkflow: "w"}
			_ = s.feed("").Add(m)
			if got := len((&Cache{pods: s}).PodsOfWorkflow(finalizer.WorkflowKey{Namespace: "ns", Name: "w"})); got != tc.want {
				t.Errorf("%d pods, want %d", got, tc.want)
			}
		})
	}
}

func TestCacheSubscriptions(t *testing.T) {
	s := newPodStore(fin, nil, nil)
	c := &Cache{pods: s}
	key := finalizer.WorkflowKey{Namespace: "ns", Name: "w"}
	changed, cancel := c.Subscribe(key)
	other, cancelOther := c.Subscribe(finalizer.WorkflowKey{Namespace: "other", Name: "w"})
	expect := func(what string, want bool) {
		t.Helper()
		select {
		case <-changed:
			if !want {
				t.Errorf("%s: woken", what)
			}
		default:
			if want {
				t.Errorf("%s: not woken", what)
			}
		}
	}
	_ = s.feed("").Add(object("p", "a", 2, fin))
	_ = s.feed("").Update(object("p", "a", 3, fin))
	expect("two events", true)
	expect("after one read", false)
	s.wrote(answer(object("p", "a", 4)))
	expect("an own write", true)
	_ = s.feed("").Update(object("p", "a", 4))
	expect("its echo", false)
	_ = s.feed("").Delete(object("p", "a", 5))
	expect("a delete", true)
	moved := object("p", "b", 6)
	_ = s.feed("").Add(moved)
	expect("an add", true)
	orphaned := object("p", "b", 7)
	orphaned.OwnerReferences = nil
	_ = s.feed("").Update(orphaned)
	expect("a pod that loses its owner", true)
	select {
	case <-other:
		t.Error("B8: another namespace's workflow was woken")
	default:
	}
	cancel()
	cancel()
	cancelOther()
	_ = s.feed("").Add(object("q", "c", 9))
	expect("after cancel", false)
	if n := s.subs.size(); n != 0 {
		t.Errorf("%d entries left after cancel", n)
	}
}

func TestHeldPodsPages(t *testing.T) {
	s := newPodStore(fin, nil, nil)
	c := &Cache{pods: s}
	now := time.Now()
	var want []string
	version := 1
	for _, i := range rand.Perm(3000) {
		version++
		m := object(fmt.Sprintf("p%04d", i), fmt.Sprint("u", i), version, fin)
		m.Namespace = fmt.Sprint("ns", i%3)
		switch i % 5 {
		case 0:
			m.Finalizers = []string{"other"}
		case 1:
			terminating(m, now.Add(-time.Duration(i)*time.Second), 0)
		}
		if i%5 != 0 {
			want = append(want, m.Namespace+"/"+m.Name)
		}
		_ = s.feed("").Add(m)
	}
	slices.Sort(want)
	for _, namespace := range []string{"", "ns0", "ns1", "ns2", "none"} {
		var got []string
		for after := (finalizer.PodID{}); ; {
			page := c.HeldPods(namespace, after, 7)
			for _, p := range page {
				got = append(got, p.Namespace+"/"+p.Name)
			}
			if len(page) < 7 {
				break
			}
			after = page[6].PodID
		}
		var expect []string
		for _, w := range want {
			if namespace == "" || w[:3] == namespace {
				expect = append(expect, w)
			}
		}
		if diff := cmp.Diff(expect, got); diff != "" {
			t.Errorf("namespace %q (-want +got)\n%s", namespace, diff)
		}
	}
	n := c.Counts(now)
	if want := (Counts{Cached: 3000, Held: 2400, HeldTerminating: 600, OldestTerminating: 2996 * time.Second}); n != want {
		t.Errorf("got %+v, want %+v", n, want)
	}
	_ = s.feed("").Replace(nil, fmt.Sprint(version+1))
	if n := c.Counts(now); n != (Counts{}) || len(s.held.blocks) != 0 {
		t.Errorf("after all are gone: %+v, %d blocks", n, len(s.held.blocks))
	}
}

func TestHeldIndexAgainstASortedList(t *testing.T) {
	var h heldIndex
	var want []types.NamespacedName
	for range 20_000 {
		n := types.NamespacedName{Namespace: fmt.Sprint(rand.IntN(4)), Name: fmt.Sprint(rand.IntN(2000))}
		at, found := slices.BinarySearchFunc(want, n, compareNames)
		if rand.IntN(3) > 0 {
			h.insert(n)
			if !found {
				want = slices.Insert(want, at, n)
			}
		} else {
			h.remove(n)
			if found {
				want = slices.Delete(want, at, at+1)
			}
		}
	}
	var got []types.NamespacedName
	h.after(types.NamespacedName{}, func(n types.NamespacedName) bool { got = append(got, n); return true })
	if diff := cmp.Diff(want, got); diff != "" || h.count != len(want) {
		t.Errorf("count %d, want %d (-want +got)\n%s", h.count, len(want), diff)
	}
}

func BenchmarkHeldPage(b *testing.B) {
	s := newPodStore(fin, nil, nil)
	for i := range 100_000 {
		_ = s.feed("").Add(object(fmt.Sprintf("p%06d", i), fmt.Sprint("u", i), i+1, fin))
	}
	c := &Cache{pods: s}
	b.ReportAllocs()
	for b.Loop() {
		if len(c.HeldPods("ns", finalizer.PodID{Namespace: "ns", Name: "p050000"}, 500)) != 500 {
			b.Fatal("short page")
		}
	}
}

func TestTransformKeepsWhatIsRead(t *testing.T) {
	m := object("p", "a", 1, "other", fin)
	m.Labels = map[string]string{finalizer.LabelCompleted: "true", finalizer.LabelInstanceID: "i", "big": "x"}
	m.Annotations = map[string]string{finalizer.AnnotationNode: "n", finalizer.AnnotationPodGC: "OnPodCompletion/48h0m0s", "big": "x"}
	m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	m.CreationTimestamp = metav1.Now()
	m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{Kind: "Other"})
	terminating(m, time.Now(), 30)
	want := podOf(m.DeepCopy().ObjectMeta.DeepCopy())
	slimmed, err := slim(m)
	if err != nil {
		t.Fatal(err)
	}
	got := slimmed.(*metav1.PartialObjectMetadata)
	if want.GCStrategy != "OnPodCompletion" {
		t.Errorf("B17 the strategy of podGC is read as %q", want.GCStrategy)
	}
	if diff := cmp.Diff(want, podOf(&got.ObjectMeta)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(got.Labels) != 2 || len(got.Annotations) != 2 || got.ManagedFields != nil || len(got.OwnerReferences) != 1 {
		t.Errorf("bulk is kept: %+v", got.ObjectMeta)
	}
}
