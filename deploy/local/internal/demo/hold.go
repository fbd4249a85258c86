package demo

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"

	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

// hold shows that a held pod survives a delete, that ReleasePod frees it, and that it does not free a pod too early.
func (s *story) hold(ctx context.Context) error {
	s.say("\n1. A held pod survives a delete")
	wf, pods, err := s.cast(ctx, "hello", scenario.Succeeds, 2)
	if err != nil {
		return err
	}
	stored, missing := pods[0], pods[1]
	s.uncaptured = missing
	nodes := append(scenario.Nodes("Succeeded", stored), scenario.Nodes("Running", missing)...)
	if err := s.controller.StoreNodes(ctx, wf, nodes); err != nil {
		return err
	}
	s.say("   Workflow hello has two pods that have succeeded. The result of %s is in the stored Workflow, that of %s is not.", stored.Name, missing.Name)
	s.say("   Somebody says: kubectl delete pod %s %s", stored.Name, missing.Name)
	if err := s.kubectl.DeletePods(ctx, wf, stored, missing); err != nil {
		return err
	}
	if err := s.watchHeld(ctx, stored); err != nil {
		return err
	}

	s.say("\n2. ReleasePod frees it, and never too early")
	s.say("   ReleasePod for %s, over gRPC:", missing.Name)
	_, err = s.service.ReleasePod(ctx, &finalizerv1.ReleasePodRequest{Namespace: namespace, Pod: missing.Name})
	refused := status.Code(err) == codes.FailedPrecondition && client.Reason(err) == finalizerv1.ErrorReason_ERROR_REASON_POD_NOT_CAPTURED
	if err := s.check(refused, "refused with POD_NOT_CAPTURED, because its result would be lost", fmt.Sprint(err)); err != nil {
		return err
	}
	live, err := s.kubectl.GetPod(ctx, namespace, missing.Name)
	if err != nil {
		return err
	}
	if err := s.check(live.UID == missing.UID && held(live), missing.Name+" is still held", describe(live)); err != nil {
		return err
	}
	s.say("   ReleasePod for %s, over gRPC:", stored.Name)
	answer, err := s.service.ReleasePod(ctx, &finalizerv1.ReleasePodRequest{Namespace: namespace, Pod: stored.Name})
	if err != nil {
		return fmt.Errorf("release %s: %w", stored.Name, err)
	}
	released := answer.GetResult().GetOutcome() == finalizerv1.Outcome_OUTCOME_RELEASED
	if err := s.check(released, "OUTCOME_RELEASED, because its result is stored", answer.String()); err != nil {
		return err
	}
	gone, err := s.gone(ctx, stored)
	if err != nil {
		return err
	}
	return s.check(gone, stored.Name+" is gone", "it is still there")
}
