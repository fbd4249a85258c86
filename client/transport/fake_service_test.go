package transport_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/finalizerd/finalizerd/client/transport"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// service is finalizerd.
func (c *cluster) service() transport.Service { return service{c} }

type service struct{ c *cluster }

func refusal(code codes.Code, reason, message string) error {
	s, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "finalizerd.dev"})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func (s service) enter(ctx context.Context, call string) (func(), error) {
	c := s.c
	c.mu.Lock()
	block := c.block
	c.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	c.mu.Lock()
	c.calls, c.steps = append(c.calls, call), append(c.steps, "service")
	if c.fault != nil {
		defer c.mu.Unlock()
		return nil, c.fault
	}
	return c.mu.Unlock, nil
}

func (s service) ReleasePod(ctx context.Context, r *finalizerv1.ReleasePodRequest, _ ...grpc.CallOption) (*finalizerv1.ReleasePodResponse, error) {
	call := fmt.Sprintf("release %s/%s %s", r.GetNamespace(), r.GetPod(), r.GetPodUid())
	if r.GetMarkCompleted() {
		call += " mark"
	}
	if r.GetCaptured() || r.GetForce() {
		s.c.t.Error("the transport asserted a capture")
	}
	leave, err := s.enter(ctx, call)
	if err != nil {
		return nil, err
	}
	defer leave()
	result := func(o finalizerv1.Outcome) (*finalizerv1.ReleasePodResponse, error) {
		return &finalizerv1.ReleasePodResponse{Result: &finalizerv1.PodResult{Outcome: o, PodUid: r.GetPodUid()}}, nil
	}
	key := r.GetNamespace() + "/" + r.GetPod()
	pod := s.c.pods[key]
	if pod == nil {
		return result(finalizerv1.Outcome_OUTCOME_GONE)
	}
	meta := pod["metadata"].(object)
	switch {
	case meta["uid"] != r.GetPodUid():
		return nil, refusal(codes.FailedPrecondition, "POD_REPLACED", "another pod has the name")
	case !s.c.captured[r.GetPodUid()]:
		return nil, refusal(codes.FailedPrecondition, "POD_NOT_CAPTURED", "the result is not stored")
	}
	s.release(key, r.GetMarkCompleted())
	if after := s.c.before["rest"]; after != nil {
		s.c.mu.Unlock()
		after()
		s.c.mu.Lock()
	}
	return result(finalizerv1.Outcome_OUTCOME_RELEASED)
}

func (s service) release(key string, mark bool) {
	pod := clone(s.c.pods[key])
	meta := pod["metadata"].(object)
	list, _ := meta["finalizers"].([]any)
	meta["finalizers"] = slices.DeleteFunc(list, func(f any) bool { return f == fin })
	if mark {
		meta["labels"].(object)["workflows.argoproj.io/completed"] = "true"
	}
	s.c.store(key, pod)
}

func (s service) DeleteWorkflowPods(ctx context.Context, r *finalizerv1.DeleteWorkflowPodsRequest, _ ...grpc.CallOption) (*finalizerv1.DeleteWorkflowPodsResponse, error) {
	ref := r.GetPods()[0]
	if r.GetCaptured() || r.GetForce() || r.GetAll() {
		s.c.t.Error("the transport asserted a capture")
	}
	leave, err := s.enter(ctx, fmt.Sprintf("delete %s/%s %s of %s %s", r.GetNamespace(), ref.GetName(), ref.GetUid(), r.GetWorkflow(), r.GetWorkflowUid()))
	if err != nil {
		return nil, err
	}
	defer leave()
	if s.c.results != nil {
		return &finalizerv1.DeleteWorkflowPodsResponse{Results: s.c.results}, nil
	}
	result := func(o finalizerv1.Outcome) (*finalizerv1.DeleteWorkflowPodsResponse, error) {
		return &finalizerv1.DeleteWorkflowPodsResponse{Results: []*finalizerv1.PodResult{{Outcome: o, PodUid: ref.GetUid()}}}, nil
	}
	key := r.GetNamespace() + "/" + ref.GetName()
	pod := s.c.pods[key]
	switch {
	case pod == nil:
		return result(finalizerv1.Outcome_OUTCOME_GONE)
	case pod["metadata"].(object)["uid"] != ref.GetUid():
		return result(finalizerv1.Outcome_OUTCOME_SUPERSEDED)
	case !s.c.captured[ref.GetUid()]:
		return result(finalizerv1.Outcome_OUTCOME_NOT_CAPTURED)
	}
	terminating(pod["metadata"].(object))
	s.release(key, false)
	if s.c.pods[key] != nil {
		return result(finalizerv1.Outcome_OUTCOME_HELD_BY_FOREIGN_FINALIZER)
	}
	return result(finalizerv1.Outcome_OUTCOME_DELETED)
}
