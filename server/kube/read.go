package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const (
	workflowsResource  = "workflows"
	namespacesResource = "namespaces"
	verbGet            = "get"
	verbList           = "list"

	// readRetries is how often client-go may follow a Retry-After of a read.
	readRetries = 2
	// pageSize is the number of pods of one LIST.
	pageSize = "500"
)

// Reader implements finalizer.Reader. Each read has a time limit of its own,
// Options.ReadTimeout, past which it is KindUnavailable.
type Reader struct {
	meta        rest.Interface // core/v1, metadata
	core        rest.Interface // core/v1, whole objects
	argo        rest.Interface // argoproj.io/v1alpha1
	namespaces  *metaStore
	faults      *faults
	timeout     time.Duration
	maxUnpacked int64
	only        reach
}

// Workflow implements finalizer.Reader: one GET, and one more where the namespace
// may be ending.
func (r *Reader) Workflow(ctx context.Context, key finalizer.WorkflowKey) (finalizer.Workflow, error) {
	if e := r.only.check(key.Namespace, finalizer.PodID{}); e != nil {
		return finalizer.Workflow{}, e
	}
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	about := request{verb: verbGet, resource: workflowsResource, name: key.Name, namespace: key.Namespace}
	began := time.Now()
	res := r.argo.Get().Namespace(key.Namespace).Resource(workflowsResource).Name(key.Name).
		SetHeader("Accept", "application/json").MaxRetries(readRetries).Do(limited)
	w := finalizer.Workflow{Key: key}
	fail := r.failed(res.Error(), ctx.Err(), about)
	switch {
	case fail == nil:
		body, err := res.Raw()
		if err == nil {
			w, err = decodeWorkflow(body, key, r.maxUnpacked)
		}
		if err != nil {
			return finalizer.Workflow{}, &finalizer.Error{Kind: finalizer.KindUnavailable, Message: "the workflow cannot be read", Err: err}
		}
	case fail.Kind != finalizer.KindGone:
		return finalizer.Workflow{}, fail
	}
	ending, fail := r.namespaceEnding(ctx, limited, key.Namespace)
	if fail != nil {
		return finalizer.Workflow{}, fail
	}
	w.ReadAt, w.NamespaceTerminating = began, ending
	return w, nil
}

// namespaceEnding reads the namespace only when the watch says that it is being
// deleted or cannot say. An account that may not read namespaces gets false:
// pods are then kept, and Client.Faults tells. limited is ctx with the time limit
// of the read.
func (r *Reader) namespaceEnding(ctx, limited context.Context, namespace string) (bool, *finalizer.Error) {
	if seen, known := r.namespaces.get(types.NamespacedName{Name: namespace}); known && !seen.Deleting {
		return false, nil
	}
	about := request{verb: verbGet, resource: namespacesResource, name: namespace}
	res := r.meta.Get().Resource(namespacesResource).Name(namespace).
		SetHeader("Accept", acceptMeta).MaxRetries(readRetries).Do(limited)
	if fail := r.failed(res.Error(), ctx.Err(), about); fail != nil {
		switch fail.Kind {
		case finalizer.KindGone:
			return true, nil
		case finalizer.KindForbidden:
			return false, nil
		}
		return false, fail
	}
	obj, err := res.Get()
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if err != nil || !ok {
		return false, &finalizer.Error{Kind: finalizer.KindUnavailable, Message: "the namespace cannot be read", Err: err}
	}
	return m.DeletionTimestamp != nil, nil
}

// Pod implements finalizer.Reader.
func (r *Reader) Pod(ctx context.Context, namespace, name string) (finalizer.Pod, error) {
	about := request{
		verb: verbGet, resource: podsResource, name: name, namespace: namespace,
		pod: finalizer.PodID{Namespace: namespace, Name: name},
	}
	if e := r.only.check(namespace, about.pod); e != nil {
		return finalizer.Pod{}, e
	}
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var pod corev1.Pod
	err := r.core.Get().Namespace(namespace).Resource(podsResource).Name(name).
		MaxRetries(readRetries).Do(limited).Into(&pod)
	if fail := r.failed(err, ctx.Err(), about); fail != nil {
		if fail.Kind == finalizer.KindGone {
			fail.Kind, fail.Message = finalizer.KindPodNotFound, "the pod does not exist"
		}
		return finalizer.Pod{}, fail
	}
	return livePodOf(&pod), nil
}

// Pods implements finalizer.Reader. A list that expires between two pages, and so
// is no snapshot any more, is KindUnavailable.
func (r *Reader) Pods(ctx context.Context, key finalizer.WorkflowKey) ([]finalizer.Pod, error) {
	about := request{verb: verbList, resource: podsResource, namespace: key.Namespace}
	if e := r.only.check(key.Namespace, finalizer.PodID{}); e != nil {
		return nil, e
	}
	selector, err := labels.ValidatedSelectorFromSet(labels.Set{finalizer.LabelWorkflow: key.Name})
	if err != nil || key.Name == "" {
		return nil, &finalizer.Error{
			Kind: finalizer.KindInvalid, Message: "the workflow's name cannot be the value of a label", Err: err,
			Violations: []finalizer.Violation{{Field: "workflow", Description: "1 to 63 characters, as of a label"}},
		}
	}
	var pods []finalizer.Pod
	for next := ""; ; {
		list, fail := r.page(ctx, about, selector.String(), next)
		if fail != nil {
			return nil, fail
		}
		for i := range list.Items {
			pods = append(pods, livePodOf(&list.Items[i]))
		}
		if next = list.Continue; next == "" {
			return pods, nil
		}
	}
}

func (r *Reader) page(ctx context.Context, about request, selector, next string) (*corev1.PodList, *finalizer.Error) {
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	req := r.core.Get().Namespace(about.namespace).Resource(podsResource).MaxRetries(readRetries).
		Param("labelSelector", selector).Param("limit", pageSize)
	if next != "" {
		req = req.Param("continue", next)
	}
	var list corev1.PodList
	err := req.Do(limited).Into(&list)
	return &list, r.failed(err, ctx.Err(), about)
}

// failed classifies the error of a read, nil for none, and keeps the faults.
func (r *Reader) failed(err, ctxErr error, about request) *finalizer.Error {
	if err == nil {
		r.faults.clear(about.use())
		return nil
	}
	e := classify(err, ctxErr, about)
	r.faults.note(about.use(), e)
	return e
}
