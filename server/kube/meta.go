package kube

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Meta is what the watch tells of a workflow or a namespace.
type Meta struct {
	UID       types.UID
	Deleting  bool
	Completed bool // label workflows.argoproj.io/completed=true
	// ResourceVersion is that of a workflow, and is empty for a namespace, whose
	// every change would otherwise look like news.
	ResourceVersion string
}

// metaStore holds the Meta of each object of a resource. changed is called after
// each change, outside the lock.
type metaStore struct {
	changed  func(types.NamespacedName, Meta)
	versions bool // Meta has the version, so that each new one is a change
	feeds    []*metaFeed

	mu      sync.RWMutex
	objects map[types.NamespacedName]Meta
}

// newMetaStore takes the scopes that are watched, which must not overlap.
func newMetaStore(changed func(types.NamespacedName, Meta), versions bool, scopes []scope) *metaStore {
	s := &metaStore{changed: changed, versions: versions, objects: map[types.NamespacedName]Meta{}}
	for _, sc := range scopes {
		s.feeds = append(s.feeds, &metaFeed{store: s, scope: sc})
	}
	return s
}

// get returns what is known of an object. Before the first list nothing is.
func (s *metaStore) get(name types.NamespacedName) (Meta, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m, ok := s.objects[name]
	return m, ok
}

// unsynced returns the scopes that have had no first list yet.
func (s *metaStore) unsynced() []scope {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var missing []scope
	for _, f := range s.feeds {
		if !f.synced {
			missing = append(missing, f.scope)
		}
	}
	return missing
}

func (s *metaStore) tell(name types.NamespacedName, m Meta) {
	if s.changed != nil {
		s.changed(name, m)
	}
}

func (s *metaStore) read(obj any) (types.NamespacedName, Meta, bool) {
	o, ok := metaOf(obj)
	if !ok {
		return types.NamespacedName{}, Meta{}, false
	}
	m := Meta{
		UID: o.UID, Deleting: o.DeletionTimestamp != nil,
		Completed: o.Labels[finalizer.LabelCompleted] == "true",
	}
	if s.versions {
		m.ResourceVersion = o.ResourceVersion
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, m, true
}

// metaFeed is the store of one reflector, and writes to the metaStore that all
// feeds share. synced is under that store's lock.
type metaFeed struct {
	store  *metaStore
	scope  scope
	synced bool
}

// Add takes a watch event.
func (f *metaFeed) Add(obj any) error {
	s := f.store
	name, m, ok := s.read(obj)
	if !ok {
		return nil
	}
	s.mu.Lock()
	old, had := s.objects[name]
	s.objects[name] = m
	s.mu.Unlock()
	if !had || old != m {
		s.tell(name, m)
	}
	return nil
}

// Update takes a watch event.
func (f *metaFeed) Update(obj any) error { return f.Add(obj) }

// Delete takes a watch event.
func (f *metaFeed) Delete(obj any) error {
	s := f.store
	name, m, ok := s.read(obj)
	if !ok {
		return nil
	}
	s.mu.Lock()
	delete(s.objects, name)
	s.mu.Unlock()
	m.Deleting = true
	s.tell(name, m)
	return nil
}

// Replace takes a whole list of what the feed covers.
func (f *metaFeed) Replace(list []any, _ string) error {
	s := f.store
	listed := make(map[types.NamespacedName]struct{}, len(list))
	news := map[types.NamespacedName]Meta{}
	s.mu.Lock()
	f.synced = true
	for _, obj := range list {
		name, m, ok := s.read(obj)
		if !ok {
			continue
		}
		listed[name] = struct{}{}
		if was, had := s.objects[name]; !had || was != m {
			s.objects[name], news[name] = m, m
		}
	}
	for name, m := range s.objects {
		if _, still := listed[name]; !still && f.scope.covers(name) {
			delete(s.objects, name)
			m.Deleting = true
			news[name] = m
		}
	}
	s.mu.Unlock()
	for name, m := range news {
		s.tell(name, m)
	}
	return nil
}

// Resync has nothing to do.
func (f *metaFeed) Resync() error { return nil }

// Transformer lets the reflector slim what it collects before Replace.
func (f *metaFeed) Transformer() cache.TransformFunc { return slim }
