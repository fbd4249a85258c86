package kube

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// noteLasts is how long the fault of a single request stands unless it is
// renewed. It is longer than the reconciler takes to ask again for what was
// forbidden, so that a right that is missing does not seem to come and go.
const noteLasts = 2 * time.Minute

// faults remembers, per verb, resource and namespace, the failure that stands
// until the same succeeds. That of a watch, which is tried for ever, stands until
// then; that of a single request no longer than noteLasts, since some requests
// are never sent again: only callers delete pods. The zero value is empty.
type faults struct {
	mu    sync.Mutex
	byUse map[use]fault
}

// fault is a failure and when it ends by itself; zero: it does not.
type fault struct {
	err   *finalizer.Error
	until time.Time
}

func (f fault) over(now time.Time) bool { return !f.until.IsZero() && !now.Before(f.until) }

// use is what a right is about. namespace is empty for objects of the cluster,
// and for watches of all namespaces.
type use struct{ verb, resource, namespace string }

// note remembers what an operator has to mend: a missing right. Failures of a
// single object and of the moment are none. What a watch has set stays.
func (f *faults) note(u use, e *finalizer.Error) {
	if e.Kind != finalizer.KindForbidden {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if old, ok := f.byUse[u]; ok && old.until.IsZero() {
		return
	}
	f.put(u, fault{err: e, until: time.Now().Add(noteLasts)})
}

// set remembers a failure of what is tried until it succeeds.
func (f *faults) set(u use, e *finalizer.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put(u, fault{err: e})
}

func (f *faults) put(u use, is fault) {
	if f.byUse == nil {
		f.byUse = map[use]fault{}
	}
	f.byUse[u] = is
}

func (f *faults) clear(u use) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byUse, u)
}

// get returns the fault that stands; nil: none.
func (f *faults) get(u use) *finalizer.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if is := f.byUse[u]; !is.over(time.Now()) {
		return is.err
	}
	return nil
}

// list returns what stands, in order, and forgets what is over.
func (f *faults) list() []*finalizer.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	uses := make([]use, 0, len(f.byUse))
	for u, is := range f.byUse {
		if is.over(now) {
			delete(f.byUse, u)
			continue
		}
		uses = append(uses, u)
	}
	slices.SortFunc(uses, func(a, b use) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.verb, b.verb), cmp.Compare(a.namespace, b.namespace))
	})
	all := make([]*finalizer.Error, 0, len(uses))
	for _, u := range uses {
		all = append(all, f.byUse[u].err)
	}
	return all
}
