package finalizer

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	maxAttempts  = 8
)

// carryOut writes for all open items. What fails and may succeed by itself is
// tried again with growing back-off, up to maxAttempts and never past ctx; the
// others go on meanwhile.
func (s *Service) carryOut(ctx context.Context, r BulkRequest, items []item) {
	var open []*item
	for i := range items {
		if !items[i].done {
			open = append(open, &items[i])
		}
	}
	if r.ValidateOnly {
		for _, it := range open {
			s.predict(r, it)
		}
		return
	}
	end := s.works.begin(r.Workflow, Work{Delete: r.Delete, Total: len(open), Started: time.Now()})
	defer end()
	defer s.acts.bulk(r, open)
	for len(open) > 0 {
		_ = s.each(ctx, open, func(ctx context.Context, it *item) error {
			s.attempt(ctx, r, it)
			return nil
		})
		open = s.again(ctx, r, open)
	}
}

// again returns the items to try once more, after their back-off. Items that
// were not begun because ctx ended fail here; those whose back-off would outlast
// ctx stay failed, so that the lane is not held for nothing.
func (s *Service) again(ctx context.Context, r BulkRequest, open []*item) []*item {
	var left []*item
	var pause time.Duration
	for _, it := range open {
		if it.done {
			continue
		}
		if ctx.Err() != nil {
			if it.result.Outcome == OutcomeUnknown {
				it.fail(asError(ctx.Err()))
			}
			continue
		}
		wait := backoff(it)
		if deadline, ok := ctx.Deadline(); ok && wait >= time.Until(deadline) {
			continue
		}
		left = append(left, it)
		pause = max(pause, wait)
	}
	if len(left) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(pause):
		return left
	}
}

// backoff doubles with each attempt, jittered by half, and never undercuts what
// the API server asked for.
func backoff(it *item) time.Duration {
	d := min(firstBackoff<<(it.attempt-1), maxBackoff)
	d = d/2 + rand.N(d/2+1)
	if it.result.Err != nil {
		d = max(d, it.result.Err.RetryAfter)
	}
	return d
}

// attempt writes once for the item and finishes it, or leaves it failed and
// open.
func (s *Service) attempt(ctx context.Context, r BulkRequest, it *item) {
	it.attempt++
	var err error
	if r.Delete {
		err = s.deleteOne(ctx, it)
	} else {
		var res Result
		fresh := Result{Reason: it.result.Reason} // without the fault of an earlier try
		if res, err = s.writeRelease(ctx, it.pod, it.pod.target(), fresh, r.MarkCompleted, false); err == nil {
			it.finish(res)
		}
	}
	s.conclude(r, it, err)
}

func (s *Service) conclude(r BulkRequest, it *item, err error) {
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			e = asError(err)
		}
		switch {
		case e.Kind == KindGone:
			it.finish(Result{Outcome: OutcomeGone, Reason: it.result.Reason})
		case e.Kind == KindReplaced:
			it.supersede()
		case e.Kind == KindBlocked:
			it.finish(Result{Outcome: OutcomeBlocked, Reason: it.result.Reason, Err: e, Message: e.Message})
		default:
			it.fail(e)
			it.done = !e.Kind.Retriable() && e.Kind != KindDeadline && e.Kind != KindCanceled || it.attempt >= maxAttempts
		}
	}
	if it.done {
		s.works.count(r.Workflow, it.result.Err != nil)
	}
}

// deleteOne sends DELETE, then the release. A pod that is known to be
// terminating keeps that for good, so the DELETE is spared; a crash in between
// leaves the deletionTimestamp, and whoever finds it goes on.
func (s *Service) deleteOne(ctx context.Context, it *item) error {
	after := it.pod
	if !after.Terminating() {
		var err error
		if after, err = s.writer.Delete(ctx, it.pod.target()); err != nil {
			s.acts.blocked(it.pod.PodID, asError(err))
			return err
		}
		it.pod.DeletedAt, it.pod.GraceSeconds, it.pod.Finalizers = after.DeletedAt, after.GraceSeconds, after.Finalizers
	}
	if after.Has(s.policy.Finalizer) {
		var err error
		after, err = s.writer.Release(ctx, it.pod.target(), false)
		s.acts.done(Act{Pod: it.pod.PodID, Reason: it.result.Reason, Err: asError(err)})
		// A terminating UID whose name is free, or another's, has gone.
		if k := KindOf(err); err != nil && (k == KindGone || k == KindReplaced) {
			it.finish(Result{Outcome: OutcomeDeleted, Reason: it.result.Reason})
			return nil
		}
		if err != nil {
			return err
		}
	}
	it.finish(s.leftOver(&after, it.result.Reason))
	return nil
}

// leftOver says what still keeps a terminating pod after FIN is off.
func (s *Service) leftOver(p *Pod, reason Reason) Result {
	res := Result{Reason: reason, Foreign: p.Foreign(s.policy.Finalizer)}
	switch {
	case p.Removed():
		res.Outcome = OutcomeDeleted
	case len(res.Foreign) > 0:
		res.Outcome = OutcomeHeldByForeign
		res.Message = "finalizers of others hold the pod; their owners must release it"
	default:
		res.Outcome = OutcomeDeleting
		res.Message = "the kubelet ends the pod within its grace period"
	}
	return res
}

// predict says what attempt would do, without a write. The grace period of a
// pod that still runs is the kubelet's to end.
func (s *Service) predict(r BulkRequest, it *item) {
	res := Result{Reason: it.result.Reason, Foreign: it.pod.Foreign(s.policy.Finalizer)}
	switch {
	case !r.Delete && !it.pod.Has(s.policy.Finalizer):
		res.Outcome = OutcomeAlreadyReleased
	case !r.Delete:
		res.Outcome = OutcomeReleased
	case len(res.Foreign) > 0:
		res.Outcome = OutcomeHeldByForeign
	case it.pod.Status != nil && it.pod.Status.Phase == "Running":
		res.Outcome = OutcomeDeleting
	default:
		res.Outcome = OutcomeDeleted
	}
	it.finish(res)
}
