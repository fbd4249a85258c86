package kube

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Cache implements finalizer.Cache and finalizer.Held from memory. The slices in
// its answers are shared and must not be changed.
type Cache struct{ pods *podStore }

// Counts is what the pod cache holds, for metrics.
type Counts struct {
	Cached          int
	Held            int
	HeldTerminating int
	// OldestTerminating is how long ago the grace period of the longest held
	// terminating pod ended; 0 when there is none.
	OldestTerminating time.Duration
}

// Pod implements finalizer.Cache.
func (c *Cache) Pod(namespace, name string) (finalizer.Pod, bool) {
	s := c.pods
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.pods[types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		return finalizer.Pod{}, false
	}
	return *p, true
}

// PodsOfWorkflow implements finalizer.Cache.
func (c *Cache) PodsOfWorkflow(key finalizer.WorkflowKey) []finalizer.Pod {
	stored := c.pods.ofWorkflow(key)
	slices.SortFunc(stored, func(a, b *finalizer.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return copied(stored)
}

// Workflows returns, in no order, each key that has a pod with FIN or with label
// completed=true; keys with an empty workflow name (finalizer.Cache) among them.
// It costs a walk over the keys.
func (c *Cache) Workflows() []finalizer.WorkflowKey {
	s := c.pods
	s.mu.RLock()
	defer s.mu.RUnlock()
	var keys []finalizer.WorkflowKey
	for key, names := range s.byKey {
		for name := range names {
			if p := s.pods[name]; p.Completed || p.Has(s.fin) {
				keys = append(keys, key)
				break
			}
		}
	}
	return keys
}

// Subscribe implements finalizer.Cache.
func (c *Cache) Subscribe(key finalizer.WorkflowKey) (<-chan struct{}, func()) {
	return c.pods.subs.add(key)
}

// HeldPods implements finalizer.Held. A page costs what it returns, however many
// pods are held.
func (c *Cache) HeldPods(namespace string, after finalizer.PodID, limit int) []finalizer.Pod {
	from := types.NamespacedName{Namespace: after.Namespace, Name: after.Name}
	if start := (types.NamespacedName{Namespace: namespace}); compareNames(start, from) > 0 {
		from = start
	}
	return copied(c.pods.heldAfter(from, namespace, limit))
}

// Counts returns the sizes of the pod cache as of now. It costs a walk over the
// held pods that are terminating.
func (c *Cache) Counts(now time.Time) Counts {
	s := c.pods
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := Counts{Cached: len(s.pods), Held: s.held.count, HeldTerminating: len(s.ending)}
	for _, since := range s.ending {
		n.OldestTerminating = max(n.OldestTerminating, now.Sub(since))
	}
	return n
}

// unsynced returns the feeds that have had no first list yet.
func (s *podStore) unsynced() []*podFeed {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var missing []*podFeed
	for _, f := range s.feeds {
		if !f.synced {
			missing = append(missing, f)
		}
	}
	slices.SortFunc(missing, func(a, b *podFeed) int { return cmp.Compare(a.namespace, b.namespace) })
	return missing
}

// workflowsIn returns the keys of a namespace that have pods.
func (s *podStore) workflowsIn(namespace string) []finalizer.WorkflowKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var keys []finalizer.WorkflowKey
	for key := range s.byKey {
		if key.Namespace == namespace {
			keys = append(keys, key)
		}
	}
	return keys
}

// ofWorkflow returns the stored pods of a key, in no order. There may be tens of
// thousands: they are sorted and copied outside the lock, for which all others
// wait.
func (s *podStore) ofWorkflow(key finalizer.WorkflowKey) []*finalizer.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	names := s.byKey[key]
	stored := make([]*finalizer.Pod, 0, len(names))
	for name := range names {
		stored = append(stored, s.pods[name])
	}
	return stored
}

// heldAfter returns the first held pods after a name, of one namespace or of all
// (""), in order.
func (s *podStore) heldAfter(from types.NamespacedName, namespace string, limit int) []*finalizer.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	page := make([]*finalizer.Pod, 0, max(0, min(limit, s.held.count)))
	s.held.after(from, func(n types.NamespacedName) bool {
		if len(page) >= limit || (namespace != "" && n.Namespace != namespace) {
			return false
		}
		page = append(page, s.pods[n])
		return true
	})
	return page
}

// copied needs no lock: stored pods are immutable.
func copied(stored []*finalizer.Pod) []finalizer.Pod {
	pods := make([]finalizer.Pod, len(stored))
	for i, p := range stored {
		pods[i] = *p
	}
	return pods
}
