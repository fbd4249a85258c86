package finalizer

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Cache is what the watch has told, newer where the service itself has written
// since. It is a hint: absence in it proves nothing.
type Cache interface {
	// Pod returns the pod that has the name.
	Pod(namespace, name string) (Pod, bool)
	// PodsOfWorkflow returns the pods whose controller owner is a Workflow of
	// this name, of whatever UID, sorted by name. Labels play no part. The empty
	// name stands for the pods of the namespace that carry FIN and whose
	// controller owner is no Workflow.
	PodsOfWorkflow(key WorkflowKey) []Pod
	// Subscribe returns a channel of capacity 1 that gets a value after any
	// change among the pods of the workflow. cancel frees it.
	Subscribe(key WorkflowKey) (changed <-chan struct{}, cancel func())
}

// Held lists held pods, for ListPods.
type Held interface {
	// HeldPods returns at most limit pods that carry FIN, in order of namespace
	// and name, strictly after the given position, of one namespace or of all
	// ("").
	HeldPods(namespace string, after PodID, limit int) []Pod
}

// Reader reads live from the API server. Errors are *Error.
type Reader interface {
	// Workflow reads the workflow, with its node status, and its namespace's
	// state. A proven absence is Exists false; all doubt is an error.
	Workflow(ctx context.Context, key WorkflowKey) (Workflow, error)
	// Pod reads one pod with its status. A proven absence is KindPodNotFound.
	Pod(ctx context.Context, namespace, name string) (Pod, error)
	// Pods reads, in pages, the pods whose label names the workflow, with their
	// status. Owners are not checked.
	Pods(ctx context.Context, key WorkflowKey) ([]Pod, error)
}

// Writer sends one write each, carrying the UID, without reading first and
// without retrying. The answer is the pod after the write, without Status.
// Errors are *Error: KindGone when the name does not exist, KindReplaced when
// the name has another UID, KindTerminating, KindBlocked, KindForbidden,
// KindThrottled, KindUnavailable. After ctx is done nothing is sent.
type Writer interface {
	// AddFinalizer puts FIN on the pod.
	AddFinalizer(ctx context.Context, t Target) (Pod, error)
	// Release takes FIN off and, if asked, sets the completed label in the same
	// patch.
	Release(ctx context.Context, t Target, markCompleted bool) (Pod, error)
	// Delete sets the deletionTimestamp. The answer shows what still holds the
	// pod; when nothing does, it is Removed.
	Delete(ctx context.Context, t Target) (Pod, error)
}

// Unhider undoes a completed label that hides a pod from its controller.
type Unhider interface {
	// Unhide sets label completed=false and, with hold, puts FIN on again in the
	// same patch. Errors and answer are those of Writer.
	Unhide(ctx context.Context, t Target, hold bool) (Pod, error)
}

// Nodes tells the health of cluster nodes. A proven absence is Gone; all doubt is
// an error.
type Nodes interface {
	NodeHealth(ctx context.Context, name string) (NodeHealth, error)
}

// Events takes what operators should find at the object itself. Recording
// neither blocks nor fails: an event that cannot be stored is lost.
type Events interface {
	Record(Event)
}

// Event is about a pod, or about a Workflow when Pod is empty. It is stored as an
// events.k8s.io/v1 Event, equal ones as a series.
type Event struct {
	Workflow    WorkflowKey
	WorkflowUID types.UID
	Pod         PodID
	Warning     bool
	Reason      string // UpperCamelCase: why
	Action      string // UpperCamelCase: what was done or tried
	Note        string // a sentence
}
