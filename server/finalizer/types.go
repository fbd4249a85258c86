package finalizer

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// DefaultFinalizer is the finalizer of Argo Workflows for the capture of pod
// status (argo-workflows PR 12413).
const DefaultFinalizer = "workflows.argoproj.io/status"

// Labels and annotations of Argo Workflows. User metadata is applied last by
// Argo and can overwrite each, so none of them proves ownership.
const (
	LabelWorkflow    = "workflows.argoproj.io/workflow"
	LabelCompleted   = "workflows.argoproj.io/completed"
	LabelResubmitted = "workflows.argoproj.io/resubmitted-from-workflow"
	LabelInstanceID  = "workflows.argoproj.io/controller-instanceid"
	AnnotationNode   = "workflows.argoproj.io/node-id"
	AnnotationPodGC  = "workflows.argoproj.io/pod-gc-strategy" // Strategy/delay
)

// WorkflowKey is the key of a lane.
type WorkflowKey struct {
	Namespace, Name string
}

// PodID is the identity of a pod. UID is never empty in a write.
type PodID struct {
	Namespace, Name string
	UID             types.UID
}

// Target is a pod to write to, with the workflow in whose turn it is written.
type Target struct {
	Workflow WorkflowKey
	Pod      PodID
	// Background writes are the reconciler's: they step back while callers
	// write.
	Background bool
}

// Owner is the controller owner reference of a pod. The zero value: none.
type Owner struct {
	Group, Kind, Name string
	UID               types.UID
}

// None reports whether there is no controller owner at all.
func (o Owner) None() bool { return o == Owner{} }

// IsWorkflow reports whether the owner is an Argo Workflow, of any version.
func (o Owner) IsWorkflow() bool { return o.Group == "argoproj.io" && o.Kind == "Workflow" }

// Pod is what the service knows of a pod. Metadata comes from the watch or from
// an answer to a write; Status only from a live read.
type Pod struct {
	PodID
	ResourceVersion string
	Owner           Owner
	Finalizers      []string
	NodeID          string // annotation; empty when absent
	InstanceID      string // label; empty when absent
	Completed       bool   // label completed=true
	// GCStrategy is the strategy in the annotation of podGC; empty when absent.
	GCStrategy string
	CreatedAt  time.Time
	// DeletedAt is metadata.deletionTimestamp: when the grace period ends, not
	// when the deletion was asked for. Zero: not terminating.
	DeletedAt time.Time
	// GraceSeconds is metadata.deletionGracePeriodSeconds; meaningful only with
	// DeletedAt.
	GraceSeconds int64
	// Status is nil when the pod is known from metadata only.
	Status *PodStatus
}

// PodStatus is the part of a live pod that decides on its end.
type PodStatus struct {
	Phase string // as in core/v1: Pending, Running, Succeeded, Failed, Unknown
	// Started is true once any container, init containers included, is or was
	// running.
	Started  bool
	NodeName string // spec.nodeName; empty: unscheduled
}

// Terminal is decided by the phase alone: a Failed pod may have no container
// statuses, or containers that seem to run (argo-workflows 14088).
func (s *PodStatus) Terminal() bool {
	return s != nil && (s.Phase == "Succeeded" || s.Phase == "Failed")
}

// Has reports whether the pod carries the finalizer.
func (p *Pod) Has(finalizer string) bool { return slices.Contains(p.Finalizers, finalizer) }

// Foreign returns the finalizers other than the given one, in order.
func (p *Pod) Foreign(finalizer string) []string {
	var rest []string
	for _, f := range p.Finalizers {
		if f != finalizer {
			rest = append(rest, f)
		}
	}
	return rest
}

// Collected reports whether the controller's podGC is to delete the pod.
func (p *Pod) Collected() bool { return p.GCStrategy != "" && p.GCStrategy != "OnPodNone" }

// Terminating reports whether the pod has a deletionTimestamp.
func (p *Pod) Terminating() bool { return !p.DeletedAt.IsZero() }

// Removed reports whether this answer to a write was the pod's last state: no
// finalizer and no grace period is left, so the API server has removed it.
func (p *Pod) Removed() bool {
	return p.Terminating() && p.GraceSeconds == 0 && len(p.Finalizers) == 0
}

// Workflow is one live read of a Workflow and of its namespace. Exists false is
// proof of absence, given by a NotFound for this very object; a read that failed
// is an error and never a Workflow.
//
// With ReadAt zero it is what the watch tells, a hint: only what is never taken
// back, a deletionTimestamp of this UID or of the namespace, is then believed.
type Workflow struct {
	Key WorkflowKey
	// ReadAt is when the live read began, by the clock of this process.
	ReadAt    time.Time
	Exists    bool
	UID       types.UID
	Deleting  bool
	Phase     string // as stored; empty until the controller has stored its first pass
	Completed bool   // phase Succeeded, Failed or Error, or label completed=true
	// CompletedOnce: the condition Completed is stored, true or false. It stays
	// after a retry, and a memoized resubmission has it from birth.
	CompletedOnce bool
	// Resubmitted: it was made from another workflow.
	Resubmitted bool
	// StartedAt is when the present run began: a retry sets it anew. Zero: not
	// stored.
	StartedAt            time.Time
	NamespaceTerminating bool
	// Unknown says why the nodes could not be learnt: offloaded or unreadable
	// status. Empty: Nodes is complete.
	Unknown string
	Nodes   map[string]Node // by node ID; set with SetNodes
	// containers lists, by the ID of a container set's pod node, the nodes of
	// its containers.
	containers map[string][]string
}

// SetNodes stores the nodes and their index.
func (w *Workflow) SetNodes(nodes map[string]Node) {
	w.Nodes, w.containers = nodes, nil
	for id, n := range nodes {
		if n.Type != "Container" || n.BoundaryID == "" {
			continue
		}
		if w.containers == nil {
			w.containers = make(map[string][]string)
		}
		w.containers[n.BoundaryID] = append(w.containers[n.BoundaryID], id)
	}
}

// NodeHealth is the state of a cluster node. The zero value: not asked for.
type NodeHealth struct {
	Known bool // false: not asked for, or it could not be learnt
	Gone  bool // proven by a NotFound
	Ready bool
	Since time.Time // when Ready took its present value; zero when Gone
}

// Node is the state of one workflow node as stored.
type Node struct {
	Type       string // Pod, Container, Steps, DAG, ...
	Phase      string
	BoundaryID string
	// Synced is taskResultSynced; nil when absent, which counts as synced.
	Synced                *bool
	StartedAt, FinishedAt time.Time
	// RestartingPod is the UID of a failed pod that the controller has given up
	// and makes anew under the same name (restartingPodUID).
	RestartingPod types.UID
}

// Captured reports whether the node's result is persisted. A running daemon is
// not, although Argo calls it fulfilled.
func (n Node) Captured() bool {
	switch n.Phase {
	case "Skipped", "Omitted":
		return true
	case "Succeeded", "Failed", "Error":
		return n.Synced == nil || *n.Synced
	}
	return false
}
