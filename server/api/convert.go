package api

import (
	"cmp"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

func uid(s string) types.UID { return types.UID(s) }

func podID(namespace, name, podUID string) finalizer.PodID {
	return finalizer.PodID{Namespace: namespace, Name: name, UID: uid(podUID)}
}

func pageSize(n int32) int {
	if n == 0 {
		return DefaultPageSize
	}
	return min(int(n), MaxPageSize)
}

func bulkRequest(r selection) finalizer.BulkRequest {
	req := finalizer.BulkRequest{
		Workflow:    finalizer.WorkflowKey{Namespace: r.GetNamespace(), Name: r.GetWorkflow()},
		WorkflowUID: uid(r.GetWorkflowUid()),
		All:         r.GetAll(),
		NodeIDs:     r.GetNodeIds(),
		Captured:    r.GetCaptured(),
		RequestID:   r.GetRequestId(),
	}
	for _, p := range r.GetPods() {
		req.Pods = append(req.Pods, finalizer.PodRef{Name: p.GetName(), UID: uid(p.GetUid())})
	}
	return req
}

// outcome and holdReason rely on equal numbers in both packages, which a test
// holds by name.
func outcome(o finalizer.Outcome) pb.Outcome { return pb.Outcome(o) }

func holdReason(r finalizer.Reason) pb.HoldReason { return pb.HoldReason(r) }

func result(r finalizer.Result) *pb.PodResult {
	out := &pb.PodResult{
		Pod:               r.Pod.Name,
		PodUid:            string(r.Pod.UID),
		NodeId:            r.NodeID,
		Outcome:           outcome(r.Outcome),
		HoldReason:        holdReason(r.Reason),
		ForeignFinalizers: r.Foreign,
		Message:           r.Message,
	}
	if r.Err == nil {
		return out
	}
	out.Message = cmp.Or(r.Message, r.Err.Message)
	switch r.Outcome {
	case finalizer.OutcomeBlocked:
		out.Field, out.Webhook = r.Err.Field, r.Err.Webhook
	case finalizer.OutcomeFailed:
		row := RowOf(r.Err.Kind)
		out.Code, out.ErrorReason = int32(row.Code), row.Reason
		out.Message = cmp.Or(out.Message, row.Means)
	}
	return out
}

func results(in []finalizer.Result) []*pb.PodResult {
	out := make([]*pb.PodResult, len(in))
	for i, r := range in {
		out[i] = result(r)
	}
	return out
}

func summary(in []finalizer.Result) *pb.Summary {
	s := &pb.Summary{Total: count(len(in))}
	for _, r := range in {
		switch r.Outcome {
		case finalizer.OutcomeReleased:
			s.Released++
		case finalizer.OutcomeDeleted:
			s.Deleted++
		case finalizer.OutcomeDeleting:
			s.Deleting++
		case finalizer.OutcomeGone, finalizer.OutcomeAlreadyReleased:
			s.AlreadyDone++
		case finalizer.OutcomeNotCaptured:
			s.NotCaptured++
		case finalizer.OutcomeNotFound, finalizer.OutcomeSuperseded:
			s.Skipped++
		default:
			s.NeedsAttention++
		}
	}
	return s
}

func pod(v finalizer.View, fin string) *pb.Pod {
	p := v.Pod
	out := &pb.Pod{
		Namespace:   p.Namespace,
		Name:        p.Name,
		Uid:         string(p.UID),
		NodeId:      p.NodeID,
		Held:        v.Held,
		Releasable:  v.Releasable,
		HoldReason:  holdReason(v.Reason),
		Explanation: v.Explanation,
		Completed:   p.Completed,
		CreateTime:  timestamp(p.CreatedAt),
		SinceTime:   timestamp(v.Since),
		ReleaseTime: timestamp(v.ReleaseAt),
	}
	if p.Owner.IsWorkflow() {
		out.Workflow, out.WorkflowUid = p.Owner.Name, string(p.Owner.UID)
	}
	if p.Terminating() {
		// deletionTimestamp lies at the end of the grace period.
		out.DeleteTime = timestamp(p.DeletedAt.Add(-time.Duration(p.GraceSeconds) * time.Second))
	}
	out.ForeignFinalizers = p.Foreign(fin)
	return out
}

func pods(in []finalizer.View, fin string) []*pb.Pod {
	out := make([]*pb.Pod, len(in))
	for i, v := range in {
		out[i] = pod(v, fin)
	}
	return out
}

func watchStep(s finalizer.Step, fin string) *pb.WatchWorkflowPodsResponse {
	out := &pb.WatchWorkflowPodsResponse{
		Snapshot: s.Snapshot,
		Pods:     pods(s.Changed, fin),
		Progress: &pb.Progress{
			Pods:        count(s.TotalPods),
			Held:        count(s.HeldPods),
			Terminating: count(s.TerminatingPods),
			Gone:        count(s.GonePods),
		},
	}
	for _, g := range s.Gone {
		out.Gone = append(out.Gone, &pb.PodRef{Name: g.Name, Uid: string(g.UID)})
	}
	if w := s.Work; w != nil {
		op := pb.FinalizerService_ReleaseWorkflowPods_FullMethodName
		if w.Delete {
			op = pb.FinalizerService_DeleteWorkflowPods_FullMethodName
		}
		out.Progress.Work = &pb.Work{
			Operation: methodName(op),
			Total:     count(w.Total),
			Done:      count(w.Done),
			Failed:    count(w.Failed),
			StartTime: timestamp(w.Started),
		}
	}
	return out
}

func methodName(full string) string {
	for i := len(full) - 1; i >= 0; i-- {
		if full[i] == '/' {
			return full[i+1:]
		}
	}
	return full
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func count(n int) int32 { return int32(min(n, math.MaxInt32)) }
