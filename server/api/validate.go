package api

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Limits of a request.
const (
	MaxListed       = 10_000 // node_ids, pods
	MaxRequestID    = 128
	MaxUID          = 64
	MaxWaitTimeout  = 24 * time.Hour
	MaxPageSize     = 1000
	DefaultPageSize = 100

	maxViolations = 20
	maxWorkflow   = 63 // the name becomes a label value
)

// faults collects what is wrong with one request, at most maxViolations, so
// that the answer to a hopeless list stays small.
type faults struct {
	found []finalizer.Violation
	more  int
}

func (f *faults) add(field, format string, args ...any) {
	if len(f.found) == maxViolations {
		f.more++
		return
	}
	f.found = append(f.found, finalizer.Violation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// err returns nil or an *finalizer.Error of KindInvalid.
func (f *faults) err() error {
	if len(f.found) == 0 {
		return nil
	}
	msg := "invalid request: " + f.found[0].Field + " " + f.found[0].Description
	if n := len(f.found) - 1 + f.more; n > 0 {
		msg += fmt.Sprintf(" (and %d more faults)", n)
	}
	return &finalizer.Error{Kind: finalizer.KindInvalid, Message: msg, Violations: f.found}
}

func (f *faults) name(field, value string, rule func(string) []string) {
	if value == "" {
		f.add(field, "is required")
		return
	}
	if msgs := rule(value); len(msgs) > 0 {
		f.add(field, "is not a name that Kubernetes accepts: %s", strings.Join(msgs, "; "))
	}
}

func (f *faults) namespace(value string) { f.name("namespace", value, validation.IsDNS1123Label) }

func (f *faults) pod(field, value string) { f.name(field, value, validation.IsDNS1123Subdomain) }

func (f *faults) workflow(value string) {
	if len(value) > maxWorkflow {
		f.add("workflow", "must be no more than %d characters", maxWorkflow)
		return
	}
	f.name("workflow", value, validation.IsDNS1123Subdomain)
}

func (f *faults) uid(field, value string, required bool) {
	switch {
	case value == "" && required:
		f.add(field, "is required")
	case len(value) > MaxUID:
		f.add(field, "must be no more than %d characters", MaxUID)
	case strings.ContainsFunc(value, notUID):
		f.add(field, "must consist of letters, digits and '-'")
	}
}

func notUID(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
}

func (f *faults) requestID(value string) {
	switch {
	case len(value) > MaxRequestID:
		f.add("request_id", "must be no more than %d characters", MaxRequestID)
	case strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }):
		f.add("request_id", "must consist of visible ASCII characters")
	}
}

// selection is what the two bulk requests have in common.
type selection interface {
	GetNamespace() string
	GetWorkflow() string
	GetWorkflowUid() string
	GetAll() bool
	GetNodeIds() []string
	GetPods() []*pb.PodRef
	GetCaptured() bool
	GetRequestId() string
}

func (f *faults) selection(r selection) {
	f.namespace(r.GetNamespace())
	f.workflow(r.GetWorkflow())
	f.uid("workflow_uid", r.GetWorkflowUid(), false)
	f.requestID(r.GetRequestId())

	ways := 0
	for _, given := range []bool{r.GetAll(), len(r.GetNodeIds()) > 0, len(r.GetPods()) > 0} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		f.add("all", "exactly one of all, node_ids and pods is required, got %d", ways)
	}
	if r.GetCaptured() && len(r.GetPods()) == 0 {
		f.add("captured", "needs pods: a result is asserted for a UID, never for a name")
	}
	f.nodeIDs(r.GetNodeIds())
	f.pods(r.GetPods())
}

func (f *faults) nodeIDs(ids []string) {
	if len(ids) > MaxListed {
		f.add("node_ids", "must have no more than %d entries, got %d", MaxListed, len(ids))
		return
	}
	for i, id := range ids {
		f.name(fmt.Sprintf("node_ids[%d]", i), id, validation.IsDNS1123Subdomain)
	}
}

func (f *faults) pods(refs []*pb.PodRef) {
	if len(refs) > MaxListed {
		f.add("pods", "must have no more than %d entries, got %d", MaxListed, len(refs))
		return
	}
	for i, ref := range refs {
		f.pod(fmt.Sprintf("pods[%d].name", i), ref.GetName())
		f.uid(fmt.Sprintf("pods[%d].uid", i), ref.GetUid(), true)
	}
}

func (f *faults) wait(wait bool, timeout *durationpb.Duration) {
	if timeout == nil {
		return
	}
	if !wait {
		f.add("wait_timeout", "needs wait")
	}
	if timeout.CheckValid() != nil || timeout.AsDuration() < 0 || timeout.AsDuration() > MaxWaitTimeout {
		f.add("wait_timeout", "must be between 0s and 24h")
	}
}

func checkAdd(r *pb.AddFinalizerRequest) error {
	var f faults
	f.namespace(r.GetNamespace())
	f.pod("pod", r.GetPod())
	f.uid("pod_uid", r.GetPodUid(), false)
	return f.err()
}

func checkRelease(r *pb.ReleasePodRequest) error {
	var f faults
	f.namespace(r.GetNamespace())
	f.pod("pod", r.GetPod())
	if r.GetCaptured() && r.GetPodUid() == "" {
		f.add("pod_uid", "is required with captured: a result is asserted for a UID, never for a name")
	}
	f.uid("pod_uid", r.GetPodUid(), false)
	return f.err()
}

func checkDelete(r *pb.DeleteWorkflowPodsRequest) error {
	var f faults
	f.selection(r)
	f.wait(r.GetWait(), r.GetWaitTimeout())
	return f.err()
}

func checkReleaseAll(r *pb.ReleaseWorkflowPodsRequest) error {
	var f faults
	f.selection(r)
	return f.err()
}

func checkGet(r *pb.GetPodRequest) error {
	var f faults
	f.namespace(r.GetNamespace())
	f.pod("pod", r.GetPod())
	return f.err()
}

// checkList also opens the page token.
func checkList(r *pb.ListPodsRequest) (after finalizer.PodID, err error) {
	var f faults
	if r.GetNamespace() != "" {
		f.namespace(r.GetNamespace())
	}
	if r.GetWorkflow() != "" {
		f.workflow(r.GetWorkflow())
		if r.GetNamespace() == "" {
			f.add("namespace", "is required with workflow")
		}
	}
	if _, known := pb.HoldReason_name[int32(r.GetReason())]; !known {
		f.add("reason", "has the unknown value %d", r.GetReason())
	}
	if r.GetPageSize() < 0 {
		f.add("page_size", "must not be negative")
	}
	if r.GetPageToken() != "" {
		if after, err = openToken(r); err != nil {
			f.add("page_token", "%s", err)
		}
	}
	return after, f.err()
}

func checkWatch(r *pb.WatchWorkflowPodsRequest) error {
	var f faults
	f.namespace(r.GetNamespace())
	f.workflow(r.GetWorkflow())
	f.uid("workflow_uid", r.GetWorkflowUid(), false)
	if _, known := pb.WatchUntil_name[int32(r.GetUntil())]; !known {
		f.add("until", "has the unknown value %d", r.GetUntil())
	}
	return f.err()
}
