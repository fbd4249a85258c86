package server

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
)

// access writes one line a call: reads at debug, writes at info, and what was
// forced at warn with audit=true.
type access struct{ log *slog.Logger }

func (a access) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	start := time.Now()
	resp, err := next(ctx, req)
	a.write(ctx, info.FullMethod, req, time.Since(start), err)
	return resp, err
}

func (a access) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	start := time.Now()
	first := &firstMessage{ServerStream: ss}
	err := next(srv, first)
	a.write(ss.Context(), info.FullMethod, first.msg, time.Since(start), err)
	return err
}

// firstMessage remembers the request of a server stream.
type firstMessage struct {
	grpc.ServerStream

	msg any
}

func (s *firstMessage) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil && s.msg == nil {
		s.msg = m
	}
	return err
}

func (a access) write(ctx context.Context, method string, req any, took time.Duration, err error) {
	if !ours(method) {
		return
	}
	level := slog.LevelInfo
	if isRead(method) {
		level = slog.LevelDebug
	}
	forced := forces(req)
	if forced {
		level = slog.LevelWarn
	}
	if !a.log.Enabled(ctx, level) {
		return
	}
	st := status.Convert(err)
	attrs := []slog.Attr{
		slog.String("peer", caller(ctx)),
		slog.String("method", short(method[strings.LastIndexByte(method, '/')+1:])),
		slog.String("code", st.Code().String()),
		slog.Duration("took", took),
	}
	if err != nil {
		attrs = append(attrs, slog.String("reason", api.Reason(st)))
	}
	attrs = append(attrs, subject(req)...)
	if forced {
		attrs = append(attrs, slog.Bool("force", true), slog.Bool("audit", true))
	}
	a.log.LogAttrs(ctx, level, "call", attrs...)
}

func isRead(method string) bool {
	switch method {
	case pb.FinalizerService_AddFinalizer_FullMethodName, pb.FinalizerService_ReleasePod_FullMethodName,
		pb.FinalizerService_DeleteWorkflowPods_FullMethodName, pb.FinalizerService_ReleaseWorkflowPods_FullMethodName:
		return false
	}
	return true
}

func forces(req any) bool {
	r, ok := req.(interface{ GetForce() bool })
	return ok && r.GetForce()
}

// subject tells what a request is about. The values are a caller's, so they are
// cut to a sane length.
func subject(req any) []slog.Attr {
	var attrs []slog.Attr
	text := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, short(value)))
		}
	}
	if r, ok := req.(interface{ GetNamespace() string }); ok {
		text("namespace", r.GetNamespace())
	}
	if r, ok := req.(interface{ GetWorkflow() string }); ok {
		text("workflow", r.GetWorkflow())
	}
	if r, ok := req.(interface{ GetPod() string }); ok {
		text("pod", r.GetPod())
	}
	if r, ok := req.(interface{ GetPodUid() string }); ok {
		text("pod_uid", r.GetPodUid())
	}
	if r, ok := req.(interface{ GetRequestId() string }); ok {
		text("request_id", r.GetRequestId())
	}
	if r, ok := req.(interface{ GetValidateOnly() bool }); ok && r.GetValidateOnly() {
		attrs = append(attrs, slog.Bool("validate_only", true))
	}
	return attrs
}

// caller is the address of whoever calls. Only our own gateway, which comes
// through memory, is believed when it names another.
func caller(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return "unknown"
	}
	if p.Addr.Network() != bufconnNetwork {
		return p.Addr.String()
	}
	if xff := metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"); len(xff) > 0 {
		return "http:" + short(xff[len(xff)-1])
	}
	return "gateway"
}

// short cuts a caller's text.
func short(s string) string {
	const limit = 253
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}

// bufconnNetwork is what bufconn's addresses call their network.
const bufconnNetwork = "bufconn"
