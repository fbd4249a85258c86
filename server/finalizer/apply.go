package finalizer

import (
	"context"
	"time"
)

// Apply carries out a decision that the rule took on this evidence, in the pod's
// place in its workflow's lane. Before it writes it takes what the cache has
// learnt meanwhile and asks the rule again; if that answers otherwise nothing is
// written and the outcome is OutcomeUnknown. A pod that has gone meanwhile is
// OutcomeGone. An unhidden pod is OutcomeAdded where FIN was put on again, and
// OutcomeAlreadyHeld where only the label was changed. It costs one write, and a
// read of the pod where the decision rests on its status and the pod has changed
// since.
//
// Errors: KindReplaced, KindBusy, KindNotSynced, KindNotServed and those of
// Reader and Writer. A decision to keep is KindInternal.
func (s *Service) Apply(ctx context.Context, e Evidence, d Decision) (Result, error) {
	if d.Action == ActionKeep {
		return Result{}, &Error{Kind: KindInternal, Pod: e.Pod.PodID, Message: "there is nothing to carry out"}
	}
	if err := s.ready(e.Pod.Namespace); err != nil {
		return Result{}, err
	}
	c := call{uid: e.Pod.UID, markCompleted: d.MarkCompleted, rule: d.Action}
	res, _, err := s.calls.Do(ctx, e.Pod.workflow(), e.Pod.Name, c,
		func(ctx context.Context) (Result, error) { return s.apply(ctx, e, d) })
	return res, laneError(err)
}

func (s *Service) apply(ctx context.Context, e Evidence, d Decision) (Result, error) {
	res := Result{Pod: e.Pod.PodID, NodeID: e.Pod.NodeID, Reason: d.Reason}
	pod, ok := s.cache.Pod(e.Pod.Namespace, e.Pod.Name)
	if !ok || pod.UID != e.Pod.UID {
		res.Outcome = OutcomeGone
		return res, nil
	}
	if pod.ResourceVersion == e.Pod.ResourceVersion {
		pod.Status = e.Pod.Status
	}
	e.Pod, e.Now = pod, time.Now()
	again := s.policy.Decide(e)
	if again.Need == NeedStatus {
		// The pod has another version than the evidence; a writer may bump it
		// all the time.
		live, err := s.reader.Pod(ctx, pod.Namespace, pod.Name)
		switch {
		case err != nil && KindOf(err) == KindPodNotFound, err == nil && live.UID != pod.UID:
			res.Outcome = OutcomeGone
			return res, nil
		case err != nil:
			return res, err
		}
		e.Pod, e.Now = live, time.Now()
		again = s.policy.Decide(e)
	}
	if again.Action != d.Action || again.Reason != d.Reason {
		return res, nil
	}
	t := pod.target()
	t.Background = true
	if d.Action == ActionUnhide {
		return s.unhide(ctx, &pod, t, res)
	}
	return s.writeRelease(ctx, pod, t, res, d.MarkCompleted, false)
}

func (s *Service) unhide(ctx context.Context, pod *Pod, t Target, res Result) (Result, error) {
	if s.unhider == nil {
		return res, nil
	}
	hold := !pod.Terminating()
	after, err := s.unhider.Unhide(ctx, t, hold)
	if err != nil && KindOf(err) == KindTerminating {
		// It got its deletionTimestamp between the cache and the write.
		hold = false
		after, err = s.unhider.Unhide(ctx, t, hold)
	}
	s.acts.done(Act{Pod: pod.PodID, Reason: res.Reason, Background: true, Err: asError(err)})
	switch {
	case err != nil && KindOf(err) == KindGone:
		res.Outcome = OutcomeGone
		return res, nil
	case err != nil && KindOf(err) == KindReplaced:
		return res, replaced(pod.PodID)
	case err != nil:
		return res, err
	}
	res.Outcome, res.Foreign = OutcomeAlreadyHeld, after.Foreign(s.policy.Finalizer)
	if hold && !pod.Has(s.policy.Finalizer) {
		res.Outcome = OutcomeAdded
	}
	return res, nil
}
