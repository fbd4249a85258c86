package kube

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// maxGone bounds the memory of removed pods whose delete event is still to come.
// Past it some are forgotten; the cost is a stale entry until that event.
const maxGone = 1 << 16

// podStore holds the newest known state of each pod name, from two sources: the
// watch (as the store of a reflector) and the answers to own writes (wrote).
// resourceVersions decide which is newer, so neither an older watch event undoes
// an own write, nor an own write hides a later pod of the same name.
//
// Hazard: an answer may be noted after the watch has passed it, and even after
// the watch has told that the pod is gone. watched, the newest version that the
// watch delivered, tells such a late answer from that of a pod not yet seen.
//
// Stored pods are immutable.
type podStore struct {
	fin     string
	subs    subscriptions
	onGone  func(types.UID)
	onKey   func(finalizer.WorkflowKey)
	mu      sync.RWMutex
	synced  bool
	watched string
	pods    map[types.NamespacedName]*finalizer.Pod
	gone    map[types.UID]string // removed by an own write, at this version
	byOwner map[types.UID]map[types.NamespacedName]struct{}
	byKey   map[finalizer.WorkflowKey]map[types.NamespacedName]struct{}
	held    heldIndex
	ending  map[types.NamespacedName]time.Time // held and terminating: since when
}

func newPodStore(fin string, onGone func(types.UID), onKey func(finalizer.WorkflowKey)) *podStore {
	return &podStore{
		fin: fin, onGone: onGone, onKey: onKey,
		pods:    map[types.NamespacedName]*finalizer.Pod{},
		gone:    map[types.UID]string{},
		byOwner: map[types.UID]map[types.NamespacedName]struct{}{},
		byKey:   map[finalizer.WorkflowKey]map[types.NamespacedName]struct{}{},
		ending:  map[types.NamespacedName]time.Time{},
	}
}

// effects collects, under the lock, what is told after it.
type effects struct {
	keys map[finalizer.WorkflowKey]struct{}
	gone []types.UID
}

func (e *effects) touch(p *finalizer.Pod) {
	if key, ok := workflowOf(p); ok {
		if e.keys == nil {
			e.keys = map[finalizer.WorkflowKey]struct{}{}
		}
		e.keys[key] = struct{}{}
	}
}

func (s *podStore) tell(e *effects) {
	for _, uid := range e.gone {
		if s.onGone != nil {
			s.onGone(uid)
		}
	}
	for key := range e.keys {
		s.subs.signal(key)
		if s.onKey != nil {
			s.onKey(key)
		}
	}
}

// newer reports whether version a is after b; false when either is unreadable.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

func nameOf(p *finalizer.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
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
func (s *podStore) Add(obj any) error {
	m, ok := metaOf(obj)
	if !ok {
		return nil
	}
	p := podOf(&m.ObjectMeta)
	var e effects
	s.mu.Lock()
	s.watched = p.ResourceVersion
	s.fromWatch(&p, &e)
	s.mu.Unlock()
	s.tell(&e)
	return nil
}

// Update takes a watch event.
func (s *podStore) Update(obj any) error { return s.Add(obj) }

// Delete takes a watch event.
func (s *podStore) Delete(obj any) error {
	m, ok := metaOf(obj)
	if !ok {
		return nil
	}
	name := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
	var e effects
	s.mu.Lock()
	if m.ResourceVersion != "" {
		s.watched = m.ResourceVersion
	}
	delete(s.gone, m.UID)
	if cur := s.pods[name]; cur != nil && cur.UID == m.UID {
		s.drop(cur, &e)
	}
	s.mu.Unlock()
	s.tell(&e)
	return nil
}

// Replace takes a whole list, as of a version. What an own write has made or
// changed after that version stays.
func (s *podStore) Replace(list []any, version string) error {
	listed := make(map[types.UID]struct{}, len(list))
	var e effects
	s.mu.Lock()
	s.watched, s.synced = version, true
	for _, obj := range list {
		if m, ok := metaOf(obj); ok {
			p := podOf(&m.ObjectMeta)
			listed[p.UID] = struct{}{}
			s.fromWatch(&p, &e)
		}
	}
	for _, cur := range s.pods {
		if _, ok := listed[cur.UID]; !ok && !newer(cur.ResourceVersion, version) {
			s.drop(cur, &e)
		}
	}
	for uid, at := range s.gone {
		if _, ok := listed[uid]; !ok && !newer(at, version) {
			delete(s.gone, uid)
		}
	}
	s.mu.Unlock()
	s.tell(&e)
	return nil
}

// Resync has nothing to do: who consumes the store is level-triggered.
func (s *podStore) Resync() error { return nil }

// Transformer lets the reflector slim what it collects before Replace.
func (s *podStore) Transformer() cache.TransformFunc { return slim }

// UpdateResourceVersion takes bookmarks as well, so that watched moves on while
// no pod changes.
func (s *podStore) UpdateResourceVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if newer(version, s.watched) {
		s.watched = version
	}
}

func (s *podStore) fromWatch(p *finalizer.Pod, e *effects) {
	if _, gone := s.gone[p.UID]; gone {
		return
	}
	if cur := s.pods[nameOf(p)]; cur != nil && newer(cur.ResourceVersion, p.ResourceVersion) {
		return
	}
	s.put(p, e)
}

// wrote takes the answer to an own write.
func (s *podStore) wrote(p *finalizer.Pod) {
	var e effects
	s.mu.Lock()
	s.fromWrite(p, &e)
	s.mu.Unlock()
	s.tell(&e)
}

func (s *podStore) fromWrite(p *finalizer.Pod, e *effects) {
	if _, gone := s.gone[p.UID]; gone {
		return
	}
	cur := s.pods[nameOf(p)]
	known := cur != nil && cur.UID == p.UID
	if !known && s.watched != "" && !newer(p.ResourceVersion, s.watched) {
		return // the watch is past this answer and has the pod no more
	}
	if p.Removed() {
		if len(s.gone) >= maxGone {
			for uid := range s.gone {
				delete(s.gone, uid)
				break
			}
		}
		s.gone[p.UID] = p.ResourceVersion
		if known {
			s.drop(cur, e)
		} else {
			e.touch(p)
			e.gone = append(e.gone, p.UID)
		}
		return
	}
	if cur == nil || newer(p.ResourceVersion, cur.ResourceVersion) {
		s.put(p, e)
	}
}

// put installs p under its name. Another UID that had it is gone.
func (s *podStore) put(p *finalizer.Pod, e *effects) {
	name := nameOf(p)
	if cur := s.pods[name]; cur != nil {
		if cur.UID == p.UID && cur.ResourceVersion == p.ResourceVersion {
			return // the echo of an own write
		}
		if cur.UID != p.UID {
			s.drop(cur, e)
		} else {
			s.unindex(cur)
			e.touch(cur)
		}
	}
	s.pods[name] = p
	if p.Owner.UID != "" {
		addTo(s.byOwner, p.Owner.UID, name)
	}
	if key, ok := workflowOf(p); ok {
		addTo(s.byKey, key, name)
	}
	if p.Has(s.fin) {
		s.held.insert(name)
		if p.Terminating() {
			s.ending[name] = p.DeletedAt
		}
	}
	e.touch(p)
}

func (s *podStore) drop(cur *finalizer.Pod, e *effects) {
	s.unindex(cur)
	delete(s.pods, nameOf(cur))
	e.touch(cur)
	e.gone = append(e.gone, cur.UID)
}

func (s *podStore) unindex(cur *finalizer.Pod) {
	name := nameOf(cur)
	removeFrom(s.byOwner, cur.Owner.UID, name)
	if key, ok := workflowOf(cur); ok {
		removeFrom(s.byKey, key, name)
	}
	s.held.remove(name)
	delete(s.ending, name)
}

func addTo[K comparable](index map[K]map[types.NamespacedName]struct{}, key K, name types.NamespacedName) {
	if index[key] == nil {
		index[key] = map[types.NamespacedName]struct{}{}
	}
	index[key][name] = struct{}{}
}

func removeFrom[K comparable](index map[K]map[types.NamespacedName]struct{}, key K, name types.NamespacedName) {
	delete(index[key], name)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}
