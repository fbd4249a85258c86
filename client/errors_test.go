package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestErrorsAreUnderstoodByTheirDetails(t *testing.T) {
	foreign, err := status.New(codes.Unavailable, "").WithDetails(&errdetails.ErrorInfo{Reason: "POD_REPLACED", Domain: "example.com"})
	if err != nil {
		t.Fatal(err)
	}
	faults := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
		{Field: "namespace", Description: "must not be empty"},
		{Field: "pods[3].uid", Description: "must not be empty"},
	}}
	type understood struct {
		Reason     finalizerv1.ErrorReason
		After      time.Duration
		HasAfter   bool
		Violations []client.Violation
		Retriable  bool
	}
	tests := map[string]struct {
		err  error
		want understood
	}{
		"no error":      {nil, understood{}},
		"a plain error": {errors.New("plain"), understood{}},
		"a refusal": {
			refusal(codes.FailedPrecondition, "POD_REPLACED", ""),
			understood{Reason: finalizerv1.ErrorReason_ERROR_REASON_POD_REPLACED},
		},
		"a refusal that was wrapped twice": {
			fmt.Errorf("sync: %w", fmt.Errorf("release: %w", refusal(codes.FailedPrecondition, "POD_NOT_CAPTURED", ""))),
			understood{Reason: finalizerv1.ErrorReason_ERROR_REASON_POD_NOT_CAPTURED},
		},
		"a refusal joined to another error": {
			errors.Join(errors.New("plain"), refusal(codes.FailedPrecondition, "POD_TERMINATING", "")),
			understood{Reason: finalizerv1.ErrorReason_ERROR_REASON_POD_TERMINATING},
		},
		"faulty fields": {
			fmt.Errorf("delete: %w", refusal(codes.InvalidArgument, "INVALID_ARGUMENT", "", faults)),
			understood{
				Reason: finalizerv1.ErrorReason_ERROR_REASON_INVALID_ARGUMENT,
				Violations: []client.Violation{
					{Field: "namespace", Description: "must not be empty"},
					{Field: "pods[3].uid", Description: "must not be empty"},
				},
			},
		},
		"a busy workflow": {
			refusal(codes.ResourceExhausted, "WORKFLOW_BUSY", "", retryIn(2*time.Second)),
			understood{Reason: finalizerv1.ErrorReason_ERROR_REASON_WORKFLOW_BUSY, After: 2 * time.Second, HasAfter: true, Retriable: true},
		},
		"a request that is too large is not retriable": {
			refusal(codes.ResourceExhausted, "REQUEST_TOO_LARGE", ""),
			understood{Reason: finalizerv1.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE},
		},
		"a throttling API server, wrapped": {
			fmt.Errorf("release: %w", refusal(codes.Unavailable, "API_THROTTLED", "", retryIn(time.Second))),
			understood{Reason: finalizerv1.ErrorReason_ERROR_REASON_API_THROTTLED, After: time.Second, HasAfter: true, Retriable: true},
		},
		"a negative delay is none": {
			refusal(codes.Unavailable, "API_THROTTLED", "", retryIn(-time.Second)),
			understood{Reason: finalizerv1.ErrorReason_ERROR_REASON_API_THROTTLED, HasAfter: true, Retriable: true},
		},
		"the deadline": {
			refusal(codes.DeadlineExceeded, "DEADLINE_EXCEEDED", ""),
			understood{Reason: finalizerv1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED},
		},
		"a reason of another domain":  {foreign.Err(), understood{Retriable: true}},
		"a reason of a later version": {refusal(codes.FailedPrecondition, "NEVER_HEARD_OF", ""), understood{}},
		"a lost connection":           {status.Error(codes.Unavailable, "connection refused"), understood{Retriable: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := understood{
				Reason:     client.Reason(tt.err),
				Violations: client.Violations(tt.err),
				Retriable:  client.IsRetriable(tt.err),
			}
			got.After, got.HasAfter = client.RetryAfter(tt.err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("understood (-want +got):\n%s", diff)
			}
		})
	}
}

// Each reason of the proto must survive the way from its wire form, which has no
// prefix.
func TestEveryReasonOfTheProtoIsKnown(t *testing.T) {
	for number, name := range finalizerv1.ErrorReason_name {
		if number == 0 {
			continue
		}
		err := refusal(codes.Internal, name[len("ERROR_REASON_"):], "")
		if got := client.Reason(err); got != finalizerv1.ErrorReason(number) {
			t.Errorf("%s came back as %v", name, got)
		}
	}
}

func TestAServiceThatNobodyServesIsRetriableAndFailsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := client.New(inMemory, client.WithInsecure(), client.WithDialOptions(
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				return nil, errors.New("connection refused")
			})))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begin := time.Now()
		_, err = c.ReleasePod(t.Context(), &finalizerv1.ReleasePodRequest{})
		if !client.IsRetriable(err) || client.Reason(err) != finalizerv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
			t.Errorf("ReleasePod: %v, want a retriable error without reason", err)
		}
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("it took %v to fail", d)
		}
	})
}
