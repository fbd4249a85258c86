package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"

	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

const retried = 5

// retry shows a retry whose pods block their own names, what frees these, and that a late call does not hit the successors.
func (s *story) retry(ctx context.Context) error {
	s.say("\n3. A retry gets its names back")
	wf, pods, err := s.cast(ctx, "retry", scenario.Fails, retried)
	if err != nil {
		return err
	}
	if err := s.controller.StoreNodes(ctx, wf, scenario.Nodes("Failed", pods...)); err != nil {
		return err
	}
	s.say("   Workflow retry has %d pods that have failed. Argo Server deletes them, to run them again.", retried)
	if err := s.server.DeletePods(ctx, wf, pods...); err != nil {
		return err
	}
	if err := s.checkBlocked(ctx, wf, pods); err != nil {
		return err
	}
	s.say("   Argo Server asks finalizerd, over REST: workflows/retry:deletePods with wait.")
	request := &finalizerv1.DeleteWorkflowPodsRequest{Wait: true, RequestId: "retry-1"}
	for _, pod := range pods {
		request.NodeIds = append(request.NodeIds, pod.Name)
	}
	answer := &finalizerv1.DeleteWorkflowPodsResponse{}
	if err := post(ctx, s.rest+"/v1/namespaces/"+namespace+"/workflows/"+wf.Name+":deletePods", request, answer); err != nil {
		return err
	}
	if err := s.check(answer.GetSummary().GetDeleted() == retried && len(answer.GetResults()) == retried,
		fmt.Sprintf("%d times OUTCOME_DELETED", retried), answer.String()); err != nil {
		return err
	}
	successors, err := s.controller.CreatePods(ctx, wf, scenario.Succeeds, scenario.Names(wf.Name, retried)...)
	if err := s.check(err == nil, fmt.Sprintf("%d new pods are created under the same names at once", retried), fmt.Sprint(err)); err != nil {
		return err
	}
	return s.late(ctx, wf, pods, successors)
}

func (s *story) checkBlocked(ctx context.Context, wf scenario.Workflow, pods []scenario.Pod) error {
	for _, pod := range pods {
		_, err := s.controller.CreatePods(ctx, wf, scenario.Succeeds, pod.Name)
		if !apierrors.IsAlreadyExists(err) || !strings.Contains(err.Error(), "object is being deleted") {
			return s.check(false, "creating "+pod.Name+" again fails with AlreadyExists: object is being deleted", fmt.Sprint(err))
		}
	}
	return s.check(true, fmt.Sprintf("all %d hang in Terminating: creating one again fails with AlreadyExists, \"object is being deleted\"", len(pods)), "")
}

// late calls for pods that have successors.
func (s *story) late(ctx context.Context, wf scenario.Workflow, old, successors []scenario.Pod) error {
	s.say("   A clean-up of the first attempt comes late: ReleasePod for the old UID of %s, with the word that it is captured.", old[0].Name)
	_, err := s.service.ReleasePod(ctx, &finalizerv1.ReleasePodRequest{
		Namespace: namespace, Pod: old[0].Name, PodUid: string(old[0].UID), Captured: true,
	})
	replaced := status.Code(err) == codes.FailedPrecondition && client.Reason(err) == finalizerv1.ErrorReason_ERROR_REASON_POD_REPLACED
	if err := s.check(replaced, "refused with POD_REPLACED", fmt.Sprint(err)); err != nil {
		return err
	}
	request := &finalizerv1.DeleteWorkflowPodsRequest{Namespace: namespace, Workflow: wf.Name}
	for _, pod := range old {
		request.Pods = append(request.Pods, &finalizerv1.PodRef{Name: pod.Name, Uid: string(pod.UID)})
	}
	s.say("   And DeleteWorkflowPods for all %d old UIDs.", len(old))
	answer, err := s.service.DeleteWorkflowPods(ctx, request)
	if err != nil {
		return fmt.Errorf("delete the old pods again: %w", err)
	}
	superseded := 0
	for _, result := range answer.GetResults() {
		if result.GetOutcome() == finalizerv1.Outcome_OUTCOME_SUPERSEDED {
			superseded++
		}
	}
	if err := s.check(superseded == len(old), fmt.Sprintf("%d times OUTCOME_SUPERSEDED", len(old)), answer.String()); err != nil {
		return err
	}
	for _, pod := range successors {
		live, err := s.kubectl.GetPod(ctx, namespace, pod.Name)
		if err != nil {
			return s.check(false, "the new pods are untouched", err.Error())
		}
		if live.UID != pod.UID || !held(live) || live.DeletionTimestamp != nil {
			return s.check(false, "the new pods are untouched", describe(live))
		}
	}
	return s.check(true, "the new pods are untouched and held", "")
}

// post sends a message as JSON and reads the answer as JSON.
func post(ctx context.Context, url string, in, out proto.Message) error {
	body, err := protojson.Marshal(in)
	if err != nil {
		return fmt.Errorf("POST %s: %w", url, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("POST %s: %w", url, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("POST %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: %s: %s", url, response.Status, answer)
	}
	if err := protojson.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("POST %s: the answer: %w", url, err)
	}
	return nil
}
