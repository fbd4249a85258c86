package finalizer

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Bulk releases, or with Delete deletes and releases, pods of one workflow. It
// holds the workflow alone while it selects and writes, not while it waits. The
// results are in the order of the request, or by name with All.
//
// One pod's fault is that pod's result and never stops the others. When the
// deadline is near, what is not done is OutcomeFailed with KindDeadline, so that
// the caller still gets the answer. Errors of the whole call, with nothing
// written: KindBusy, KindNotSynced, KindDeadline and KindCanceled before the
// lane was had, KindRequestIDReused, KindInvalid for a pod, or an asserted
// capture, without a UID, and those of Reader.
func (s *Service) Bulk(ctx context.Context, r BulkRequest) ([]Result, error) {
	if r.Captured && len(r.Pods) == 0 {
		return nil, unnamed("captured")
	}
	for i := range r.Pods {
		if r.Pods[i].UID == "" {
			return nil, unnamed(fmt.Sprintf("pods[%d].uid", i))
		}
	}
	if err := s.ready(r.Workflow.Namespace); err != nil {
		return nil, err
	}
	if r.RequestID == "" {
		return s.bulk(ctx, r, &plan{})
	}
	return s.requests.do(ctx, r, func(p *plan) ([]Result, error) { return s.bulk(ctx, r, p) })
}

// plan is a selection with what became of it so far. Once selected it is never
// selected anew, so that a repeat touches no pod that the first call did not
// see.
type plan struct {
	selected bool
	items    []item
}

// item is one pod, or one thing asked for that is no pod.
type item struct {
	pod     Pod
	asked   bool // Result is final already: nothing was found to act upon
	done    bool
	seen    bool // the cache has shown this UID, so that it will tell of its end
	result  Result
	attempt int
}

func (p *plan) results() []Result {
	out := make([]Result, len(p.items))
	for i := range p.items {
		out[i] = p.items[i].result
	}
	return out
}

// cutOff reports whether the deadline or the caller's leaving ended the work
// while some pod could still have been written to, also in a pause between tries.
func (p *plan) cutOff() bool {
	return slices.ContainsFunc(p.items, func(it item) bool { return !it.done })
}

func (s *Service) bulk(ctx context.Context, r BulkRequest, p *plan) ([]Result, error) {
	work, cancel := withMargin(ctx)
	defer cancel()
	if err := s.underLane(work, r, p); err != nil {
		return nil, err
	}
	if r.Wait && r.Delete && !r.ValidateOnly {
		s.waitGone(work, r, p)
	}
	return p.results(), nil
}

// underLane does all that must not interleave with other work on the workflow.
func (s *Service) underLane(ctx context.Context, r BulkRequest, p *plan) error {
	done, err := s.lanes.Exclusive(ctx, r.Workflow)
	if err != nil {
		return laneError(err)
	}
	defer done()
	if !p.selected {
		items, err := s.selectPods(ctx, r)
		if err != nil {
			return laneError(err)
		}
		p.items, p.selected = items, true
	}
	for i := range p.items {
		it := &p.items[i]
		it.done = it.asked || (it.result.Outcome != OutcomeUnknown && it.result.Outcome != OutcomeFailed)
		if !it.done {
			if p, ok := s.cache.Pod(it.pod.Namespace, it.pod.Name); ok && p.UID == it.pod.UID {
				it.pod, it.seen = p, true
			}
			it.attempt = 0
			it.result = Result{Pod: it.pod.PodID, NodeID: it.pod.NodeID}
		}
	}
	if err := s.judgeAll(ctx, r, p.items); err != nil {
		return laneError(err)
	}
	s.carryOut(ctx, r, p.items)
	return nil
}

// withMargin ends the work a little before the caller's deadline, so that the
// answer still arrives.
func withMargin(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	margin := min(max(time.Until(deadline)/10, 20*time.Millisecond), time.Second)
	return context.WithDeadline(ctx, deadline.Add(-margin))
}

// judgeAll finishes the items that are refused or that need nothing. It costs
// one read of the workflow, and one paged read of its pods where the status of
// any matters.
func (s *Service) judgeAll(ctx context.Context, r BulkRequest, items []item) error {
	var open []*item
	for i := range items {
		it := &items[i]
		switch {
		case it.done:
		case !r.Delete && s.nothingToRelease(&it.pod, r.MarkCompleted):
			it.finish(Result{Outcome: OutcomeAlreadyReleased, Foreign: it.pod.Foreign(s.policy.Finalizer)})
		case r.Captured:
			it.result.Reason = ReasonAsserted
		case r.Force:
			it.result.Reason = ReasonForced
		case s.captures.has(it.pod.UID):
			it.result.Reason = ReasonCaptured
		default:
			open = append(open, it)
		}
	}
	if len(open) == 0 {
		return nil
	}
	wf, err := s.readWorkflow(ctx, r.Workflow)
	if err != nil {
		return err
	}
	unsure := s.judgeItems(r, wf, open, true)
	if len(unsure) == 0 {
		return nil
	}
	if err := s.readStatus(ctx, r.Workflow, unsure); err != nil {
		return err
	}
	s.judgeItems(r, wf, unsure, false)
	return nil
}

// judgeItems sets the reason of releasable items and finishes the refused ones,
// save those that want their status first, which it returns.
func (s *Service) judgeItems(r BulkRequest, wf Workflow, items []*item, askStatus bool) (unsure []*item) {
	for _, it := range items {
		if it.done {
			continue
		}
		v := s.policy.Judge(Evidence{
			Pod: it.pod, Workflow: wf, Remembered: s.captures.has(it.pod.UID), Deleting: r.Delete, Now: time.Now(),
		})
		switch {
		case v.Releasable:
			it.result.Reason = v.Reason
		case v.NeedsStatus && askStatus:
			unsure = append(unsure, it)
		default:
			e := notCaptured(it.pod.PodID, v.Reason, s.policy.Explain(&it.pod, wf, v))
			it.finish(Result{Outcome: OutcomeNotCaptured, Reason: v.Reason, Err: e, Message: e.Message})
		}
	}
	return unsure
}

// readStatus fills in the live status: one pod by itself, several by one paged
// list, and singly those that the list, which goes by label, does not show.
func (s *Service) readStatus(ctx context.Context, key WorkflowKey, items []*item) error {
	byName := make(map[string]Pod)
	if len(items) > 1 {
		live, err := s.reader.Pods(ctx, key)
		if err != nil {
			return err
		}
		for _, p := range live {
			byName[p.Name] = p
		}
	}
	return s.each(ctx, items, func(ctx context.Context, it *item) error {
		live, ok := byName[it.pod.Name]
		if !ok {
			var err error
			live, err = s.reader.Pod(ctx, it.pod.Namespace, it.pod.Name)
			if err != nil && KindOf(err) == KindPodNotFound {
				it.finish(Result{Outcome: OutcomeGone})
				return nil
			}
			if err != nil {
				return err
			}
		}
		if live.UID != it.pod.UID {
			it.supersede()
			return nil
		}
		it.pod = live
		return nil
	})
}

// finish gives the item its final result, keeping who it is.
func (it *item) finish(r Result) {
	r.Pod, r.NodeID = it.pod.PodID, it.pod.NodeID
	it.result, it.done = r, true
}

func (it *item) supersede() {
	it.finish(Result{Outcome: OutcomeSuperseded, Reason: it.result.Reason,
		Message: fmt.Sprintf("the name belongs to another pod than UID %s now", it.pod.UID)})
}

// fail gives the item its result for now; a later try may better it.
func (it *item) fail(e *Error) {
	it.result.Outcome, it.result.Err, it.result.Message = OutcomeFailed, e, e.Message
}
