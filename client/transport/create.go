package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"time"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// The pause between two creates while the old pod goes grows between these.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// beingDeleted is what the API server says of a name whose pod is terminating.
var beingDeleted = []byte("object is being deleted")

// maxStatus bounds the refusals that are looked at; they are short.
const maxStatus = 64 << 10

// create answers a POST of a pod.
func (c *call) create() (*http.Response, error) {
	pod, with, ok := c.newPod()
	if !ok {
		return c.forward()
	}
	if _, ours := pod.workflow(); !ours {
		return c.forward()
	}
	c.target.pod = pod.Metadata.Name
	added := c.options.AddFinalizer && c.isToHold(&pod)
	if added {
		c.body = with(c.options.Finalizer)
	}
	resp, err := c.forward()
	if err != nil {
		return nil, err
	}
	if c.options.CreateWait > 0 && pod.Metadata.Name != "" {
		if resp, err = c.afterPredecessor(resp); err != nil {
			return nil, err
		}
	}
	if added && resp.StatusCode == http.StatusCreated {
		c.observe(FinalizerAdded, nil)
	}
	return resp, nil
}

// newPod reads the body. with returns it with one more finalizer, for a pod that
// has metadata. False: it is no pod that can be read.
func (c *call) newPod() (pod object, with func(finalizer string) []byte, ok bool) {
	if c.target.mediaType == protobufBody {
		pod, encoded, ok := protobufPod(c.body)
		return pod, encoded.with, ok
	}
	var doc fields
	if json.Unmarshal(c.body, &pod) != nil || json.Unmarshal(c.body, &doc) != nil {
		return pod, nil, false
	}
	meta, ok := doc.object("metadata")
	return pod, func(finalizer string) []byte {
		meta.put(finalizersKey, append(slices.Clone(pod.Metadata.Finalizers), finalizer))
		return withMetadata(doc, meta).bytes()
	}, ok && meta != nil
}

// isToHold reports whether FIN is missing. A pod without a node, such as an
// agent, has no result that is stored, and would be held until its workflow ends.
func (c *call) isToHold(pod *object) bool {
	m := pod.Metadata
	return !pod.has(c.options.Finalizer) && m.Annotations[nodeIDAnnotation] != "" && m.Labels[completedLabel] != "true"
}

// afterPredecessor has the terminating pod released that still has the name, and
// creates again. If it may not be released, or is not gone in time, the API
// server's first answer is returned. At that Argo takes the pod of the name for
// its new one, so a service that could not do its work is no reason for it.
func (c *call) afterPredecessor(resp *http.Response) (*http.Response, error) {
	first, err := c.blocked(resp)
	if first == nil || err != nil {
		return resp, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.options.CreateWait)
	defer cancel()
	released := ""
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		uid, answer, err := c.makeWay(ctx, released, first)
		if answer != nil || err != nil {
			return answer, err
		}
		released = uid
		again, err := c.forward()
		if err != nil {
			return nil, err
		}
		still, err := c.blocked(again)
		if err != nil {
			return nil, err
		}
		if still == nil {
			if again.StatusCode == http.StatusCreated {
				c.observe(Recreated, nil)
			}
			return again, nil
		}
		select {
		case <-ctx.Done():
			return c.give(first), nil
		case <-time.After(pause):
		}
	}
}

// blocked returns the answer if it says that the name's pod is being deleted. If
// not, nil, and resp is as it was.
func (c *call) blocked(resp *http.Response) (*kept, error) {
	if resp.StatusCode != http.StatusConflict {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	if bytes.Contains(body, beingDeleted) {
		return &kept{resp, body}, resp.Body.Close()
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
	return nil, nil
}

// makeWay has the terminating pod of the name released, unless that was done for
// the UID released. It returns the UID, "" if the name is free, and the answer to
// the caller if waiting does not help: first, unless the service, or the API
// server that was asked for the pod, is at fault.
func (c *call) makeWay(ctx context.Context, released string, first *kept) (uid string, answer *http.Response, err error) {
	pod, read, err := c.read(c.target.pod)
	switch {
	case err != nil:
		return "", nil, err
	case pod == nil && read.StatusCode == http.StatusNotFound:
		return "", nil, nil
	case pod == nil && (read.StatusCode == http.StatusTooManyRequests || read.StatusCode >= http.StatusInternalServerError):
		return "", c.give(read), nil
	case pod == nil:
		return "", c.give(first), nil
	}
	workflow, ours := pod.workflow()
	if !ours || pod.Metadata.DeletionTimestamp == "" {
		return "", c.give(first), nil
	}
	uid = pod.Metadata.UID
	if uid == released || !pod.has(c.options.Finalizer) {
		return uid, nil, nil // the kubelet, or others, still hold it
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	result, err := onlyResult(c.service.DeleteWorkflowPods(ctx, &finalizerv1.DeleteWorkflowPodsRequest{
		Namespace: c.target.namespace, Workflow: workflow.Name, WorkflowUid: workflow.UID,
		Pods: []*finalizerv1.PodRef{{Name: c.target.pod, Uid: uid}},
	}))
	if err != nil {
		answer, err = c.noWay(err, first)
		return "", answer, err
	}
	switch result.GetOutcome() {
	case finalizerv1.Outcome_OUTCOME_DELETED, finalizerv1.Outcome_OUTCOME_DELETING, finalizerv1.Outcome_OUTCOME_GONE,
		finalizerv1.Outcome_OUTCOME_NOT_FOUND, finalizerv1.Outcome_OUTCOME_SUPERSEDED,
		finalizerv1.Outcome_OUTCOME_HELD_BY_FOREIGN_FINALIZER:
		return uid, nil, nil
	case finalizerv1.Outcome_OUTCOME_NOT_CAPTURED, finalizerv1.Outcome_OUTCOME_BLOCKED_BY_ADMISSION:
		c.observe(Refused, nil)
		return "", c.give(first), nil
	}
	answer, err = c.noWay(resultError(result), first)
	return "", answer, err
}

// noWay is failed for a create, whose own refusal says more than a 409 of ours.
func (c *call) noWay(err error, first *kept) (*http.Response, error) {
	if classify(err) == faultRefused {
		c.observe(Refused, err)
		return c.give(first), nil
	}
	return c.failed(err, func() (*http.Response, error) { return c.give(first), nil })
}
