package finalizer

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Standing is what was last found about a held pod.
type Standing struct {
	Reason     Reason
	Releasable bool
	Since      time.Time // when the reason came to hold, or was first found
	ReleaseAt  time.Time // zero: no time is known
}

// standings remembers what was found of held pods, so that lists and metrics
// need no read. An entry lives until the pod is released or gone.
type standings struct {
	mu    sync.RWMutex
	byUID map[types.UID]Standing
}

func (s *standings) get(uid types.UID) (Standing, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st, ok := s.byUID[uid]
	return st, ok
}

func (s *standings) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byUID, uid)
}

// note keeps the time since when an unchanged reason has held.
func (s *standings) note(uid types.UID, st Standing, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.Since.IsZero() {
		st.Since = now
		if old, ok := s.byUID[uid]; ok && old.Reason == st.Reason {
			st.Since = old.Since
		}
	}
	if s.byUID == nil {
		s.byUID = make(map[types.UID]Standing)
	}
	s.byUID[uid] = st
}

// standing is what a decision says of a pod.
func (d Decision) standing() Standing {
	return Standing{Reason: d.Reason, Releasable: d.Action == ActionRelease, Since: d.Since, ReleaseAt: d.ReleaseAt}
}

// Note remembers a decision of the rule on a held pod, for lists and metrics.
// One that still needs something is kept all the same: it is what is known.
func (s *Service) Note(pod *Pod, d Decision, now time.Time) {
	if d.Reason == ReasonNone || !pod.Has(s.policy.Finalizer) {
		s.standings.forget(pod.UID)
		return
	}
	s.standings.note(pod.UID, d.standing(), now)
	// The pod may have gone meanwhile, and then nobody will tell.
	if p, ok := s.cache.Pod(pod.Namespace, pod.Name); !ok || p.UID != pod.UID {
		s.standings.forget(pod.UID)
	}
}

// HeldFor is how many pods are held for a reason, and since when the oldest is.
type HeldFor struct {
	Pods   int
	Oldest time.Time
}

// HeldByReason counts what was noted. Held pods of which nothing was noted are
// not in it. It walks over all held pods.
func (s *Service) HeldByReason() map[Reason]HeldFor {
	s.standings.mu.RLock()
	defer s.standings.mu.RUnlock()
	counts := make(map[Reason]HeldFor)
	for _, st := range s.standings.byUID {
		c := counts[st.Reason]
		c.Pods++
		if c.Oldest.IsZero() || st.Since.Before(c.Oldest) {
			c.Oldest = st.Since
		}
		counts[st.Reason] = c
	}
	return counts
}
