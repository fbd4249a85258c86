package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestPodsOfAWorkflowAreInOrderAndCopies(t *testing.T) {
	s := newPodStore(fin, nil, nil)
	c := &Cache{pods: s}
	for i := range 100 {
		_ = s.feed("").Add(object(fmt.Sprintf("p%03d", i*37%100), fmt.Sprint(i), i+1, fin))
	}
	pods := c.PodsOfWorkflow(wf("w"))
	if len(pods) != 100 || !slices.IsSortedFunc(pods, func(a, b finalizer.Pod) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("%d pods, or not in order", len(pods))
	}
	pods[0].Name = "mine"
	if again := c.PodsOfWorkflow(wf("w")); again[0].Name != "p000" {
		t.Errorf("the first is %q: the stored pod was changed through an answer", again[0].Name)
	}
}

func TestPodsShareWhatIsEqualInMemory(t *testing.T) {
	s := newPodStore(fin, nil, nil)
	for i := range 2 {
		m := object(fmt.Sprint("p", i), fmt.Sprint("u", i), i+1, strings.Clone(fin))
		m.OwnerReferences[0].UID = "owner-" + m.OwnerReferences[0].UID // of its own memory
		_ = s.feed("").Add(m)
	}
	pods := (&Cache{pods: s}).PodsOfWorkflow(wf("w"))
	a, b := pods[0], pods[1]
	if a.Owner.UID != b.Owner.UID || unsafe.StringData(string(a.Owner.UID)) != unsafe.StringData(string(b.Owner.UID)) {
		t.Error("each pod of a workflow has its UID in memory")
	}
	if !slices.Equal(a.Finalizers, []string{fin}) || unsafe.SliceData(a.Finalizers) != unsafe.SliceData(b.Finalizers) {
		t.Errorf("each held pod has its list of finalizers %q, %q in memory", a.Finalizers, b.Finalizers)
	}
	if cap(a.Finalizers) != 1 {
		t.Error("what is appended to the finalizers of one pod may reach another")
	}
}
