package kube

import (
	"cmp"
	"slices"
	"sync"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// faults remembers, per verb and resource, the failure that stands until the
// same verb on the same resource succeeds. The zero value is empty.
type faults struct {
	mu    sync.Mutex
	byUse map[use]*finalizer.Error
}

type use struct{ verb, resource string }

// note remembers what an operator has to mend: a missing right. Failures of a
// single object and of the moment are none.
func (f *faults) note(verb, resource string, e *finalizer.Error) {
	if e.Kind == finalizer.KindForbidden {
		f.set(verb, resource, e)
	}
}

func (f *faults) set(verb, resource string, e *finalizer.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byUse == nil {
		f.byUse = map[use]*finalizer.Error{}
	}
	f.byUse[use{verb, resource}] = e
}

func (f *faults) clear(verb, resource string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byUse, use{verb, resource})
}

func (f *faults) get(verb, resource string) *finalizer.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byUse[use{verb, resource}]
}

func (f *faults) list() []*finalizer.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*finalizer.Error, 0, len(f.byUse))
	for _, e := range f.byUse {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *finalizer.Error) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb))
	})
	return all
}
