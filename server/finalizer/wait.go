package finalizer

import (
	"context"
	"fmt"
	"time"
)

// waitGone waits until the UIDs of deleted pods have left the API, or until the
// request's or the call's time is up, and then says what holds each. It holds no
// lane: the new pods of a retry must not wait for it.
func (s *Service) waitGone(ctx context.Context, r BulkRequest, p *plan) {
	changed, cancel := s.cache.Subscribe(r.Workflow)
	defer cancel()
	var expired <-chan time.Time
	if r.WaitTimeout > 0 {
		t := time.NewTimer(r.WaitTimeout)
		defer t.Stop()
		expired = t.C
	}
	ask := time.NewTicker(unseenInterval)
	defer ask.Stop()
	for ended := false; ; {
		switch left := s.markGone(ctx, p); {
		case left == 0:
			return
		case ended:
			s.tellHolders(p)
			return
		}
		select {
		case <-changed:
		case <-ask.C:
		case <-expired:
			ended = true
		case <-ctx.Done():
			ended = true
		}
	}
}

// unseenInterval paces the reads for pods that the cache has yet to hear of.
const unseenInterval = time.Second

// awaited reports whether the pod is on its way out.
func (it *item) awaited() bool {
	return it.result.Outcome == OutcomeDeleting || it.result.Outcome == OutcomeHeldByForeign
}

// markGone turns what has left into OutcomeDeleted and counts the rest. A pod
// that the cache has shown and then lost is gone; one that it never showed is
// looked for live, since such a cache may not have heard of it yet.
func (s *Service) markGone(ctx context.Context, p *plan) (left int) {
	for i := range p.items {
		it := &p.items[i]
		if !it.awaited() {
			continue
		}
		if cached, ok := s.cache.Pod(it.pod.Namespace, it.pod.Name); ok && cached.UID == it.pod.UID {
			it.seen = true
			left++
			continue
		}
		if !it.seen && !s.provenGone(ctx, it.pod.PodID) {
			left++
			continue
		}
		it.finish(Result{Outcome: OutcomeDeleted, Reason: it.result.Reason})
	}
	return left
}

func (s *Service) provenGone(ctx context.Context, id PodID) bool {
	live, err := s.reader.Pod(ctx, id.Namespace, id.Name)
	if err != nil {
		return KindOf(err) == KindPodNotFound
	}
	return live.UID != id.UID
}

// tellHolders says of each pod that is left what holds it now.
func (s *Service) tellHolders(p *plan) {
	for i := range p.items {
		it := &p.items[i]
		if !it.awaited() {
			continue
		}
		cached, ok := s.cache.Pod(it.pod.Namespace, it.pod.Name)
		if !ok || cached.UID != it.pod.UID {
			continue
		}
		res := s.leftOver(&cached, it.result.Reason)
		switch {
		case cached.Has(s.policy.Finalizer):
			res.Outcome = OutcomeFailed
			res.Err = &Error{Kind: KindUnavailable, Pod: cached.PodID,
				Message: "the finalizer came back after its release; call again"}
			res.Message = res.Err.Message
		case res.Outcome == OutcomeDeleting:
			res.Message = fmt.Sprintf("still terminating when the time to wait was up: the kubelet has until %s (grace period %d s)",
				cached.DeletedAt.UTC().Format(time.RFC3339), cached.GraceSeconds)
		}
		it.finish(res)
	}
}
