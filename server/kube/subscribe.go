package kube

import (
	"sync"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// subscriptions wakes those who wait for a change among the pods of a workflow.
type subscriptions struct {
	mu    sync.Mutex
	byKey map[finalizer.WorkflowKey]map[*subscription]struct{}
}

type subscription struct{ changed chan struct{} }

// add returns a channel of capacity 1. cancel may be called more than once.
func (s *subscriptions) add(key finalizer.WorkflowKey) (<-chan struct{}, func()) {
	sub := &subscription{changed: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[finalizer.WorkflowKey]map[*subscription]struct{}{}
	}
	if s.byKey[key] == nil {
		s.byKey[key] = map[*subscription]struct{}{}
	}
	s.byKey[key][sub] = struct{}{}
	return sub.changed, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.byKey[key], sub)
		if len(s.byKey[key]) == 0 {
			delete(s.byKey, key)
		}
	}
}

// signal never blocks: a channel that is full already says "look again".
func (s *subscriptions) signal(key finalizer.WorkflowKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.byKey[key] {
		select {
		case sub.changed <- struct{}{}:
		default:
		}
	}
}

func (s *subscriptions) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey)
}
