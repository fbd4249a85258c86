package reconcile

import (
	"container/list"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// maxNodesKept bounds the workflow nodes, and the pods beside them, of all
// remembered reads: some 200 MB.
const maxNodesKept = 500_000

// read is one live read of a workflow, and the pods that it may speak of: those
// that were known before it began.
type read struct {
	key     finalizer.WorkflowKey
	wf      finalizer.Workflow
	version string // what the watch had told before the read began
	began   time.Time
	uids    map[types.UID]struct{}
}

// holds reports whether the read still tells what is stored, as far as the watch
// knows.
func (r *read) holds(version string, now time.Time, atMost time.Duration) bool {
	if r.version != version {
		return false
	}
	// That a UID is gone stays true, of the pods that were known before.
	return version != "" || !r.wf.Exists || now.Before(r.began.Add(atMost))
}

func (r *read) speaksOf(uid types.UID) bool {
	if r == nil {
		return false
	}
	_, ok := r.uids[uid]
	return ok
}

func (r *read) weight() int { return 1 + len(r.wf.Nodes) + len(r.uids) }

// reads remembers the last read of each workflow within a bound; the oldest go
// first, and one that is gone costs another read.
type reads struct {
	most int

	mu     sync.Mutex
	weight int
	byAge  list.List // of *read, oldest first
	byKey  map[finalizer.WorkflowKey]*list.Element
}

func newReads(most int) *reads {
	return &reads{most: most, byKey: make(map[finalizer.WorkflowKey]*list.Element)}
}

func (s *reads) get(key finalizer.WorkflowKey) *read {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[key]; e != nil {
		return e.Value.(*read)
	}
	return nil
}

func (s *reads) put(r *read) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(s.byKey[r.key])
	s.byKey[r.key] = s.byAge.PushBack(r)
	s.weight += r.weight()
	for s.weight > s.most {
		s.remove(s.byAge.Front())
	}
}

func (s *reads) drop(key finalizer.WorkflowKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(s.byKey[key])
}

// remove is called with the mutex held.
func (s *reads) remove(e *list.Element) {
	if e == nil {
		return
	}
	r := s.byAge.Remove(e).(*read)
	delete(s.byKey, r.key)
	s.weight -= r.weight()
}
