package finalizer

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"
)

// maxRemembered bounds what is remembered over all requests: pods asked for,
// their outcomes, and the requests themselves. Beyond it the oldest go early.
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

func (e *remembered) weight() int {
	return 1 + len(e.request.Pods) + len(e.request.NodeIDs) + len(e.answer)
}

// requestMemory gives a repeated request its first answer. A repeat of a request
// that was cut off goes on with the same pods. In memory only: after a restart
// a repeat is a new request.
type requestMemory struct {
	keep    time.Duration
	most    int // bound of weight; maxRemembered
	mu      sync.Mutex
	entries map[requestKey]*remembered
	weight  int
	order   []requestKey // oldest first; may name entries that are gone
}

func newRequestMemory(keep time.Duration) *requestMemory {
	return &requestMemory{keep: keep, most: maxRemembered, entries: make(map[requestKey]*remembered)}
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
	m.settle(e, answer, ctx.Err() == nil && !e.plan.cutOff())
	return answer, nil
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
		m.weight += e.weight()
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
// It costs what it drops.
func (m *requestMemory) expire() {
	limit := time.Now().Add(-m.keep)
	var busy []requestKey
	seen := 0
	for _, key := range m.order {
		e := m.entries[key]
		if !e.used.Before(limit) && m.weight <= m.most {
			break
		}
		seen++
		if e.waiting > 0 {
			busy = append(busy, key)
			continue
		}
		m.weight -= e.weight()
		delete(m.entries, key)
	}
	rest := seen - len(busy)
	copy(m.order[rest:], busy)
	clear(m.order[:rest])
	m.order = m.order[rest:]
}
