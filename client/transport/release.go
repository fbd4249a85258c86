package transport

import (
	"net/http"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// patch answers a PATCH of a pod.
func (c *call) patch() (*http.Response, error) {
	p, ok := parsePatch(c.target.mediaType, c.body)
	if !ok {
		return c.forward()
	}
	pod, refused, err := c.read(c.target.pod)
	if err != nil {
		return nil, err
	}
	if pod == nil {
		// Only workflow pods have what this patch is about: it must not pass
		// unseen because the pod could not be read.
		return c.give(refused), nil
	}
	if _, ours := pod.workflow(); !ours || p.uid != "" && p.uid != pod.Metadata.UID {
		return c.forward()
	}
	todo, ok := p.against(pod.Metadata.Finalizers, c.options.Finalizer)
	if !ok || !todo.releases && !p.marks {
		return c.forward()
	}
	return c.release(p, todo, pod)
}

// release sends a patch through the service. First the API server says what it
// would answer this caller, so that nobody gets through the service what its own
// rights deny. Then the service does its part, and only then what it does not do
// is written: a patch that is refused has changed nothing.
func (c *call) release(p patch, todo work, pod *object) (*http.Response, error) {
	foreign := len(todo.added)+len(todo.removed) > 0
	rehearsal := c.body
	if !foreign && p.rest == nil {
		// The caller's view may be old: the service names the UID instead, and
		// touches nothing but its finalizer.
		rehearsal = p.unversioned
	}
	last, err := c.rehearse(c.with(rehearsal))
	if err != nil {
		return nil, err
	}
	if !last.ok() {
		return c.give(last), nil
	}
	var before, after []*http.Request
	switch {
	case len(todo.added) > 0:
		// A finalizer that takes over must be there before ours goes.
		before = append(before, c.strategic(foreignPatch(pod.Metadata.UID, todo)))
	case foreign:
		after = append(after, c.strategic(foreignPatch(pod.Metadata.UID, todo)))
	}
	if p.rest != nil {
		after = append(after, c.with(p.rest(pod.Metadata.UID)))
	}
	if answer, err := c.write(before); answer != nil || err != nil {
		return answer, err
	}
	ctx, cancel := c.within()
	defer cancel()
	released, err := c.service.ReleasePod(ctx, &finalizerv1.ReleasePodRequest{
		Namespace: c.target.namespace, Pod: c.target.pod, PodUid: pod.Metadata.UID, MarkCompleted: p.marks,
	})
	if err != nil {
		return c.failed(err, func() (*http.Response, error) { return c.next.RoundTrip(c.with(p.bound(pod.Metadata.UID))) })
	}
	c.observe(Released, nil)
	if released.GetResult().GetOutcome() == finalizerv1.Outcome_OUTCOME_GONE {
		return c.gone(), nil
	}
	if answer, err := c.write(after); answer != nil || err != nil {
		return answer, err
	}
	return c.live(pod.Metadata.UID, last), nil
}

// strategic returns the caller's request with a strategic merge patch.
func (c *call) strategic(body []byte) *http.Request {
	req := c.with(body)
	req.Header.Set("Content-Type", strategicPatch)
	return req
}

// write sends the requests, and returns the answer of the first that fails. A
// pod that is gone has nothing to be written to.
func (c *call) write(requests []*http.Request) (*http.Response, error) {
	for _, req := range requests {
		answer, err := c.keep(req)
		if err != nil {
			return nil, err
		}
		if !answer.ok() && answer.StatusCode != http.StatusNotFound {
			return c.give(answer), nil
		}
	}
	return nil, nil
}
