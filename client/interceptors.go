package client

import (
	"context"
	"crypto/rand"
	"time"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// maxWait is the longest wait_timeout that the service accepts.
const maxWait = 24 * time.Hour

// deadline gives a call without a deadline one of d, plus the time that the
// call itself asks to wait. It covers all attempts together.
func deadline(d time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if _, has := ctx.Deadline(); has || d <= 0 {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		limit := d
		if r, ok := req.(*finalizerv1.DeleteWorkflowPodsRequest); ok && r.GetWait() {
			limit += min(max(r.GetWaitTimeout().AsDuration(), 0), maxWait)
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

// requestID gives a bulk write without a request_id a random one. Without it an
// attempt that gRPC repeats after UNAVAILABLE could act on pods that came into
// being since the first. The caller's message is not changed.
func requestID(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch r := req.(type) {
	case *finalizerv1.DeleteWorkflowPodsRequest:
		if r.GetRequestId() == "" && !r.GetValidateOnly() {
			r = proto.CloneOf(r)
			r.RequestId = rand.Text()
			req = r
		}
	case *finalizerv1.ReleaseWorkflowPodsRequest:
		if r.GetRequestId() == "" && !r.GetValidateOnly() {
			r = proto.CloneOf(r)
			r.RequestId = rand.Text()
			req = r
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}
