package api

import (
	"cmp"
	"context"
	"log/slog"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Pods acts on one pod. Its requests are checked: names and UIDs are such as
// Kubernetes accepts.
type Pods interface {
	AddFinalizer(context.Context, finalizer.AddRequest) (finalizer.Result, error)
	ReleasePod(context.Context, finalizer.ReleaseRequest) (finalizer.Result, error)
}

// Bulk acts on pods of one workflow.
type Bulk interface {
	Bulk(context.Context, finalizer.BulkRequest) ([]finalizer.Result, error)
}

// Views reads.
type Views interface {
	GetPod(ctx context.Context, namespace, name string) (finalizer.View, error)
	ListPods(context.Context, finalizer.ListRequest) (finalizer.Page, error)
	Watch(ctx context.Context, r finalizer.WatchRequest, send func(finalizer.Step) error) error
}

// Core is what the service asks for.
type Core interface {
	Pods
	Bulk
	Views
}

// Service implements finalizer.v1.FinalizerService. Its errors are the core's
// own, or *finalizer.Error of KindInvalid; StatusOf turns them into statuses.
type Service struct {
	pb.UnimplementedFinalizerServiceServer

	core Core
	fin  string
	log  *slog.Logger
}

// Config is what a Service is made of. Core and Log are required.
type Config struct {
	Core Core
	// Finalizer is FIN, so that the others can be told apart. Empty:
	// finalizer.DefaultFinalizer.
	Finalizer string
	// Log gets the causes of per-pod faults of bulk calls.
	Log *slog.Logger
}

// New returns a Service. It starts nothing.
func New(c Config) *Service {
	return &Service{core: c.Core, fin: cmp.Or(c.Finalizer, finalizer.DefaultFinalizer), log: c.Log}
}

// AddFinalizer implements the RPC.
func (s *Service) AddFinalizer(ctx context.Context, r *pb.AddFinalizerRequest) (*pb.AddFinalizerResponse, error) {
	if err := checkAdd(r); err != nil {
		return nil, err
	}
	res, err := s.core.AddFinalizer(ctx, finalizer.AddRequest{
		Pod:          podID(r.GetNamespace(), r.GetPod(), r.GetPodUid()),
		ValidateOnly: r.GetValidateOnly(),
	})
	if err != nil {
		return nil, err
	}
	return &pb.AddFinalizerResponse{Outcome: outcome(res.Outcome), PodUid: string(res.Pod.UID)}, nil
}

// ReleasePod implements the RPC.
func (s *Service) ReleasePod(ctx context.Context, r *pb.ReleasePodRequest) (*pb.ReleasePodResponse, error) {
	if err := checkRelease(r); err != nil {
		return nil, err
	}
	res, err := s.core.ReleasePod(ctx, finalizer.ReleaseRequest{
		Pod:           podID(r.GetNamespace(), r.GetPod(), r.GetPodUid()),
		Captured:      r.GetCaptured(),
		MarkCompleted: r.GetMarkCompleted(),
		Force:         r.GetForce(),
		ValidateOnly:  r.GetValidateOnly(),
	})
	if err != nil {
		return nil, err
	}
	return &pb.ReleasePodResponse{Result: result(res)}, nil
}

// DeleteWorkflowPods implements the RPC.
func (s *Service) DeleteWorkflowPods(ctx context.Context, r *pb.DeleteWorkflowPodsRequest) (*pb.DeleteWorkflowPodsResponse, error) {
	if err := checkDelete(r); err != nil {
		return nil, err
	}
	req := bulkRequest(r)
	req.Delete = true
	req.Force = r.GetForce()
	req.ValidateOnly = r.GetValidateOnly()
	// An explicit 0s means no waiting; the core's 0 means no limit.
	req.WaitTimeout = r.GetWaitTimeout().AsDuration()
	req.Wait = r.GetWait() && (r.GetWaitTimeout() == nil || req.WaitTimeout > 0)
	res, err := s.core.Bulk(ctx, req)
	if err != nil {
		return nil, err
	}
	s.logFaults(ctx, res)
	return &pb.DeleteWorkflowPodsResponse{Results: results(res), Summary: summary(res)}, nil
}

// ReleaseWorkflowPods implements the RPC.
func (s *Service) ReleaseWorkflowPods(ctx context.Context, r *pb.ReleaseWorkflowPodsRequest) (*pb.ReleaseWorkflowPodsResponse, error) {
	if err := checkReleaseAll(r); err != nil {
		return nil, err
	}
	req := bulkRequest(r)
	req.MarkCompleted = r.GetMarkCompleted()
	req.Force = r.GetForce()
	req.ValidateOnly = r.GetValidateOnly()
	res, err := s.core.Bulk(ctx, req)
	if err != nil {
		return nil, err
	}
	s.logFaults(ctx, res)
	return &pb.ReleaseWorkflowPodsResponse{Results: results(res), Summary: summary(res)}, nil
}

// GetPod implements the RPC.
func (s *Service) GetPod(ctx context.Context, r *pb.GetPodRequest) (*pb.GetPodResponse, error) {
	if err := checkGet(r); err != nil {
		return nil, err
	}
	v, err := s.core.GetPod(ctx, r.GetNamespace(), r.GetPod())
	if err != nil {
		return nil, err
	}
	return &pb.GetPodResponse{Pod: pod(v, s.fin)}, nil
}

// ListPods implements the RPC.
func (s *Service) ListPods(ctx context.Context, r *pb.ListPodsRequest) (*pb.ListPodsResponse, error) {
	after, err := checkList(r)
	if err != nil {
		return nil, err
	}
	page, err := s.core.ListPods(ctx, finalizer.ListRequest{
		Namespace: r.GetNamespace(),
		Workflow:  r.GetWorkflow(),
		Reason:    finalizer.Reason(r.GetReason()),
		After:     after,
		Limit:     pageSize(r.GetPageSize()),
	})
	if err != nil {
		return nil, err
	}
	out := &pb.ListPodsResponse{Pods: pods(page.Pods, s.fin)}
	if page.More {
		out.NextPageToken = sealToken(r, page.Next)
	}
	return out, nil
}

// WatchWorkflowPods implements the RPC.
func (s *Service) WatchWorkflowPods(r *pb.WatchWorkflowPodsRequest, stream pb.FinalizerService_WatchWorkflowPodsServer) error {
	if err := checkWatch(r); err != nil {
		return err
	}
	return s.core.Watch(stream.Context(), finalizer.WatchRequest{
		Workflow:    finalizer.WorkflowKey{Namespace: r.GetNamespace(), Name: r.GetWorkflow()},
		WorkflowUID: uid(r.GetWorkflowUid()),
		Until:       finalizer.Until(r.GetUntil()),
	}, func(step finalizer.Step) error { return stream.Send(watchStep(step, s.fin)) })
}

// logFaults logs the causes of per-pod faults that are the service's own: they
// are not in the answer, and the call as a whole succeeded, so no one else
// does.
func (s *Service) logFaults(ctx context.Context, res []finalizer.Result) {
	var first *finalizer.Error
	n := 0
	for _, r := range res {
		if r.Err == nil || (r.Err.Kind != finalizer.KindInternal && r.Err.Kind != finalizer.KindForbidden) {
			continue
		}
		if n++; first == nil {
			first = r.Err
		}
	}
	if n > 0 {
		s.log.ErrorContext(ctx, "pods failed for reasons of the service", "pods", n, "first", first.Error(),
			"namespace", first.Pod.Namespace, "pod", first.Pod.Name)
	}
}
