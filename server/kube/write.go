package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const (
	podsResource = "pods"
	verbPatch    = "patch"
	verbDelete   = "delete"
	fieldManager = "finalizerd"

	// acceptMeta asks for the metadata only, in protobuf where served.
	acceptMeta = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)

// Writer implements finalizer.Writer and finalizer.Unhider. Each write waits its
// workflow's turn under one adaptive limit and is then sent once.
type Writer struct {
	client    rest.Interface
	finalizer string
	timeout   time.Duration
	limit     *limiter
	pods      *podStore
	faults    *faults
	only      reach
}

// Load is the state of the limit on writes.
type Load struct{ InFlight, Waiting, Limit int }

// Load returns the state of the limit on writes, for metrics.
func (w *Writer) Load() Load {
	inFlight, waiting, limit := w.limit.load()
	return Load{InFlight: inFlight, Waiting: waiting, Limit: limit}
}

// metaPatch is a strategic merge patch of metadata. The UID makes the API server
// refuse it when the name has passed to another pod. A patch that deletes from
// the list of finalizers names the one to delete and no other, so it neither
// needs a resourceVersion nor touches what others put there.
type metaPatch struct {
	Metadata struct {
		UID    types.UID         `json:"uid"`
		Delete []string          `json:"$deleteFromPrimitiveList/finalizers,omitempty"`
		Add    []string          `json:"finalizers,omitempty"`
		Labels map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
}

// deleteOptions is the part of metav1.DeleteOptions that a write needs.
type deleteOptions struct {
	Kind          string `json:"kind"`
	APIVersion    string `json:"apiVersion"`
	Preconditions struct {
		UID types.UID `json:"uid"`
	} `json:"preconditions"`
	PropagationPolicy metav1.DeletionPropagation `json:"propagationPolicy"`
}

// AddFinalizer implements finalizer.Writer.
func (w *Writer) AddFinalizer(ctx context.Context, t finalizer.Target) (finalizer.Pod, error) {
	var p metaPatch
	p.Metadata.UID = t.Pod.UID
	p.Metadata.Add = []string{w.finalizer}
	return w.patch(ctx, t, p)
}

// Release implements finalizer.Writer.
func (w *Writer) Release(ctx context.Context, t finalizer.Target, markCompleted bool) (finalizer.Pod, error) {
	var p metaPatch
	p.Metadata.UID = t.Pod.UID
	p.Metadata.Delete = []string{w.finalizer}
	if markCompleted {
		p.Metadata.Labels = map[string]string{finalizer.LabelCompleted: "true"}
	}
	return w.patch(ctx, t, p)
}

// Unhide implements finalizer.Unhider.
func (w *Writer) Unhide(ctx context.Context, t finalizer.Target, hold bool) (finalizer.Pod, error) {
	var p metaPatch
	p.Metadata.UID = t.Pod.UID
	p.Metadata.Labels = map[string]string{finalizer.LabelCompleted: "false"}
	if hold {
		p.Metadata.Add = []string{w.finalizer}
	}
	return w.patch(ctx, t, p)
}

// Delete implements finalizer.Writer.
func (w *Writer) Delete(ctx context.Context, t finalizer.Target) (finalizer.Pod, error) {
	o := deleteOptions{Kind: "DeleteOptions", APIVersion: "v1", PropagationPolicy: metav1.DeletePropagationBackground}
	o.Preconditions.UID = t.Pod.UID
	body, err := json.Marshal(o)
	if err != nil {
		return finalizer.Pod{}, internal(t, "the delete options cannot be encoded", err)
	}
	req := w.client.Delete().SetHeader("Content-Type", "application/json")
	return w.write(ctx, t, verbDelete, req.Body(body))
}

func (w *Writer) patch(ctx context.Context, t finalizer.Target, p metaPatch) (finalizer.Pod, error) {
	body, err := json.Marshal(p)
	if err != nil {
		return finalizer.Pod{}, internal(t, "the patch cannot be encoded", err)
	}
	req := w.client.Patch(types.StrategicMergePatchType).Param("fieldManager", fieldManager)
	return w.write(ctx, t, verbPatch, req.Body(body))
}

// write sends one request, in the workflow's turn, and notes the answer.
func (w *Writer) write(ctx context.Context, t finalizer.Target, verb string, req *rest.Request) (finalizer.Pod, error) {
	if t.Pod.UID == "" || t.Pod.Namespace == "" || t.Pod.Name == "" {
		return finalizer.Pod{}, internal(t, "a write without namespace, name and UID is not sent", nil)
	}
	about := request{verb: verb, resource: podsResource, pod: t.Pod, name: t.Pod.Name, namespace: t.Pod.Namespace}
	if e := w.only.check(t.Pod.Namespace, t.Pod); e != nil {
		return finalizer.Pod{}, e
	}
	place := claim{workflow: t.Workflow, background: t.Background}
	if err := w.limit.acquire(ctx, place); err != nil {
		e := classify(err, err, about)
		e.Message = "the call ended before its turn to write came; nothing was sent"
		if place.background && e.Kind == finalizer.KindDeadline {
			// The pod has not failed: it goes on as soon as the limit lets it.
			e.Kind = finalizer.KindThrottled
		}
		return finalizer.Pod{}, e
	}
	began := time.Now()
	until := began.Add(w.timeout)
	sent, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	// MaxRetries(0): a retry by client-go would sleep and then write behind the
	// back of the lane.
	res := req.Namespace(t.Pod.Namespace).Resource(podsResource).Name(t.Pod.Name).
		SetHeader("Accept", acceptMeta).MaxRetries(0).Do(sent)
	pod, err := writtenPod(res, t.Pod)
	if err == nil {
		w.limit.release(place, began, signalOK, 0)
		w.faults.clear(about.use())
		w.pods.wrote(&pod)
		return pod, nil
	}
	var e *finalizer.Error
	if !errors.As(err, &e) {
		e = classify(err, ctx.Err(), about)
	}
	callers, bounded := ctx.Deadline()
	late := (!bounded || callers.After(until)) && errors.Is(sent.Err(), context.DeadlineExceeded)
	w.limit.release(place, began, signalOf(e, late), pauseOf(e))
	w.faults.note(about.use(), e)
	return finalizer.Pod{}, e
}

// writtenPod reads the answer: the pod after the write, or a Status where the
// API server has removed it at once and says no more.
func writtenPod(res rest.Result, id finalizer.PodID) (finalizer.Pod, error) {
	if err := res.Error(); err != nil {
		return finalizer.Pod{}, err
	}
	obj, err := res.Get()
	if err != nil {
		return finalizer.Pod{}, &finalizer.Error{Pod: id, Message: "the answer of the API server cannot be read", Err: err}
	}
	switch o := obj.(type) {
	case *metav1.PartialObjectMetadata:
		if o.UID != id.UID {
			return finalizer.Pod{}, &finalizer.Error{Pod: id, Message: fmt.Sprintf("the API server answered with another pod, UID %q", o.UID)}
		}
		return podOf(&o.ObjectMeta), nil
	case *metav1.Status:
		return finalizer.Pod{PodID: id, DeletedAt: time.Now()}, nil
	}
	return finalizer.Pod{}, &finalizer.Error{Pod: id, Message: fmt.Sprintf("the API server answered with a %T", obj)}
}

// signalOf tells the limiter what a failed write says about the API server. A
// rejection is an answer as good as any; a broken connection says nothing about
// load. Nor does the caller's deadline, of which the wait for a place has taken an
// unknown part: only our own time limit, late, counts.
func signalOf(e *finalizer.Error, late bool) signal {
	var status apierrors.APIStatus
	answered := errors.As(e.Err, &status)
	switch {
	case e.Kind == finalizer.KindThrottled:
		return signalOverload
	case answered && status.Status().Code == http.StatusGatewayTimeout:
		return signalOverload
	case answered && e.Kind != finalizer.KindUnavailable:
		return signalOK
	case !answered && late:
		return signalOverload
	}
	return signalNone
}

// pauseOf returns how long all writes wait: what the API server asked for, and
// not what an admission webhook did.
func pauseOf(e *finalizer.Error) time.Duration {
	if e.Kind.Retriable() {
		return e.RetryAfter
	}
	return 0
}

func internal(t finalizer.Target, message string, err error) *finalizer.Error {
	return &finalizer.Error{Kind: finalizer.KindInternal, Pod: t.Pod, Message: message, Err: err}
}
