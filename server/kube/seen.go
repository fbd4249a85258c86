package kube

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Seen tells what the watches of workflows and namespaces know, in the words of
// package finalizer. All of it is a hint.
type Seen struct {
	workflows, namespaces *metaStore
	faults                *faults
}

// Workflow returns the workflow with ReadAt zero and no nodes. One that the watch
// does not know, and the empty name, has Exists false, which proves nothing.
func (s *Seen) Workflow(key finalizer.WorkflowKey) finalizer.Workflow {
	w := finalizer.Workflow{Key: key}
	if m, ok := s.workflows.get(types.NamespacedName(key)); ok {
		w.Exists, w.UID, w.Deleting, w.Completed = true, m.UID, m.Deleting, m.Completed
	}
	if m, ok := s.namespaces.get(types.NamespacedName{Name: key.Namespace}); ok {
		w.NamespaceTerminating = m.Deleting
	}
	return w
}

// ResourceVersion returns the version of the workflow that the watch told last,
// and "" while it knows none.
func (s *Seen) ResourceVersion(key finalizer.WorkflowKey) string {
	m, _ := s.workflows.get(types.NamespacedName(key))
	return m.ResourceVersion
}

// Synced reports whether the first lists of workflows and namespaces are in. A
// watch that cannot work until somebody mends it, for want of a right or because
// the CustomResourceDefinition is not installed, is not waited for; once mended
// it is, for the moment that its first list takes.
func (s *Seen) Synced() bool {
	return s.settled(s.workflows, workflowsResource) && s.settled(s.namespaces, namespacesResource)
}

func (s *Seen) settled(store *metaStore, resource string) bool {
	for _, sc := range store.unsynced() {
		if !lasting(s.faults.get(sc.about(verbList, resource))) && !lasting(s.faults.get(sc.about(verbWatch, resource))) {
			return false
		}
	}
	return true
}

// lasting tells a fault that somebody has to mend from an outage.
func lasting(e *finalizer.Error) bool {
	if e == nil {
		return false
	}
	var status apierrors.APIStatus
	return e.Kind == finalizer.KindForbidden ||
		(errors.As(e.Err, &status) && status.Status().Code == http.StatusNotFound)
}
