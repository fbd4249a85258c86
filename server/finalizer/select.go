package finalizer

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
)

// selectPods turns a request into items. Ownership is decided by the controller
// owner reference alone; labels and names are never believed.
func (s *Service) selectPods(ctx context.Context, r BulkRequest) ([]item, error) {
	pods := s.ownedPods(r)
	switch {
	case r.All:
		items := make([]item, 0, len(pods))
		for _, p := range pods {
			items = append(items, s.itemFor(p))
		}
		return items, nil
	case len(r.NodeIDs) > 0:
		return s.selectNodes(ctx, r, pods)
	}
	return s.selectRefs(ctx, r, pods)
}

func (s *Service) ownedPods(r BulkRequest) []Pod {
	pods := s.cache.PodsOfWorkflow(r.Workflow)
	if r.WorkflowUID == "" {
		return pods
	}
	owned := pods[:0:0]
	for _, p := range pods {
		if p.Owner.UID == r.WorkflowUID {
			owned = append(owned, p)
		}
	}
	return owned
}

// itemFor makes an item of a pod of the workflow, finished when the pod is
// another instance's.
func (s *Service) itemFor(p Pod) item {
	it := item{pod: p}
	if err := s.admit(&p, false); err != nil {
		it.reject(asError(err))
	}
	return it
}

// reject finishes the item before anything was tried.
func (it *item) reject(e *Error) {
	it.finish(Result{Outcome: OutcomeFailed, Err: e, Message: e.Message})
	it.asked = true
}

// selectNodes finds pods by their node annotation. IDs that the cache does not
// know are looked for once, live, before they are said to be not found.
func (s *Service) selectNodes(ctx context.Context, r BulkRequest, pods []Pod) ([]item, error) {
	byNode := make(map[string][]Pod, len(pods))
	for _, p := range pods {
		byNode[p.NodeID] = append(byNode[p.NodeID], p)
	}
	for _, id := range r.NodeIDs {
		if len(byNode[id]) > 0 {
			continue
		}
		live, err := s.reader.Pods(ctx, r.Workflow)
		if err != nil {
			return nil, err
		}
		for _, p := range live {
			if len(byNode[p.NodeID]) == 0 && r.owns(&p) {
				byNode[p.NodeID] = append(byNode[p.NodeID], p)
			}
		}
		break
	}
	var items []item
	asked := make(map[string]bool, len(r.NodeIDs))
	for _, id := range r.NodeIDs {
		if asked[id] {
			continue
		}
		asked[id] = true
		for _, p := range byNode[id] {
			items = append(items, s.itemFor(p))
		}
		if len(byNode[id]) == 0 {
			items = append(items, item{asked: true, done: true, result: Result{
				NodeID: id, Outcome: OutcomeNotFound, Message: "no pod of the workflow has this node ID"}})
		}
	}
	return items, nil
}

func (r BulkRequest) owns(p *Pod) bool {
	return p.Owner.IsWorkflow() && p.Owner.Name == r.Workflow.Name &&
		(r.WorkflowUID == "" || p.Owner.UID == r.WorkflowUID)
}

// selectRefs finds pods by name and UID. What the cache does not know under that
// very UID is read live.
func (s *Service) selectRefs(ctx context.Context, r BulkRequest, pods []Pod) ([]item, error) {
	byUID := make(map[types.UID]Pod, len(pods))
	for _, p := range pods {
		byUID[p.UID] = p
	}
	asked := make(map[PodRef]bool, len(r.Pods))
	items := make([]item, 0, len(r.Pods))
	for _, ref := range r.Pods {
		if asked[ref] {
			continue
		}
		asked[ref] = true
		if p, ok := byUID[ref.UID]; ok && p.Name == ref.Name {
			items = append(items, s.itemFor(p))
			continue
		}
		items = append(items, item{pod: Pod{PodID: PodID{r.Workflow.Namespace, ref.Name, ref.UID}}})
	}
	var unknown []*item
	for i := range items {
		if items[i].pod.Owner == (Owner{}) {
			unknown = append(unknown, &items[i])
		}
	}
	return items, s.each(ctx, unknown, func(ctx context.Context, it *item) error {
		return s.lookUp(ctx, r, it)
	})
}

func (s *Service) lookUp(ctx context.Context, r BulkRequest, it *item) error {
	live, err := s.resolve(ctx, it.pod.PodID)
	switch {
	case err == nil && r.owns(&live):
		*it = s.itemFor(live)
	case err == nil:
		it.pod = live
		it.reject(&Error{Kind: KindNotWorkflowPod, Pod: live.PodID,
			Message: "the pod's controller is not the Workflow " + r.Workflow.Name + " of the request"})
	case KindOf(err) == KindPodNotFound:
		it.finish(Result{Outcome: OutcomeGone})
		it.asked = true
	case KindOf(err) == KindReplaced:
		it.supersede()
		it.asked = true
	default:
		return err
	}
	return nil
}

// each runs f for all items, Workers at a time, and returns the first error once
// all that began have ended.
func (s *Service) each(ctx context.Context, items []*item, f func(context.Context, *item) error) error {
	g, ctx := errgroup.WithContext(ctx)
	next := make(chan *item)
	for range min(s.workers, len(items)) {
		g.Go(func() error {
			for it := range next {
				if err := f(ctx, it); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(next)
		for _, it := range items {
			select {
			case next <- it:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return g.Wait()
}

// works knows the bulk calls under way, for those who watch.
type works struct {
	mu     sync.Mutex
	byFlow map[WorkflowKey]*Work
}

func (w *works) begin(key WorkflowKey, work Work) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byFlow == nil {
		w.byFlow = make(map[WorkflowKey]*Work)
	}
	w.byFlow[key] = &work
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.byFlow, key)
	}
}

func (w *works) count(key WorkflowKey, failed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if work := w.byFlow[key]; work != nil {
		work.Done++
		if failed {
			work.Failed++
		}
	}
}

// of returns a copy, or nil.
func (w *works) of(key WorkflowKey) *Work {
	w.mu.Lock()
	defer w.mu.Unlock()
	if work := w.byFlow[key]; work != nil {
		c := *work
		return &c
	}
	return nil
}
