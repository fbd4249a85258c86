package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc/codes"
)

// The workflow controller releases a pod after it has stored the pod's result.
func ExampleClient_releasePod() {
	c, stop, err := start(&fakeService{
		release: func(_ context.Context, _ int, r *finalizerv1.ReleasePodRequest) (*finalizerv1.ReleasePodResponse, error) {
			return released(r.GetPod(), r.GetPodUid()), nil
		},
	}) // in the controller: client.InCluster(client.WithTLS(caFile))
	defer stop()
	if err != nil {
		fmt.Println(err)
		return
	}

	answer, err := c.ReleasePod(context.Background(), &finalizerv1.ReleasePodRequest{
		Namespace:     "argo",
		Pod:           "hello-1",
		PodUid:        "0b1e7c52", // pod.UID: Captured is refused without it
		Captured:      true,
		MarkCompleted: true, // the label, in the same write
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(answer.GetResult().GetPod(), answer.GetResult().GetOutcome())
	// Output: hello-1 OUTCOME_RELEASED
}

// Argo Server frees the names of the pods whose nodes it is about to reset. A
// retry may go on once every pod is gone.
func ExampleClient_deleteWorkflowPods() {
	c, stop, err := start(&fakeService{
		delete: func(_ context.Context, _ int, r *finalizerv1.DeleteWorkflowPodsRequest) (*finalizerv1.DeleteWorkflowPodsResponse, error) {
			return &finalizerv1.DeleteWorkflowPodsResponse{Results: []*finalizerv1.PodResult{
				{NodeId: r.GetNodeIds()[0], Pod: "hello-1", Outcome: finalizerv1.Outcome_OUTCOME_DELETED},
				{NodeId: r.GetNodeIds()[1], Pod: "hello-2", Outcome: finalizerv1.Outcome_OUTCOME_NOT_CAPTURED, Message: "the pod still runs"},
			}}, nil
		},
	})
	defer stop()
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := c.DeleteWorkflowPods(ctx, &finalizerv1.DeleteWorkflowPodsRequest{
		Namespace:   "argo",
		Workflow:    "hello",
		WorkflowUid: "5e0d9a11",
		NodeIds:     []string{"hello-101", "hello-102"},
		Wait:        true,
		// One ID for each retry, the same when this very retry is repeated: here
		// the workflow's UID and the resourceVersion that the retry starts from.
		RequestId: "retry/5e0d9a11/48213",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, pod := range answer.GetResults() {
		switch pod.GetOutcome() {
		case finalizerv1.Outcome_OUTCOME_DELETED, finalizerv1.Outcome_OUTCOME_GONE, finalizerv1.Outcome_OUTCOME_NOT_FOUND:
			fmt.Printf("node %s can start again\n", pod.GetNodeId())
		default:
			fmt.Printf("node %s must wait: %s\n", pod.GetNodeId(), pod.GetMessage())
		}
	}
	// Output:
	// node hello-101 can start again
	// node hello-102 must wait: the pod still runs
}

// A work queue decides by the reason what becomes of an item.
func ExampleReason() {
	verdict := func(err error) string {
		switch client.Reason(err) {
		case finalizerv1.ErrorReason_ERROR_REASON_POD_REPLACED:
			return "done: another pod has the name"
		case finalizerv1.ErrorReason_ERROR_REASON_INVALID_ARGUMENT:
			return fmt.Sprintf("a fault in this program: %v", client.Violations(err))
		}
		if !client.IsRetriable(err) {
			return "for people to look at"
		}
		if after, ok := client.RetryAfter(err); ok {
			return fmt.Sprintf("again in %v", after)
		}
		return "again with back-off"
	}

	for _, err := range []error{
		fmt.Errorf("release argo/hello-1: %w", refusal(codes.FailedPrecondition, "POD_REPLACED", "the name has another UID")),
		refusal(codes.ResourceExhausted, "WORKFLOW_BUSY", "too many calls wait", retryIn(2*time.Second)),
		refusal(codes.Unavailable, "NO_LEADER", "no replica holds the lease"),
		errors.New("something else"),
	} {
		fmt.Println(verdict(err))
	}
	// Output:
	// done: another pod has the name
	// again in 2s
	// again with back-off
	// for people to look at
}

// A progress bar that ends when the last pod is gone.
func ExampleWaitGone() {
	c, stop, err := start(&fakeService{
		watch: func(_ int, _ *finalizerv1.WatchWorkflowPodsRequest, s watchStream) error { return steps(s, 2, 1, 0) },
	})
	defer stop()
	if err != nil {
		fmt.Println(err)
		return
	}

	err = client.WaitGone(context.Background(), c, "argo", "hello", "5e0d9a11", func(p *finalizerv1.Progress) {
		fmt.Println("pods left:", p.GetPods())
	})
	fmt.Println("error:", err)
	// Output:
	// pods left: 2
	// pods left: 1
	// pods left: 0
	// error: <nil>
}
