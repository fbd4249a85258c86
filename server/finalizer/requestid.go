package finalizer

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"
)

// maxRemembered bounds the pod outcomes that are remembered over all requests;
// beyond it the oldest answers go early.
const maxRemembered = 500_000

type requestKey struct {
	workflow WorkflowKey
	id       string
}

// remembered is one request_id. Its turn channel holds one token, so that a
// repeat waits for the first and never runs beside it.
type remembered struct {
	request  BulkRequest
	turn     chan struct{}
	plan     plan
	complete bool
	answer   []Result
	used     time.Time
	waiting  int // callers that hold or wait for the turn; such an entry stays
}

// requestMemory gives a repeated request its first answer. A repeat of a request
// that was cut off goes on with the same pods. In memory only: after a restart
// a repeat is a new request.
type requestMemory struct {
	keep    time.Duration
	mu      sync.Mutex
	entries map[requestKey]*remembered
	weight  int
	order   []requestKey // oldest first; may name entries that are gone
}

func newRequestMemory(keep time.Duration) *requestMemory {
	return &requestMemory{keep: keep, entries: make(map[requestKey]*remembered)}
}

// do runs the request unless its answer is remembered. Errors:
// KindRequestIDReused, KindDeadline, KindCanceled and those of run.
func (m *requestMemory) do(ctx context.Context, r BulkRequest, run func(*plan) ([]Result, error)) ([]Result, error) {
	e, err := m.enter(r)
	if err != nil {
		return nil, err
	}
	defer m.leave(e)
	select {
	case <-e.turn:
	case <-ctx.Done():
		return nil, laneError(ctx.Err())
	}
	defer func() { e.turn <- struct{}{} }()
	if e.complete {
		return slices.Clone(e.answer), nil
	}
	answer, err := run(&e.plan)
	if err != nil {
		return nil, err
	}
	m.settle(e, answer, ctx.Err() == nil && !cutOff(answer))
	return answer, nil
}

// cutOff reports whether the deadline or the caller's leaving ended the work
// before each pod had its outcome.
func cutOff(answer []Result) bool {
	return slices.ContainsFunc(answer, func(r Result) bool {
		return r.Outcome == OutcomeFailed && r.Err != nil && (r.Err.Kind == KindDeadline || r.Err.Kind == KindCanceled)
	})
}

func (m *requestMemory) enter(r BulkRequest) (*remembered, error) {
	key := requestKey{r.Workflow, r.RequestID}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	e, ok := m.entries[key]
	if !ok {
		e = &remembered{request: r, turn: make(chan struct{}, 1)}
		e.turn <- struct{}{}
		m.entries[key] = e
		m.order = append(m.order, key)
	} else if !reflect.DeepEqual(e.request, r) {
		return nil, &Error{Kind: KindRequestIDReused,
			Message: "request_id " + r.RequestID + " was used for a different request on this workflow; choose a new one"}
	}
	e.waiting++
	e.used = time.Now()
	return e, nil
}

func (m *requestMemory) leave(e *remembered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.waiting--
	e.used = time.Now()
}

func (m *requestMemory) settle(e *remembered, answer []Result, complete bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.weight += len(answer) - len(e.answer)
	e.answer, e.complete = slices.Clone(answer), complete
	if complete {
		e.plan = plan{}
	}
}

// expire drops what is older than keep, and the oldest while too much is kept.
func (m *requestMemory) expire() {
	limit := time.Now().Add(-m.keep)
	kept := m.order[:0]
	for i, key := range m.order {
		e := m.entries[key]
		if e.waiting == 0 && (e.used.Before(limit) || m.weight > maxRemembered) {
			m.weight -= len(e.answer)
			delete(m.entries, key)
			continue
		}
		if !e.used.Before(limit) && m.weight <= maxRemembered {
			kept = append(kept, m.order[i:]...)
			break
		}
		kept = append(kept, key)
	}
	clear(m.order[len(kept):])
	m.order = kept
}
