package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// rawCodec sends bytes as they are: what a client in another language might.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }
func (rawCodec) Name() string                    { return "proto" }

func (r *running) raw(ctx context.Context, method string, body []byte) error {
	var out []byte
	return r.conn.Invoke(ctx, method, &body, &out, grpc.ForceCodec(rawCodec{}))
}

func (r *running) rawWatch(ctx context.Context, body []byte) error {
	s, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
		pb.FinalizerService_WatchWorkflowPods_FullMethodName, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return err
	}
	if err := s.SendMsg(&body); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	var out []byte
	return s.RecvMsg(&out)
}

func stringField(n protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), value)
}

func TestMalformedMessagesOverGRPCAreInvalidArgument(t *testing.T) {
	r := start(t, unreachableCore(t))
	row := rowOf(t, pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT)
	for _, tc := range []struct {
		name string
		body []byte
	}{
		{"a string that is not UTF-8", stringField(1, "ar\xffgo")},
		{"a string that is not UTF-8 in a later field", append(stringField(1, "argo"), stringField(2, "\xc3\x28")...)},
		{"garbage", []byte("garbage")},
		{"a field that is cut off", []byte{0x0a, 0x7f, 'a'}},
		{"a tag of number 0", []byte{0x00, 0x01}},
		{"an endless varint", bytes.Repeat([]byte{0xff}, 32)},
		{"our own mark, sent by a stranger", protowire.AppendVarint(protowire.AppendTag(nil, markField, protowire.VarintType), markMalformed)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, method := range []string{
				pb.FinalizerService_AddFinalizer_FullMethodName, pb.FinalizerService_ReleasePod_FullMethodName,
				pb.FinalizerService_DeleteWorkflowPods_FullMethodName, pb.FinalizerService_ReleaseWorkflowPods_FullMethodName,
				pb.FinalizerService_GetPod_FullMethodName, pb.FinalizerService_ListPods_FullMethodName,
			} {
				wantStatus(t, r.raw(t.Context(), method, tc.body), row)
			}
			wantStatus(t, r.rawWatch(t.Context(), tc.body), row)
		})
	}
}

func TestOversizeOverGRPC(t *testing.T) {
	r := start(t, unreachableCore(t))
	row := rowOf(t, pb.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE)
	t.Run("a message over 4 MiB", func(t *testing.T) {
		body := stringField(3, strings.Repeat("a", MaxMessage))
		wantStatus(t, r.raw(t.Context(), pb.FinalizerService_ReleasePod_FullMethodName, body), row)
		wantStatus(t, r.rawWatch(t.Context(), body), row)
	})
	t.Run("100,000 listed pods", func(t *testing.T) {
		_, err := r.DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Pods: refs(100_000)})
		wantStatus(t, err, row)
	})
	t.Run("90,000 listed nodes that fit get one violation", func(t *testing.T) {
		_, err := r.DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: make([]string, 90_000)})
		wantStatus(t, err, rowOf(t, pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT))
		if v := violations(err); len(v) != 1 {
			t.Errorf("violations %v", v)
		}
	})
	t.Run("10,000 bad node IDs get 20 violations", func(t *testing.T) {
		_, err := r.DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: make([]string, 10_000)})
		if v := violations(err); len(v) != 20 {
			t.Errorf("%d violations", len(v))
		}
	})
	// grpc-go refuses this one on reading its length, before any of our code.
	t.Run("a message over 16 MiB has the code without details", func(t *testing.T) {
		err := r.raw(t.Context(), pb.FinalizerService_ReleasePod_FullMethodName, make([]byte, hardMaxMessage+1))
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v", err)
		}
	})
}

// malformedHTTP never reaches the core.
var malformedHTTP = []struct {
	name, method, path, body string
	reason                   pb.ErrorReason
	header                   []string
}{
	{"broken JSON", "POST", "/v1/namespaces/a/pods/p:release", "{", bad, nil},
	{"no JSON at all", "POST", "/v1/namespaces/a/pods/p:release", "captured=true", bad, nil},
	{"only a space", "POST", "/v1/namespaces/a/pods/p:release", " ", bad, nil},
	{"an array", "POST", "/v1/namespaces/a/pods/p:release", "[]", bad, nil},
	{"null", "POST", "/v1/namespaces/a/workflows/w:deletePods", "null", bad, nil},
	{"an unknown field", "POST", "/v1/namespaces/a/pods/p:release", `{"forse":true}`, bad, nil},
	{"a field given twice", "POST", "/v1/namespaces/a/pods/p:release", `{"force":true,"force":false}`, bad, nil},
	{"a field given under both its names", "POST", "/v1/namespaces/a/pods/p:release", `{"podUid":"a","pod_uid":"b"}`, bad, nil},
	{"a string for a bool", "POST", "/v1/namespaces/a/pods/p:release", `{"force":"true"}`, bad, nil},
	{"a number for a string", "POST", "/v1/namespaces/a/pods/p:release", `{"podUid":1}`, bad, nil},
	{"an object for a list", "POST", "/v1/namespaces/a/workflows/w:deletePods", `{"nodeIds":{}}`, bad, nil},
	{"a string for a list", "POST", "/v1/namespaces/a/workflows/w:deletePods", `{"nodeIds":"n"}`, bad, nil},
	{"a null in a list", "POST", "/v1/namespaces/a/workflows/w:deletePods", `{"nodeIds":[null]}`, bad, nil},
	{"a number for a duration", "POST", "/v1/namespaces/a/workflows/w:deletePods", `{"all":true,"wait":true,"waitTimeout":5}`, bad, nil},
	{"a duration in minutes", "POST", "/v1/namespaces/a/workflows/w:deletePods", `{"all":true,"wait":true,"waitTimeout":"5m"}`, bad, nil},
	{"a duration beyond all measure", "POST", "/v1/namespaces/a/workflows/w:deletePods", `{"all":true,"wait":true,"waitTimeout":"99999999999999999999s"}`, bad, nil},
	{"garbage after the object", "POST", "/v1/namespaces/a/pods/p:release", `{"force":true} x`, bad, nil},
	{"a second object", "POST", "/v1/namespaces/a/pods/p:release", `{}{"force":true}`, bad, nil},
	{"JSON that is not UTF-8", "POST", "/v1/namespaces/a/pods/p:release", "{\"podUid\":\"\xff\"}", bad, nil},
	{"nesting without end", "POST", "/v1/namespaces/a/pods/p:release", strings.Repeat("[", 100_000), bad, nil},
	{"a body over 4 MiB", "POST", "/v1/namespaces/a/pods/p:release", `{"podUid":"` + strings.Repeat("a", MaxMessage) + `"}`, large, nil},
	{"a path that is not UTF-8", "GET", "/v1/namespaces/%ff/pods/p", "", bad, nil},
	{"an encoded path in lower case", "GET", "/v1/namespaces/..%2fx/pods/p", "", bad, nil},
	{"an encoded path in upper case", "GET", "/v1/namespaces/..%2Fx/pods/p", "", bad, nil},
	{"an encoded slash that makes another path", "POST", "/v1/namespaces/a%2Fpods%2Fp:release", "{}", unknown, nil},
	{"an encoded slash within the name", "POST", "/v1/namespaces/a/pods/p%2Feviction:release", "{}", bad, nil},
	{"dots that a proxy would clean", "GET", "/v1/namespaces/../pods/p", "", bad, nil},
	{"encoded dots", "GET", "/v1/namespaces/%2e%2e/pods/p", "", bad, nil},
	{"an encoded question mark", "GET", "/v1/namespaces/a/pods/p%3Fforce", "", bad, nil},
	{"an unknown query parameter", "GET", "/v1/pods?nope=1", "", bad, nil},
	{"a nested query parameter", "GET", "/v1/pods?namespace.x=1", "", bad, nil},
	{"a query parameter that the path sets", "GET", "/v1/namespaces/a/pods?namespace=b", "", bad, nil},
	{"a query parameter given twice", "GET", "/v1/pods?pageSize=1&pageSize=2", "", bad, nil},
	{"a query parameter under both its names", "GET", "/v1/pods?pageSize=1&page_size=2", "", bad, nil},
	{"a word for a number in the query", "GET", "/v1/pods?pageSize=many", "", bad, nil},
	{"a number beyond 32 bits in the query", "GET", "/v1/pods?pageSize=2147483648", "", bad, nil},
	{"an unknown word for an enum in the query", "GET", "/v1/pods?reason=NOPE", "", bad, nil},
	{"a query that cannot be decoded", "GET", "/v1/pods?pageSize=%zz", "", bad, nil},
	{"a query value that is not UTF-8", "GET", "/v1/pods?pageToken=%ff", "", bad, nil},
	{"an unknown query parameter of a watch", "GET", "/v1/namespaces/a/workflows/w/pods:watch?nope=1", "", bad, nil},
	{"a query beside a body", "POST", "/v1/namespaces/a/pods/p:release?force=true", "{}", bad, nil},
	{"a body beside a GET", "GET", "/v1/namespaces/a/pods/p", "{}", bad, nil},
	{"a timeout without a unit", "GET", "/v1/namespaces/a/pods/p", "", bad, []string{"Grpc-Timeout", "5"}},
	{"a negative timeout", "GET", "/v1/namespaces/a/pods/p", "", bad, []string{"Grpc-Timeout", "-5S"}},
	{"a timeout of nine digits", "GET", "/v1/namespaces/a/pods/p", "", bad, []string{"Grpc-Timeout", "999999999S"}},
	{"a browser that calls for another site", "POST", "/v1/namespaces/a/pods/p:release", "{}", denied, []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}},
}

const (
	bad     = pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT
	large   = pb.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE
	unknown = pb.ErrorReason_ERROR_REASON_UNKNOWN_METHOD
	denied  = pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED
)

func TestMalformedHTTPIsRefusedWithAStatus(t *testing.T) {
	r := start(t, unreachableCore(t))
	for _, tc := range malformedHTTP {
		t.Run(tc.name, func(t *testing.T) {
			a := r.rest(t, tc.method, tc.path, tc.body, tc.header...)
			if tc.reason == unknown {
				if a.status(t).reason() != "UNKNOWN_METHOD" {
					t.Errorf("got HTTP %d %s", a.code, a.body)
				}
				return
			}
			checkRESTError(t, a, rowOf(t, tc.reason))
		})
	}
}

func TestRawHTTPThatNoClientSends(t *testing.T) {
	r := start(t, unreachableCore(t))
	for _, tc := range []struct {
		name, request string
	}{
		{"dots in the path", "GET /v1/namespaces/a/../pods/p HTTP/1.1\r\nHost: localhost\r\n\r\n"},
		{"a path without a slash", "GET v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n"},
		{"a header over the limit", "GET /v1/pods HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("a", 128<<10) + "\r\n\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprint(conn, tc.request); err != nil {
				t.Fatal(err)
			}
			head := make([]byte, 12)
			if _, err := conn.Read(head); err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(head, []byte("HTTP/1.1 4")) {
				t.Errorf("answered %q", head)
			}
		})
	}
}

// A frame that announces a gigabyte is refused on its announcement.
func TestAnAnnouncedGigabyteIsNotWaitedFor(t *testing.T) {
	r := start(t, unreachableCore(t))
	frame := make([]byte, 5)
	binary.BigEndian.PutUint32(frame[1:], 1<<30)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+r.conn.Target()[len("passthrough:///"):]+pb.FinalizerService_GetPod_FullMethodName, bytes.NewReader(frame))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Grpc-Status"); got != fmt.Sprint(int(codes.ResourceExhausted)) {
		t.Errorf("grpc-status is %q", got)
	}
}

func TestAHostThatIsNotLoopbackIsRefusedUnlessListeningOpenly(t *testing.T) {
	ask := func(r *running, host string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/pods", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := r.web.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	local := start(t, failingCore(nil))
	for host, want := range map[string]int{
		"localhost": 200, "localhost:2749": 200, "127.0.0.1": 200, "[::1]:2749": 200, "[::1]": 200,
		"evil.example": 403, "evil.example:2749": 403, "localhost.evil.example": 403, "10.0.0.1:2749": 403,
	} {
		if got := ask(local, host); got != want {
			t.Errorf("Host %s: HTTP %d, want %d", host, got, want)
		}
	}
	open := start(t, failingCore(nil), func(f *Frontend) { f.AllowUnauthenticated = true })
	if got := ask(open, "finalizerd.argo.svc"); got != 200 {
		t.Errorf("an open service answers HTTP %d to its own name", got)
	}
}

func TestGoodRequestsReachTheCore(t *testing.T) {
	r := start(t, failingCore(nil))
	for method, err := range callAll(t.Context(), r) {
		if err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	for _, c := range restCalls {
		if a := r.rest(t, c.method, c.path, c.body); a.code != http.StatusOK {
			t.Errorf("%s %s: HTTP %d %s", c.method, c.path, a.code, a.body)
		} else if a.body == "" && strings.Contains(c.path, ":watch") {
			continue // a stream of no steps
		} else if !strings.HasSuffix(a.body, "}\n") || strings.HasSuffix(a.body, "\n\n") {
			t.Errorf("%s %s: the answer does not end in one newline, so that a terminal's prompt follows it: %q", c.method, c.path, a.body)
		}
	}
}
