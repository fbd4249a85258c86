package finalizer

import (
	"context"
	"time"
)

// GetPod reads the pod and its workflow live, and its cluster node where that
// matters, and judges it. Errors: KindPodNotFound, KindNotSynced, KindNotServed
// and those of Reader; a workflow that cannot be read is told in the view as
// ReasonCaptureUnknown.
func (s *Service) GetPod(ctx context.Context, namespace, name string) (View, error) {
	if err := s.ready(namespace); err != nil {
		return View{}, err
	}
	pod, err := s.reader.Pod(ctx, namespace, name)
	if err != nil {
		return View{}, laneError(err)
	}
	e := Evidence{Pod: pod, Workflow: Workflow{Key: pod.workflow()}, Now: time.Now()}
	if pod.Owner.IsWorkflow() {
		if e.Workflow, err = s.readWorkflow(ctx, pod.workflow()); err != nil {
			if ctx.Err() != nil {
				return View{}, laneError(ctx.Err())
			}
			e.Workflow = Unreadable(&pod, e.Now, asError(err).Message)
		}
	}
	e.Remembered, e.Now = s.captures.has(pod.UID), time.Now()
	if st, ok := s.standings.get(pod.UID); ok && st.Reason == ReasonHidden {
		e.HiddenSince = st.Since
	}
	if s.policy.Decide(e).Need == NeedHealth && s.nodes != nil {
		if h, err := s.nodes.NodeHealth(ctx, pod.Status.NodeName); err == nil {
			e.Health = h
		}
	}
	return s.view(e), nil
}

// Unreadable stands for a workflow that could not be read: its pods are neither
// orphans nor captured.
func Unreadable(pod *Pod, now time.Time, why string) Workflow {
	return Workflow{
		Key: pod.workflow(), ReadAt: now, Exists: true, UID: pod.Owner.UID,
		Unknown: "the Workflow cannot be read now: " + why,
	}
}

// view says of a pod what Judge would answer a caller, and what the rule says it
// waits for.
func (s *Service) view(e Evidence) View {
	v := View{Pod: e.Pod, Held: e.Pod.Has(s.policy.Finalizer)}
	d := s.policy.Decide(e)
	st := d.standing()
	verdict := s.policy.Judge(e)
	v.Releasable = verdict.Releasable || d.Action == ActionRelease
	v.Reason, v.Since, v.ReleaseAt = d.Reason, d.Since, st.ReleaseAt
	switch {
	case d.Reason == ReasonOtherInstance:
		v.Releasable = false // whatever its state, by the other instance's finalizerd only
	case d.Action == ActionKeep && verdict.Releasable, d.Reason == ReasonNone:
		v.Reason = verdict.Reason
	}
	if old, ok := s.standings.get(e.Pod.UID); ok && v.Since.IsZero() && old.Reason == v.Reason {
		v.Since = old.Since
	}
	v.Explanation = s.policy.Explain(&e.Pod, e.Workflow, Verdict{Reason: v.Reason})
	return v
}

// ListPods pages through held pods in order of namespace and name. What is known
// of a pod costs nothing; of others, each workflow on the page is read once. A
// page may be short and yet have a successor. Errors: KindNotSynced,
// KindNotServed and those of Reader.
func (s *Service) ListPods(ctx context.Context, r ListRequest) (Page, error) {
	if err := s.ready(r.Namespace); err != nil {
		return Page{}, err
	}
	pods := s.heldPods(r)
	page := Page{Next: r.After}
	if len(pods) > r.Limit {
		pods, page.More = pods[:r.Limit], true
	}
	read := make(map[WorkflowKey]Workflow)
	for _, pod := range pods {
		page.Next = pod.PodID
		view, err := s.viewListed(ctx, pod, read)
		if err != nil {
			return Page{}, laneError(err)
		}
		if r.Reason == ReasonNone || view.Reason == r.Reason {
			page.Pods = append(page.Pods, view)
		}
	}
	return page, nil
}

// heldPods returns one more than the limit where there are more.
func (s *Service) heldPods(r ListRequest) []Pod {
	if r.Workflow == "" {
		return s.held.HeldPods(r.Namespace, r.After, r.Limit+1)
	}
	var pods []Pod
	for _, p := range s.cache.PodsOfWorkflow(WorkflowKey{r.Namespace, r.Workflow}) {
		if p.Has(s.policy.Finalizer) && p.Name > r.After.Name && len(pods) <= r.Limit {
			pods = append(pods, p)
		}
	}
	return pods
}

func (s *Service) viewListed(ctx context.Context, pod Pod, read map[WorkflowKey]Workflow) (View, error) {
	v := s.viewCached(pod)
	if v.Reason != ReasonNone {
		return v, nil
	}
	key := pod.workflow()
	wf, ok := read[key]
	if !ok {
		var err error
		if wf, err = s.readWorkflow(ctx, key); err != nil {
			if ctx.Err() != nil {
				return v, ctx.Err()
			}
			wf = Unreadable(&pod, time.Now(), asError(err).Message)
		}
		read[key] = wf
	}
	return s.view(Evidence{Pod: pod, Workflow: wf, Remembered: s.captures.has(pod.UID), Now: time.Now()}), nil
}

// viewCached says of a pod what is known without a read.
func (s *Service) viewCached(pod Pod) View {
	v := View{Pod: pod, Held: pod.Has(s.policy.Finalizer)}
	st, known := s.standings.get(pod.UID)
	switch {
	case !v.Held:
	case known:
		v.Reason, v.Releasable, v.Since, v.ReleaseAt = st.Reason, st.Releasable, st.Since, st.ReleaseAt
	case !pod.Owner.IsWorkflow():
		v.Reason = ReasonUnowned
	case s.captures.has(pod.UID):
		v.Releasable, v.Reason = true, ReasonCaptured
	}
	if !pod.Owner.IsWorkflow() && v.Reason == ReasonNone {
		v.Reason = ReasonUnowned
	}
	v.Explanation = v.Reason.sentence()
	return v
}
