package kube

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const verbWatch = "watch"

// newReflector watches all objects of a resource, as metadata only and without a
// selector, into a store. It streams the first list where the API server can,
// and comes back within about ten seconds of an outage's end.
func newReflector(client metadata.Interface, gvr schema.GroupVersionResource, store cache.ReflectorStore, f *faults) *cache.Reflector {
	all := client.Resource(gvr)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := all.List(ctx, o)
			watchFault(ctx, f, verbList, gvr.Resource, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := all.Watch(ctx, o)
			watchFault(ctx, f, verbWatch, gvr.Resource, err)
			if err == nil && o.SendInitialEvents != nil {
				f.clear(verbList, gvr.Resource) // a stream needs no list
			}
			return w, err
		},
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, client), &metav1.PartialObjectMetadata{}, store,
		cache.ReflectorOptions{
			Name: gvr.Resource, TypeDescription: gvr.String(),
			Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Cap: 5 * time.Second, Steps: 20, Factor: 2, Jitter: 1},
		})
}

// watchFault keeps the last failure of a watch, of any kind, until it works.
func watchFault(ctx context.Context, f *faults, verb, resource string, err error) {
	if err == nil {
		f.clear(verb, resource)
		return
	}
	if ctx.Err() == nil {
		f.set(verb, resource, classify(err, nil, request{verb: verb, resource: resource}))
	}
}

// Meta is what the watch tells of a workflow or a namespace.
type Meta struct {
	UID       types.UID
	Deleting  bool
	Completed bool // label workflows.argoproj.io/completed=true
}

// metaStore is a reflector's store of Meta. changed is called after each change,
// outside the lock.
type metaStore struct {
	changed func(types.NamespacedName, Meta)

	mu      sync.RWMutex
	synced  bool
	objects map[types.NamespacedName]Meta
}

// get returns what is known of an object. Before the first list nothing is.
func (s *metaStore) get(name types.NamespacedName) (Meta, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m, ok := s.objects[name]
	return m, ok
}

func (s *metaStore) isSynced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced
}

func (s *metaStore) tell(name types.NamespacedName, m Meta) {
	if s.changed != nil {
		s.changed(name, m)
	}
}

func readMeta(obj any) (types.NamespacedName, Meta, bool) {
	m, ok := metaOf(obj)
	if !ok {
		return types.NamespacedName{}, Meta{}, false
	}
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, Meta{
		UID: m.UID, Deleting: m.DeletionTimestamp != nil,
		Completed: m.Labels[finalizer.LabelCompleted] == "true",
	}, true
}

// Add takes a watch event.
func (s *metaStore) Add(obj any) error {
	name, m, ok := readMeta(obj)
	if !ok {
		return nil
	}
	s.mu.Lock()
	old, had := s.objects[name]
	if s.objects == nil {
		s.objects = map[types.NamespacedName]Meta{}
	}
	s.objects[name] = m
	s.mu.Unlock()
	if !had || old != m {
		s.tell(name, m)
	}
	return nil
}

// Update takes a watch event.
func (s *metaStore) Update(obj any) error { return s.Add(obj) }

// Delete takes a watch event.
func (s *metaStore) Delete(obj any) error {
	name, m, ok := readMeta(obj)
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

// Replace takes a whole list.
func (s *metaStore) Replace(list []any, _ string) error {
	objects := make(map[types.NamespacedName]Meta, len(list))
	for _, obj := range list {
		if name, m, ok := readMeta(obj); ok {
			objects[name] = m
		}
	}
	s.mu.Lock()
	old := s.objects
	s.objects, s.synced = objects, true
	s.mu.Unlock()
	for name, m := range objects {
		if was, had := old[name]; !had || was != m {
			s.tell(name, m)
		}
	}
	for name, m := range old {
		if _, still := objects[name]; !still {
			m.Deleting = true
			s.tell(name, m)
		}
	}
	return nil
}

// Resync has nothing to do.
func (s *metaStore) Resync() error { return nil }

// Transformer lets the reflector slim what it collects before Replace.
func (s *metaStore) Transformer() cache.TransformFunc { return slim }
