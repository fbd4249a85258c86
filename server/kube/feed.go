package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// podFeed is the store of one reflector of pods, of one namespace or of all
// (""), and writes to the podStore that all feeds share. Its own fields are under
// that store's lock.
type podFeed struct {
	store     *podStore
	namespace string
	synced    bool
	watched   string // the newest version that was delivered
}

func (f *podFeed) covers(namespace string) bool {
	return f.namespace == "" || f.namespace == namespace
}

// metaOf unwraps what a reflector delivers. Only a stale informer cache sends
// tombstones; one costs a line.
func metaOf(obj any) (*metav1.PartialObjectMetadata, bool) {
	if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tomb.Obj
	}
	m, ok := obj.(*metav1.PartialObjectMetadata)
	return m, ok
}

// Add takes a watch event.
func (f *podFeed) Add(obj any) error {
	m, ok := metaOf(obj)
	if !ok {
		return nil
	}
	p := podOf(&m.ObjectMeta)
	var e effects
	s := f.store
	s.mu.Lock()
	f.watched = p.ResourceVersion
	s.fromWatch(&p, &e)
	s.mu.Unlock()
	s.tell(&e)
	return nil
}

// Update takes a watch event.
func (f *podFeed) Update(obj any) error { return f.Add(obj) }

// Delete takes a watch event.
func (f *podFeed) Delete(obj any) error {
	m, ok := metaOf(obj)
	if !ok {
		return nil
	}
	name := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
	var e effects
	s := f.store
	s.mu.Lock()
	if m.ResourceVersion != "" {
		f.watched = m.ResourceVersion
	}
	delete(s.gone, m.UID)
	if cur := s.pods[name]; cur != nil && cur.UID == m.UID {
		s.drop(cur, &e)
	}
	s.mu.Unlock()
	s.tell(&e)
	return nil
}

// Replace takes a whole list of what the feed covers, as of a version. What an
// own write has made or changed after that version stays.
func (f *podFeed) Replace(list []any, version string) error {
	listed := make(map[types.UID]struct{}, len(list))
	pods := make([]*finalizer.Pod, 0, len(list)) // before the lock: a list may be long
	for _, obj := range list {
		if m, ok := metaOf(obj); ok {
			p := podOf(&m.ObjectMeta)
			listed[p.UID] = struct{}{}
			pods = append(pods, &p)
		}
	}
	var e effects
	s := f.store
	s.mu.Lock()
	f.watched, f.synced = version, true
	for _, p := range pods {
		s.fromWatch(p, &e)
	}
	for _, cur := range s.pods {
		if !f.covers(cur.Namespace) {
			continue
		}
		if _, ok := listed[cur.UID]; !ok && !newer(cur.ResourceVersion, version) {
			s.drop(cur, &e)
		}
	}
	for uid, r := range s.gone {
		if !f.covers(r.namespace) {
			continue
		}
		if _, ok := listed[uid]; !ok && !newer(r.version, version) {
			delete(s.gone, uid)
		}
	}
	s.mu.Unlock()
	s.tell(&e)
	return nil
}

// Resync has nothing to do: who consumes the store is level-triggered.
func (f *podFeed) Resync() error { return nil }

// Transformer lets the reflector slim what it collects before Replace.
func (f *podFeed) Transformer() cache.TransformFunc { return slim }

// UpdateResourceVersion takes bookmarks as well, so that watched moves on while
// no pod changes.
func (f *podFeed) UpdateResourceVersion(version string) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if newer(version, f.watched) {
		f.watched = version
	}
}
