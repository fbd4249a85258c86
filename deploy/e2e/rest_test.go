package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// restConn carries the unary calls of the generated client over REST, so that one
// test tries both doors. The answer's HTTP status must agree with the code in
// its body.
type restConn struct{ base string }

// Invoke implements grpc.ClientConnInterface.
func (c restConn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	body, err := protojson.Marshal(args.(proto.Message))
	if err != nil {
		return err
	}
	verb, path, err := restRoute(method, body)
	if err != nil {
		return err
	}
	if verb == http.MethodGet {
		body = nil
	}
	code, answer, err := c.do(ctx, verb, path, body)
	if err != nil {
		return err
	}
	if code == http.StatusOK {
		return protojson.Unmarshal(answer, reply.(proto.Message))
	}
	var st spb.Status
	if err := protojson.Unmarshal(answer, &st); err != nil || st.GetCode() == 0 {
		return fmt.Errorf("HTTP %d with a body that is no google.rpc.Status (%v): %.500s", code, err, answer)
	}
	if want := httpOf(codes.Code(st.GetCode())); want != code {
		return fmt.Errorf("HTTP %d with code %s in the body, want HTTP %d", code, codes.Code(st.GetCode()), want)
	}
	return status.FromProto(&st).Err()
}

// NewStream implements grpc.ClientConnInterface; streams over REST have their own
// test.
func (c restConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("restConn carries unary calls only")
}

func (c restConn) do(ctx context.Context, verb, path string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, verb, c.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// restRoute is DESIGN's table of paths, written a second time on purpose.
func restRoute(method string, args []byte) (verb, path string, err error) {
	var fields map[string]any
	if err := json.Unmarshal(args, &fields); err != nil {
		return "", "", err
	}
	field := func(name string) string {
		s, _ := fields[name].(string)
		return url.PathEscape(s)
	}
	ns := "/v1/namespaces/" + field("namespace")
	switch method[strings.LastIndexByte(method, '/')+1:] {
	case "AddFinalizer":
		return http.MethodPost, ns + "/pods/" + field("pod") + ":addFinalizer", nil
	case "ReleasePod":
		return http.MethodPost, ns + "/pods/" + field("pod") + ":release", nil
	case "DeleteWorkflowPods":
		return http.MethodPost, ns + "/workflows/" + field("workflow") + ":deletePods", nil
	case "ReleaseWorkflowPods":
		return http.MethodPost, ns + "/workflows/" + field("workflow") + ":releasePods", nil
	case "GetPod":
		return http.MethodGet, ns + "/pods/" + field("pod"), nil
	case "ListPods":
		query := url.Values{}
		for name, value := range fields {
			if name != "namespace" {
				query.Set(name, fmt.Sprint(value))
			}
		}
		if field("namespace") == "" {
			ns = "/v1"
		}
		return http.MethodGet, ns + "/pods?" + query.Encode(), nil
	}
	return "", "", fmt.Errorf("no route for %s", method)
}

// httpOf is how gRPC's codes are told over HTTP.
func httpOf(c codes.Code) int {
	switch c {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// metric returns the value of a metric without labels, "" when there is none.
func (f *fixture) metric(d *daemon, name string) string {
	f.t.Helper()
	code, body, err := restConn{d.rest}.do(f.ctx, http.MethodGet, "/metrics", nil)
	if err != nil || code != http.StatusOK {
		f.t.Fatalf("/metrics: HTTP %d, %v", code, err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
