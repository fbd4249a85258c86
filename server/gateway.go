package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	gateway "github.com/finalizerd/finalizerd/gen/gateway/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
)

// newGateway returns the REST side, which calls the gRPC server behind lis as
// any client does, so that nothing is checked, counted or logged twice or not at
// all. Nothing is dialled before the first call.
//
// Answers have all scalar fields and lists, also empty ones, so that a client
// need not know the defaults.
func newGateway(lis *bufconn.Listener) (http.Handler, *grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///gateway",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithUnaryInterceptor(checkQueryUnary),
		grpc.WithStreamInterceptor(checkQueryStream),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, strictJSON{&runtime.JSONPb{
			MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true},
		}}),
		// An encoded slash stays encoded and so within its name, where
		// validation refuses it. UnescapingModeAllCharacters would take it for a
		// slash and answer another path than the one that was called.
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptSlash),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMiddlewares(rememberQuery),
		runtime.WithErrorHandler(restError),
		runtime.WithRoutingErrorHandler(routingError),
		runtime.WithStreamErrorHandler(func(_ context.Context, err error) *status.Status { return api.StatusOf(err) }),
	)
	if err := gateway.RegisterFinalizerServiceHandler(context.Background(), mux, conn); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("gateway: %w", err), conn.Close())
	}
	return mux, conn, nil
}

// strictJSON refuses unknown fields, and anything after the first JSON value,
// which the gateway's own decoder skips. The body is in memory already.
type strictJSON struct{ *runtime.JSONPb }

// Marshal ends an answer with a newline, for those who read it in a terminal. The
// lines of a stream, which are no messages by themselves, have theirs already.
func (s strictJSON) Marshal(v any) ([]byte, error) {
	out, err := s.JSONPb.Marshal(v)
	if _, whole := v.(proto.Message); whole && err == nil {
		out = append(out, '\n')
	}
	return out, err
}

func (strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		msg, ok := v.(proto.Message)
		if !ok {
			return fmt.Errorf("cannot decode JSON into %T", v)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if len(body) == 0 {
			return io.EOF // no body: the path says it all
		}
		return protojson.Unmarshal(body, msg)
	})
}

// StreamContentType tells that a stream is one JSON object a line.
func (strictJSON) StreamContentType(any) string { return "application/x-ndjson" }

func restError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
	var routing *runtime.HTTPStatusError
	if errors.As(err, &routing) {
		err = malformed("the path is malformed: " + routing.Err.Error())
	}
	writeError(w, err)
}

func routingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	if code == http.StatusMethodNotAllowed {
		writeStatus(w, code, api.StatusOf(&api.Refusal{
			Reason:  pb.ErrorReason_ERROR_REASON_UNKNOWN_METHOD,
			Message: "this path does not take " + short(r.Method) + "; /openapi.json lists what it takes",
		}))
		return
	}
	writeError(w, noSuchPath())
}

type queryKey struct{}

// query is what a GET brought beside the fields of its message.
type query struct {
	values url.Values
	path   map[string]string
}

func rememberQuery(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, path map[string]string) {
		values, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil || !validUTF8(values) {
			writeError(w, malformed("the query is malformed"))
			return
		}
		next(w, r.WithContext(context.WithValue(r.Context(), queryKey{}, query{values, path})), path)
	}
}

func validUTF8(values url.Values) bool {
	for key, all := range values {
		if !utf8.ValidString(key) || !utf8.ValidString(strings.Join(all, "")) {
			return false
		}
	}
	return true
}

// checkQuery refuses parameters that are no field of the message, which the
// gateway ignores, and those that the path has set already.
func checkQuery(ctx context.Context, msg protoreflect.MessageDescriptor) error {
	q, _ := ctx.Value(queryKey{}).(query)
	seen := make(map[protoreflect.Name]bool)
	for key := range q.values {
		field := msg.Fields().ByTextName(key)
		if field == nil {
			field = msg.Fields().ByJSONName(key)
		}
		switch {
		case field == nil:
			return malformed(fmt.Sprintf("unknown query parameter %q", short(key)))
		case seen[field.Name()]:
			return malformed(fmt.Sprintf("query parameter %q is given twice", short(key)))
		}
		if _, inPath := q.path[string(field.Name())]; inPath {
			return malformed(fmt.Sprintf("query parameter %q is set by the path", short(key)))
		}
		seen[field.Name()] = true
	}
	return nil
}

func checkQueryUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if msg, ok := req.(proto.Message); ok {
		if err := checkQuery(ctx, msg.ProtoReflect().Descriptor()); err != nil {
			return err
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func checkQueryStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := checkQuery(ctx, new(pb.WatchWorkflowPodsRequest).ProtoReflect().Descriptor()); err != nil {
		return nil, err
	}
	s, err := stream(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &eagerStream{ClientStream: s}, nil
}

// eagerStream waits for the first message before it has headers, so that a watch
// that is refused becomes an HTTP error and not the first line of a stream. The
// core sends the snapshot at once.
type eagerStream struct {
	grpc.ClientStream

	first *pb.WatchWorkflowPodsResponse
}

func (s *eagerStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if err != nil {
		return nil, err
	}
	first := new(pb.WatchWorkflowPodsResponse)
	if err := s.ClientStream.RecvMsg(first); err == nil {
		s.first = first
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return md, nil
}

func (s *eagerStream) RecvMsg(m any) error {
	out, ok := m.(*pb.WatchWorkflowPodsResponse)
	if s.first == nil || !ok {
		return s.ClientStream.RecvMsg(m)
	}
	proto.Merge(out, s.first)
	s.first = nil
	return nil
}
