package finalizer

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// AddRequest asks for FIN on a pod. UID may be empty: the one the name has now.
type AddRequest struct {
	Pod          PodID
	ValidateOnly bool
}

// ReleaseRequest asks to take FIN off a pod. UID may be empty unless Captured.
type ReleaseRequest struct {
	Pod           PodID
	Captured      bool // the caller's word for this UID
	MarkCompleted bool
	Force         bool
	ValidateOnly  bool
}

// PodRef names a pod of the request's namespace. Both are set.
type PodRef struct {
	Name string
	UID  types.UID
}

// BulkRequest asks for the release, and with Delete for the deletion, of pods of
// one workflow. Exactly one of All, NodeIDs and Pods is set.
type BulkRequest struct {
	Workflow      WorkflowKey
	WorkflowUID   types.UID // empty: any
	All           bool
	NodeIDs       []string
	Pods          []PodRef
	Delete        bool
	Captured      bool // only with Pods
	MarkCompleted bool
	Force         bool
	ValidateOnly  bool
	Wait          bool
	WaitTimeout   time.Duration // 0: until the deadline
	RequestID     string
}

// View is one pod as the service sees it.
type View struct {
	Pod         Pod
	Held        bool
	Releasable  bool
	Reason      Reason
	Explanation string
	// Since is when the reason came to hold, as far as is known.
	Since time.Time
	// ReleaseAt is when the pod is released by itself if nothing changes. Zero:
	// no time is known.
	ReleaseAt time.Time
}

// ListRequest pages through held pods. After is exclusive.
type ListRequest struct {
	Namespace string
	Workflow  string // needs Namespace
	Reason    Reason // ReasonNone: any
	After     PodID
	Limit     int // 1 to 1000
}

// Page is one page; More tells that Next has a successor.
type Page struct {
	Pods []View
	Next PodID
	More bool
}

// Until says when a watch ends by itself.
type Until int

// The ends of a watch.
const (
	UntilForever Until = iota
	UntilReleased
	UntilGone
)

// WatchRequest watches the pods of a workflow.
type WatchRequest struct {
	Workflow    WorkflowKey
	WorkflowUID types.UID
	Until       Until
}

// Work is a bulk call under way.
type Work struct {
	Delete              bool
	Total, Done, Failed int
	Started             time.Time
}

// Step is one message of a watch.
type Step struct {
	Snapshot                             bool
	Changed                              []View
	Gone                                 []PodID
	TotalPods, HeldPods, TerminatingPods int
	GonePods                             int
	Work                                 *Work
}
