package finalizer

import (
	"context"
	"time"
)

// GetPod reads the pod and its workflow live and judges it. Errors:
// KindPodNotFound, KindNotSynced and those of Reader; a workflow that cannot be
// read is told in the view as ReasonCaptureUnknown.
func (s *Service) GetPod(ctx context.Context, namespace, name string) (View, error) {
	if err := s.synced(); err != nil {
		return View{}, err
	}
	pod, err := s.reader.Pod(ctx, namespace, name)
	if err != nil {
		return View{}, laneError(err)
	}
	v := View{Pod: pod, Held: pod.Has(s.policy.Finalizer)}
	if !pod.Owner.IsWorkflow() {
		v.Reason, v.Explanation = ReasonUnowned, ReasonUnowned.sentence()
		return v, nil
	}
	verdict, explanation, err := s.judgeLive(ctx, pod)
	if err != nil {
		if ctx.Err() != nil {
			return View{}, laneError(ctx.Err())
		}
		v.Reason, v.Explanation = ReasonCaptureUnknown, "the Workflow cannot be read now: "+asError(err).Message
		return v, nil
	}
	v.Releasable, v.Reason, v.Explanation = verdict.Releasable, verdict.Reason, explanation
	return v, nil
}

// ListPods pages through held pods in order of namespace and name. With a
// workflow or a reason each pod is judged, at one read per workflow on the page.
// A page may be short and yet have a successor. Errors: KindNotSynced and those
// of Reader.
func (s *Service) ListPods(ctx context.Context, r ListRequest) (Page, error) {
	if err := s.synced(); err != nil {
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
		view, err := s.viewListed(ctx, pod, r, read)
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

func (s *Service) viewListed(ctx context.Context, pod Pod, r ListRequest, read map[WorkflowKey]Workflow) (View, error) {
	v := s.viewCached(pod)
	if v.Reason != ReasonNone || (r.Reason == ReasonNone && r.Workflow == "") {
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
			wf = Workflow{Key: key, Exists: true, UID: pod.Owner.UID, Unknown: "it cannot be read now"}
		}
		read[key] = wf
	}
	verdict := s.policy.Judge(Evidence{Pod: pod, Workflow: wf, Remembered: s.captures.has(pod.UID), Now: time.Now()})
	v.Releasable, v.Reason = verdict.Releasable, verdict.Reason
	v.Explanation = s.policy.Explain(&pod, wf, verdict)
	return v, nil
}

// viewCached says of a pod what is known without a read.
func (s *Service) viewCached(pod Pod) View {
	v := View{Pod: pod, Held: pod.Has(s.policy.Finalizer)}
	switch {
	case !pod.Owner.IsWorkflow():
		v.Reason = ReasonUnowned
	case v.Held && s.captures.has(pod.UID):
		v.Releasable, v.Reason = true, ReasonCaptured
	}
	v.Explanation = v.Reason.sentence()
	return v
}
