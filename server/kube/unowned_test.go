package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func without(m *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	m.OwnerReferences = nil
	return m
}

func ownedBy(m *metav1.PartialObjectMetadata, kind string) *metav1.PartialObjectMetadata {
	m.OwnerReferences[0].Kind = kind
	return m
}

func TestHeldPodsWithoutAWorkflowHaveAKeyOfTheirOwn(t *testing.T) {
	cases := map[string]struct {
		pod        *metav1.PartialObjectMetadata
		underEmpty bool
		underOwner bool
	}{
		"B11: held, no owner":           {without(object("p", "a", 2, fin)), true, false},
		"not held, no owner":            {without(object("p", "a", 2, "other")), false, false},
		"B7: held, of another kind":     {ownedBy(object("p", "a", 2, fin), "Job"), true, false},
		"B7: not held, of another kind": {ownedBy(object("p", "a", 2), "Job"), false, false},
		"held, of a workflow":           {object("p", "a", 2, fin), false, true},
		"B7: held, an owner that does not control": {func() *metav1.PartialObjectMetadata {
			m := object("p", "a", 2, fin)
			m.OwnerReferences[0].Controller = nil
			return m
		}(), true, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var told []finalizer.WorkflowKey
			s := newPodStore(fin, nil, func(k finalizer.WorkflowKey) { told = append(told, k) })
			c := &Cache{pods: s}
			woken, cancel := c.Subscribe(wf(""))
			defer cancel()
			_ = s.feed("").Add(tc.pod)
			if got := len(c.PodsOfWorkflow(wf(""))) == 1; got != tc.underEmpty {
				t.Errorf("under the empty name: %v, want %v", got, tc.underEmpty)
			}
			if got := len(c.PodsOfWorkflow(wf("w"))) == 1; got != tc.underOwner {
				t.Errorf("under the workflow: %v, want %v", got, tc.underOwner)
			}
			if got := len(woken) == 1; got != tc.underEmpty || slices.Contains(told, wf("")) != tc.underEmpty {
				t.Errorf("woken %v, told %v", got, told)
			}
			if !tc.underEmpty && !tc.underOwner && (len(told) != 0 || len(s.byKey) != 0) {
				t.Errorf("told %v, keys %v of a pod that is nobody's", told, s.byKey)
			}
		})
	}
}

func TestAPodThatLosesItsOwnerMovesToTheEmptyName(t *testing.T) {
	told := map[finalizer.WorkflowKey]int{}
	s := newPodStore(fin, nil, func(k finalizer.WorkflowKey) { told[k]++ })
	c := &Cache{pods: s}
	feed := s.feed("")
	expect := func(what string, want map[finalizer.WorkflowKey]int, owned, unowned int) {
		t.Helper()
		if diff := gocmp.Diff(want, told); diff != "" {
			t.Errorf("B11: %s: told (-want +got)\n%s", what, diff)
		}
		if a, b := len(c.PodsOfWorkflow(wf("w"))), len(c.PodsOfWorkflow(wf(""))); a != owned || b != unowned {
			t.Errorf("B11: %s: %d owned, %d unowned, want %d and %d", what, a, b, owned, unowned)
		}
		clear(told)
	}
	_ = feed.Add(object("p", "a", 2, fin))
	expect("held", map[finalizer.WorkflowKey]int{wf("w"): 1}, 1, 0)
	_ = feed.Update(without(object("p", "a", 3, fin)))
	expect("ownerReferences stripped", map[finalizer.WorkflowKey]int{wf("w"): 1, wf(""): 1}, 0, 1)
	s.wrote(answer(without(object("p", "a", 4))))
	expect("released", map[finalizer.WorkflowKey]int{wf(""): 1}, 0, 0)
	_ = feed.Delete(without(object("p", "a", 5)))
	expect("gone", map[finalizer.WorkflowKey]int{}, 0, 0)
	if len(s.byKey) != 0 || s.held.count != 0 {
		t.Error("an index is not empty without a pod")
	}
}

func TestWorkflowsAreThoseWithSomethingToLookAt(t *testing.T) {
	s := newPodStore(fin, nil, nil)
	add := func(name, owner string, completed bool, finalizers ...string) {
		m := object(name, name, 2, finalizers...)
		m.OwnerReferences[0].Name = owner
		if owner == "" {
			m.OwnerReferences = nil
		}
		m.Labels = map[string]string{finalizer.LabelCompleted: fmt.Sprint(completed)}
		_ = s.feed("").Add(m)
	}
	add("a", "held", false, fin)
	add("b", "mixed", false)
	add("c", "mixed", false, fin)
	add("d", "idle", false, "other")
	add("e", "hidden", true)
	add("f", "", false, fin)
	add("g", "", true)
	_ = s.feed("").Add(ownedBy(object("h", "h", 2, fin), "Job"))
	got := (&Cache{pods: s}).Workflows()
	slices.SortFunc(got, func(a, b finalizer.WorkflowKey) int { return cmp.Compare(a.Name, b.Name) })
	if diff := gocmp.Diff([]finalizer.WorkflowKey{wf(""), wf("held"), wf("hidden"), wf("mixed")}, got); diff != "" {
		t.Errorf("B10: (-want +got)\n%s", diff)
	}
}

func TestFeedsOfNamespacesDoNotDisturbEachOther(t *testing.T) {
	in := func(namespace string, m *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
		m.Namespace = namespace
		return m
	}
	var gone []types.UID
	s := newPodStore(fin, func(u types.UID) { gone = append(gone, u) }, nil, "x", "y")
	c := &Cache{pods: s}
	x, y := s.feed("x"), s.feed("y")
	_ = x.Replace([]any{in("x", object("p", "a", 2, fin))}, "10")
	if missing := s.unsynced(); len(missing) != 1 || missing[0] != y {
		t.Errorf("one of two lists is in, unsynced are %v", missing)
	}
	s.wrote(answer(in("y", object("q", "early", 9, fin)))) // older than x's list, but y has told nothing yet
	if _, ok := c.Pod("y", "q"); !ok {
		t.Error("an answer was taken for late by the version of another namespace")
	}
	_ = y.Replace([]any{in("y", object("p", "b", 3, fin)), in("y", object("q", "early", 9, fin))}, "11")
	removed := func(namespace, uid string, version int) {
		s.wrote(answer(in(namespace, terminating(object("r", uid, version), time.Now(), 0))))
	}
	removed("x", "rx", 20)
	removed("y", "ry", 21)
	_ = x.Replace(nil, "30")
	if _, ok := c.Pod("y", "p"); !ok {
		t.Error("B32: a list of one namespace dropped the pods of another")
	}
	if _, ok := s.gone["ry"]; !ok || len(s.gone) != 1 {
		t.Errorf("removals remembered: %v, want that of y alone", s.gone)
	}
	if got := fmt.Sprint(gone); got != "[rx ry a]" {
		t.Errorf("told gone %s", got)
	}
	x.UpdateResourceVersion("50")
	s.wrote(answer(in("x", object("late", "l", 40, fin))))
	s.wrote(answer(in("y", object("late", "m", 40, fin))))
	s.wrote(answer(in("z", object("late", "n", 60, fin))))
	var names []string
	for _, p := range c.HeldPods("", finalizer.PodID{}, 10) {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	if got := strings.Join(names, " "); got != "y/late y/p y/q" {
		t.Errorf("held %s: what x's watch has passed, and what nothing watches, must not be kept", got)
	}
}
