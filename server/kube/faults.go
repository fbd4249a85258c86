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
	// perNamespace keeps the namespaces apart: their rights come from Roles of
	// their own. Without it one success speaks for all.
	perNamespace bool

	mu    sync.Mutex
	byUse map[use]*finalizer.Error
}

// use is what a right is about. namespace is empty for objects of the cluster.
type use struct{ verb, resource, namespace string }

func (f *faults) key(u use) use {
	if !f.perNamespace {
		u.namespace = ""
	}
	return u
}

// note remembers what an operator has to mend: a missing right. Failures of a
// single object and of the moment are none.
func (f *faults) note(u use, e *finalizer.Error) {
	if e.Kind == finalizer.KindForbidden {
		f.set(u, e)
	}
}

func (f *faults) set(u use, e *finalizer.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byUse == nil {
		f.byUse = map[use]*finalizer.Error{}
	}
	f.byUse[f.key(u)] = e
}

func (f *faults) clear(u use) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byUse, f.key(u))
}

func (f *faults) get(u use) *finalizer.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byUse[f.key(u)]
}

func (f *faults) list() []*finalizer.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	uses := make([]use, 0, len(f.byUse))
	for u := range f.byUse {
		uses = append(uses, u)
	}
	slices.SortFunc(uses, func(a, b use) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.verb, b.verb), cmp.Compare(a.namespace, b.namespace))
	})
	all := make([]*finalizer.Error, 0, len(uses))
	for _, u := range uses {
		all = append(all, f.byUse[u])
	}
	return all
}
