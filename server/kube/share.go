package kube

import (
	"context"
	"sync"
	"time"
)

// shared lets calls for one key that wait together share one run of read. A call
// that arrives while a run is under way waits for the next one: an answer never
// rests on a read that began before its call. A member that leaves does not end
// the run for the others; a run that all have left is cancelled.
//
// Idle keys hold no entry. A run's goroutine ends with the read, at the latest
// after timeout.
type shared[K comparable, V any] struct {
	read    func(ctx context.Context, key K) (V, error)
	timeout time.Duration

	mu   sync.Mutex
	keys map[K]*line[V]
}

// line is the run under way for a key and the one after it.
type line[V any] struct{ running, next *run[V] }

type run[V any] struct {
	ctx     context.Context
	cancel  context.CancelFunc
	members int
	done    chan struct{}
	value   V
	err     error
}

// do returns the answer of a run that began after the call, or ctx's error.
func (s *shared[K, V]) do(ctx context.Context, key K) (V, error) {
	var none V
	if err := ctx.Err(); err != nil {
		return none, err
	}
	r := s.join(ctx, key)
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		s.leave(r)
		return none, ctx.Err()
	}
}

func (s *shared[K, V]) join(ctx context.Context, key K) *run[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = map[K]*line[V]{}
	}
	l := s.keys[key]
	if l == nil {
		l = &line[V]{running: newRun[V](ctx)}
		s.keys[key] = l
		go s.run(key, l.running)
		return l.running
	}
	if l.next == nil || l.next.members == 0 {
		l.next = newRun[V](ctx)
	} else {
		l.next.members++
	}
	return l.next
}

func newRun[V any](ctx context.Context) *run[V] {
	r := &run[V]{members: 1, done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

func (s *shared[K, V]) leave(r *run[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.members--; r.members == 0 {
		r.cancel()
	}
}

func (s *shared[K, V]) run(key K, r *run[V]) {
	for r != nil {
		ctx, cancel := context.WithTimeout(r.ctx, s.timeout)
		r.value, r.err = s.read(ctx, key)
		cancel()
		r.cancel()
		close(r.done)
		r = s.advance(key)
	}
}

// advance makes the next run the running one, or forgets the key.
func (s *shared[K, V]) advance(key K) *run[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.keys[key]
	if l.next == nil || l.next.members == 0 {
		delete(s.keys, key)
		return nil
	}
	l.running, l.next = l.next, nil
	return l.running
}
