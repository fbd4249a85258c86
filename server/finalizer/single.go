package finalizer

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// call is what makes two waiting calls on one pod equal, so that they share one
// write and one answer.
type call struct {
	uid                                            types.UID
	add, captured, markCompleted, force, validates bool
	rule                                           Action // of a decision of the rule
}

// AddFinalizer puts FIN on a workflow pod: one write, and one read where the
// cache does not know the pod. Errors: KindPodNotFound, KindReplaced,
// KindTerminating, KindCompleted, KindNotWorkflowPod, KindOtherInstance,
// KindBusy, KindNotSynced and those of Reader and Writer.
func (s *Service) AddFinalizer(ctx context.Context, r AddRequest) (Result, error) {
	if err := s.ready(r.Pod.Namespace); err != nil {
		return Result{}, err
	}
	pod, err := s.resolve(ctx, r.Pod)
	if err != nil {
		return Result{}, laneError(err)
	}
	if err := s.admit(&pod, false); err != nil {
		return Result{}, err
	}
	res, _, err := s.calls.Do(ctx, pod.workflow(), pod.Name,
		call{uid: pod.UID, add: true, validates: r.ValidateOnly},
		func(ctx context.Context) (Result, error) { return s.add(ctx, s.refresh(pod), r.ValidateOnly) })
	return res, laneError(err)
}

// refresh takes what the cache has learnt of the same UID while the call waited.
func (s *Service) refresh(pod Pod) Pod {
	if p, ok := s.cache.Pod(pod.Namespace, pod.Name); ok && p.UID == pod.UID {
		return p
	}
	return pod
}

func (s *Service) add(ctx context.Context, pod Pod, validateOnly bool) (Result, error) {
	res := Result{Pod: pod.PodID, NodeID: pod.NodeID}
	switch {
	case pod.Has(s.policy.Finalizer):
		res.Outcome = OutcomeAlreadyHeld
		return res, nil
	case pod.Terminating():
		return res, &Error{Kind: KindTerminating, Pod: pod.PodID,
			Message: "the pod is being deleted; Kubernetes takes no new finalizer on it"}
	case pod.Completed:
		return res, &Error{Kind: KindCompleted, Pod: pod.PodID,
			Message: "the pod is labelled completed; its controller would never release it"}
	}
	res.Outcome = OutcomeAdded
	if validateOnly {
		return res, nil
	}
	_, err := s.writer.AddFinalizer(ctx, pod.target())
	if KindOf(err) == KindGone && err != nil {
		return res, &Error{Kind: KindPodNotFound, Pod: pod.PodID, Message: "the pod does not exist", Err: err}
	}
	return res, err
}

// ReleasePod takes FIN off a pod. With Captured it is one write and no read for
// a pod in the cache; without, one read of the workflow, shared by all who ask
// meanwhile. A pod or finalizer that is gone is an outcome, not an error.
// Errors: KindReplaced, KindNotCaptured, KindNotWorkflowPod, KindOtherInstance,
// KindBusy, KindNotSynced, KindInvalid for Captured without a UID, and those of
// Reader and Writer.
func (s *Service) ReleasePod(ctx context.Context, r ReleaseRequest) (Result, error) {
	if r.Captured && r.Pod.UID == "" {
		return Result{}, unnamed("pod_uid")
	}
	if err := s.ready(r.Pod.Namespace); err != nil {
		return Result{}, err
	}
	pod, err := s.resolve(ctx, r.Pod)
	if err != nil && KindOf(err) == KindPodNotFound {
		return Result{Pod: r.Pod, Outcome: OutcomeGone}, nil
	}
	if err != nil {
		return Result{}, laneError(err)
	}
	if err := s.admit(&pod, r.Force); err != nil {
		return Result{}, err
	}
	c := call{uid: pod.UID, captured: r.Captured, markCompleted: r.MarkCompleted, force: r.Force, validates: r.ValidateOnly}
	res, _, err := s.calls.Do(ctx, pod.workflow(), pod.Name, c,
		func(ctx context.Context) (Result, error) { return s.release(ctx, s.refresh(pod), r) })
	return res, laneError(err)
}

func (s *Service) release(ctx context.Context, pod Pod, r ReleaseRequest) (Result, error) {
	res := Result{Pod: pod.PodID, NodeID: pod.NodeID, Foreign: pod.Foreign(s.policy.Finalizer)}
	if s.nothingToRelease(&pod, r.MarkCompleted) {
		res.Outcome = OutcomeAlreadyReleased
		return res, nil
	}
	verdict, explanation, err := s.judgeOne(ctx, pod, r)
	if err != nil && KindOf(err) == KindPodNotFound {
		res.Outcome, res.Foreign = OutcomeGone, nil
		return res, nil
	}
	if err != nil {
		return res, err
	}
	res.Reason = verdict.Reason
	if !verdict.Releasable {
		return res, notCaptured(pod.PodID, verdict.Reason, explanation)
	}
	return s.writeRelease(ctx, pod, pod.target(), res, r.MarkCompleted, r.ValidateOnly)
}

func (s *Service) nothingToRelease(pod *Pod, markCompleted bool) bool {
	return !pod.Has(s.policy.Finalizer) && (!markCompleted || pod.Completed)
}

// judgeOne judges one pod at the price of at most one read of its workflow and
// one of itself.
func (s *Service) judgeOne(ctx context.Context, pod Pod, r ReleaseRequest) (Verdict, string, error) {
	switch {
	case r.Captured:
		return release(ReasonAsserted), "", nil
	case r.Force:
		return release(ReasonForced), "", nil
	case s.captures.has(pod.UID):
		return release(ReasonCaptured), "", nil
	}
	return s.judgeLive(ctx, pod)
}

// judgeLive judges by a read of the workflow and, where it matters, of the pod.
// Errors: KindPodNotFound and KindReplaced where the pod has gone meanwhile, and
// those of Reader.
func (s *Service) judgeLive(ctx context.Context, pod Pod) (Verdict, string, error) {
	wf, err := s.readWorkflow(ctx, pod.workflow())
	if err != nil {
		return Verdict{}, "", err
	}
	e := Evidence{Pod: pod, Workflow: wf, Remembered: s.captures.has(pod.UID), Now: time.Now()}
	v := s.policy.Judge(e)
	if v.NeedsStatus {
		live, err := s.reader.Pod(ctx, pod.Namespace, pod.Name)
		if err != nil {
			return Verdict{}, "", err
		}
		if live.UID != pod.UID {
			return Verdict{}, "", replaced(pod.PodID)
		}
		e.Pod = live
		v = s.policy.Judge(e)
	}
	return v, s.policy.Explain(&e.Pod, wf, v), nil
}

// writeRelease sends the patch and says what it left.
func (s *Service) writeRelease(ctx context.Context, pod Pod, t Target, res Result, mark, validateOnly bool) (Result, error) {
	res.Outcome = OutcomeReleased
	if !pod.Has(s.policy.Finalizer) {
		res.Outcome = OutcomeAlreadyReleased // only the label is missing
	}
	if validateOnly {
		return res, nil
	}
	after, err := s.writer.Release(ctx, t, mark)
	s.acts.done(Act{Pod: pod.PodID, Reason: res.Reason, Background: t.Background, Err: asError(err)})
	switch {
	case err == nil:
		res.Foreign = after.Foreign(s.policy.Finalizer)
		return res, nil
	case KindOf(err) == KindGone:
		res.Outcome, res.Foreign = OutcomeGone, nil
		return res, nil
	case KindOf(err) == KindReplaced:
		return res, replaced(pod.PodID)
	}
	return res, err
}
