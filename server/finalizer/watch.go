package finalizer

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// watchInterval joins changes that come in quick succession, and paces the
// progress of a bulk call.
const watchInterval = 200 * time.Millisecond

// Watch calls send for each step, from this goroutine: a snapshot first, then
// what changed, at most one step each 200 ms. It returns nil when the condition
// of Until is met. Errors: KindNotSynced, KindDeadline, KindCanceled and what
// send returns.
func (s *Service) Watch(ctx context.Context, r WatchRequest, send func(Step) error) error {
	if err := s.ready(r.Workflow.Namespace); err != nil {
		return err
	}
	changed, cancel := s.cache.Subscribe(r.Workflow)
	defer cancel()
	pace := time.NewTicker(watchInterval)
	defer pace.Stop()
	w := watch{service: s, request: r, last: make(map[types.UID]Pod)}
	for first := true; ; first = false {
		step, news := w.next()
		step.Snapshot = first
		if first || news {
			if err := send(step); err != nil {
				return err
			}
			pace.Reset(watchInterval) // a tick of the past must not let the next step follow at once
		}
		if r.Until == UntilReleased && step.HeldPods == 0 || r.Until == UntilGone && step.TotalPods == 0 {
			return nil
		}
		if err := w.sleep(ctx, changed, pace.C, step.Work != nil); err != nil {
			return err
		}
	}
}

// watch is the state of one stream.
type watch struct {
	service *Service
	request WatchRequest
	last    map[types.UID]Pod
	gone    int
	work    *Work
}

// sleep waits for the next tick after a change; while a bulk call is under way
// each tick counts, since its progress is no change of a pod. A bulk call on pods
// that do not change yet is seen at the tick after its first write.
func (w *watch) sleep(ctx context.Context, changed <-chan struct{}, tick <-chan time.Time, working bool) error {
	if !working {
		select {
		case <-changed:
		case <-ctx.Done():
			return laneError(ctx.Err())
		}
	}
	select {
	case <-tick:
		return nil
	case <-ctx.Done():
		return laneError(ctx.Err())
	}
}

// next compares what is with what was sent.
func (w *watch) next() (Step, bool) {
	var step Step
	seen := make(map[types.UID]Pod, len(w.last))
	for _, p := range w.service.cache.PodsOfWorkflow(w.request.Workflow) {
		if w.request.WorkflowUID != "" && p.Owner.UID != w.request.WorkflowUID {
			continue
		}
		seen[p.UID] = p
		step.TotalPods++
		if p.Has(w.service.policy.Finalizer) {
			step.HeldPods++
		}
		if p.Terminating() {
			step.TerminatingPods++
		}
		if old, ok := w.last[p.UID]; !ok || differs(&old, &p) {
			step.Changed = append(step.Changed, w.service.viewCached(p))
		}
	}
	for uid, p := range w.last {
		if _, ok := seen[uid]; !ok {
			step.Gone = append(step.Gone, p.PodID)
		}
	}
	slices.SortFunc(step.Gone, func(a, b PodID) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	w.gone += len(step.Gone)
	w.last = seen
	step.GonePods, step.Work = w.gone, w.service.works.of(w.request.Workflow)
	workChanged := (step.Work == nil) != (w.work == nil) || step.Work != nil && *step.Work != *w.work
	w.work = step.Work
	return step, len(step.Changed) > 0 || len(step.Gone) > 0 || workChanged
}

// differs reports whether anything that a View shows has changed.
func differs(a, b *Pod) bool {
	return a.Completed != b.Completed || !a.DeletedAt.Equal(b.DeletedAt) || !slices.Equal(a.Finalizers, b.Finalizers) ||
		a.NodeID != b.NodeID || a.Owner != b.Owner
}
