package server

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
)

func newGRPCServer(f Frontend, svc *api.Service, h *health.Server, d *drain, m *grpcprom.ServerMetrics) *grpc.Server {
	faults := statuses{log: f.Log}
	access := access{log: f.Log}
	deadline := deadlines{standard: f.DefaultDeadline}
	s := grpc.NewServer(
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(protocodec.Name)}),
		grpc.MaxRecvMsgSize(hardMaxMessage),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: 15 * time.Minute,
			Time:              time.Minute,
			Timeout:           20 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             10 * time.Second,
			PermitWithoutStream: true,
		}),
		// Outermost first. Metrics and the access log see statuses, not errors.
		grpc.ChainUnaryInterceptor(m.UnaryServerInterceptor(), access.unary, faults.unary, d.unary,
			recovery.UnaryServerInterceptor(), deadline.unary, refuseUnary),
		grpc.ChainStreamInterceptor(boundedNames(m.StreamServerInterceptor()), access.stream, faults.stream, d.stream,
			recovery.StreamServerInterceptor(), refuseStream),
		grpc.UnknownServiceHandler(unknownMethod),
	)
	pb.RegisterFinalizerServiceServer(s, svc)
	healthpb.RegisterHealthServer(s, h)
	reflection.Register(s)
	return s
}

func unknownMethod(_ any, ss grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(ss)
	return &api.Refusal{
		Reason:  pb.ErrorReason_ERROR_REASON_UNKNOWN_METHOD,
		Message: "unknown method " + short(name),
	}
}

// ours reports whether a method is the service's own, or unknown to all. The
// health and reflection services keep the statuses that their protocols define.
func ours(fullMethod string) bool {
	return !strings.HasPrefix(fullMethod, "/grpc.health.") && !strings.HasPrefix(fullMethod, "/grpc.reflection.")
}

// boundedNames keeps method names that a caller made up out of the labels of
// metrics.
func boundedNames(next grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		if !knownStream(info.FullMethod) {
			info = &grpc.StreamServerInfo{FullMethod: "/unknown/unknown"}
		}
		return next(srv, ss, info, h)
	}
}

func knownStream(fullMethod string) bool {
	switch fullMethod {
	case pb.FinalizerService_WatchWorkflowPods_FullMethodName, healthpb.Health_Watch_FullMethodName,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo":
		return true
	}
	return false
}

// statuses is the one place where errors become statuses, and where the causes
// that are not sent are logged.
type statuses struct{ log *slog.Logger }

func (s statuses) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	return resp, s.convert(ctx, info.FullMethod, err)
}

func (s statuses) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return s.convert(ss.Context(), info.FullMethod, next(srv, ss))
}

func (s statuses) convert(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	var p *recovery.PanicError
	if errors.As(err, &p) {
		s.log.ErrorContext(ctx, "panic in a call", "method", method, "panic", p.Panic, "stack", string(p.Stack))
		return api.StatusOf(&plainError{}).Err()
	}
	if !ours(method) {
		return err
	}
	st := api.StatusOf(err)
	switch st.Code() {
	case codes.Internal:
		s.log.ErrorContext(ctx, "call failed", "method", method, "err", err)
	case codes.Unavailable:
		s.log.WarnContext(ctx, "call refused for now", "method", method, "err", err)
	}
	return st.Err()
}

// plainError is an error about which StatusOf knows nothing.
type plainError struct{}

func (*plainError) Error() string { return "panic" }

// deadlines gives unary calls without a deadline one, and lowers absurd ones.
type deadlines struct{ standard time.Duration }

func (d deadlines) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !ours(info.FullMethod) {
		return next(ctx, req)
	}
	limit := maxDeadline
	if _, ok := ctx.Deadline(); !ok {
		limit = min(d.standard+waitTimeout(req), maxDeadline)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return next(ctx, req)
}

// waitTimeout is what the caller itself said that it would wait.
func waitTimeout(req any) time.Duration {
	r, ok := req.(interface {
		GetWait() bool
		GetWaitTimeout() *durationpb.Duration
	})
	if !ok || !r.GetWait() || r.GetWaitTimeout() == nil {
		return 0
	}
	return min(max(r.GetWaitTimeout().AsDuration(), 0), api.MaxWaitTimeout)
}

func refuseUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := refused(req); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func refuseStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, &checkedStream{ss})
}

type checkedStream struct{ grpc.ServerStream }

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return refused(m)
}
