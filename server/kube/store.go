package kube

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// maxGone bounds the memory of removed pods whose delete event is still to come.
// Past it some are forgotten; the cost is a stale entry until that event.
const maxGone = 1 << 16

// podStore holds the newest known state of each pod name, from two sources: the
// watch (podFeed, one a namespace or one for all) and the answers to own writes
// (wrote). resourceVersions decide which is newer, so neither an older watch
// event undoes an own write, nor an own write hides a later pod of the same name.
//
// Hazard: an answer may be noted after the watch has passed it, and even after
// the watch has told that the pod is gone. The newest version that the feed of
// the namespace delivered tells such a late answer from that of a pod not yet
// seen.
//
// Stored pods are immutable, and so are their Finalizers, which they share.
type podStore struct {
	fin    string
	alone  []string // fin and no other: the finalizers of most held pods
	subs   subscriptions
	onGone func(types.UID)
	onKey  func(finalizer.WorkflowKey)
	feeds  map[string]*podFeed // by namespace; "" alone: all namespaces
	mu     sync.RWMutex
	pods   map[types.NamespacedName]*finalizer.Pod
	gone   map[types.UID]removal // by an own write
	byKey  map[finalizer.WorkflowKey]map[types.NamespacedName]struct{}
	held   heldIndex
	ending map[types.NamespacedName]time.Time // held and terminating: since when
}

// removal is what is remembered of a removed pod: the version of the removal.
type removal struct{ namespace, version string }

// newPodStore takes the namespaces that are watched; none: all are.
func newPodStore(fin string, onGone func(types.UID), onKey func(finalizer.WorkflowKey), namespaces ...string) *podStore {
	s := &podStore{
		fin: fin, alone: []string{fin}, onGone: onGone, onKey: onKey, feeds: map[string]*podFeed{},
		pods:   map[types.NamespacedName]*finalizer.Pod{},
		gone:   map[types.UID]removal{},
		byKey:  map[finalizer.WorkflowKey]map[types.NamespacedName]struct{}{},
		ending: map[types.NamespacedName]time.Time{},
	}
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		s.feeds[namespace] = &podFeed{store: s, namespace: namespace}
	}
	return s
}

// feed returns the feed that tells of the namespace; nil: it is not watched.
func (s *podStore) feed(namespace string) *podFeed {
	if all := s.feeds[""]; all != nil {
		return all
	}
	return s.feeds[namespace]
}

// keyOf returns the key under which the pod is found: the workflow that controls
// it, or the empty name for a held pod that no Workflow controls: it has to be
// told of, whoever must release it.
func (s *podStore) keyOf(p *finalizer.Pod) (finalizer.WorkflowKey, bool) {
	switch {
	case p.Owner.IsWorkflow():
		return finalizer.WorkflowKey{Namespace: p.Namespace, Name: p.Owner.Name}, true
	case p.Has(s.fin):
		return finalizer.WorkflowKey{Namespace: p.Namespace}, true
	}
	return finalizer.WorkflowKey{}, false
}

// effects collects, under the lock, what is told after it.
type effects struct {
	keys map[finalizer.WorkflowKey]struct{}
	gone []types.UID
}

func (s *podStore) touch(e *effects, p *finalizer.Pod) {
	if key, ok := s.keyOf(p); ok {
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
	feed := s.feed(p.Namespace)
	if feed == nil {
		return // nothing would ever take it out again
	}
	if !known && feed.watched != "" && !newer(p.ResourceVersion, feed.watched) {
		return // the watch is past this answer and has the pod no more
	}
	if p.Removed() {
		if len(s.gone) >= maxGone {
			for uid := range s.gone {
				delete(s.gone, uid)
				break
			}
		}
		s.gone[p.UID] = removal{namespace: p.Namespace, version: p.ResourceVersion}
		if known {
			s.drop(cur, e)
		} else {
			s.touch(e, p)
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
			s.touch(e, cur)
		}
	}
	if slices.Equal(p.Finalizers, s.alone) {
		p.Finalizers = s.alone
	}
	s.pods[name] = p
	if key, ok := s.keyOf(p); ok {
		addTo(s.byKey, key, name)
	}
	if p.Has(s.fin) {
		s.held.insert(name)
		if p.Terminating() {
			s.ending[name] = p.DeletedAt
		}
	}
	s.touch(e, p)
}

func (s *podStore) drop(cur *finalizer.Pod, e *effects) {
	s.unindex(cur)
	delete(s.pods, nameOf(cur))
	s.touch(e, cur)
	e.gone = append(e.gone, cur.UID)
}

func (s *podStore) unindex(cur *finalizer.Pod) {
	name := nameOf(cur)
	if key, ok := s.keyOf(cur); ok {
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
