package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// fakeCore answers with what its fields say. A nil field is reached by no call
// of the test.
type fakeCore struct {
	add     func(context.Context, finalizer.AddRequest) (finalizer.Result, error)
	release func(context.Context, finalizer.ReleaseRequest) (finalizer.Result, error)
	bulk    func(context.Context, finalizer.BulkRequest) ([]finalizer.Result, error)
	get     func(ctx context.Context, namespace, name string) (finalizer.View, error)
	list    func(context.Context, finalizer.ListRequest) (finalizer.Page, error)
	watch   func(context.Context, finalizer.WatchRequest, func(finalizer.Step) error) error
}

func (c *fakeCore) AddFinalizer(ctx context.Context, r finalizer.AddRequest) (finalizer.Result, error) {
	return c.add(ctx, r)
}

func (c *fakeCore) ReleasePod(ctx context.Context, r finalizer.ReleaseRequest) (finalizer.Result, error) {
	return c.release(ctx, r)
}

func (c *fakeCore) Bulk(ctx context.Context, r finalizer.BulkRequest) ([]finalizer.Result, error) {
	return c.bulk(ctx, r)
}

func (c *fakeCore) GetPod(ctx context.Context, namespace, name string) (finalizer.View, error) {
	return c.get(ctx, namespace, name)
}

func (c *fakeCore) ListPods(ctx context.Context, r finalizer.ListRequest) (finalizer.Page, error) {
	return c.list(ctx, r)
}

func (c *fakeCore) Watch(ctx context.Context, r finalizer.WatchRequest, send func(finalizer.Step) error) error {
	return c.watch(ctx, r, send)
}

// failingCore answers each call with err.
func failingCore(err error) *fakeCore {
	return &fakeCore{
		add: func(context.Context, finalizer.AddRequest) (finalizer.Result, error) { return finalizer.Result{}, err },
		release: func(context.Context, finalizer.ReleaseRequest) (finalizer.Result, error) {
			return finalizer.Result{}, err
		},
		bulk: func(context.Context, finalizer.BulkRequest) ([]finalizer.Result, error) { return nil, err },
		get:  func(context.Context, string, string) (finalizer.View, error) { return finalizer.View{}, err },
		list: func(context.Context, finalizer.ListRequest) (finalizer.Page, error) { return finalizer.Page{}, err },
		watch: func(context.Context, finalizer.WatchRequest, func(finalizer.Step) error) error {
			return err
		},
	}
}

// unreachableCore fails the test with each call.
func unreachableCore(t *testing.T) *fakeCore {
	reached := func() { t.Error("the core was reached") }
	return &fakeCore{
		add: func(context.Context, finalizer.AddRequest) (finalizer.Result, error) {
			reached()
			return finalizer.Result{}, nil
		},
		release: func(context.Context, finalizer.ReleaseRequest) (finalizer.Result, error) {
			reached()
			return finalizer.Result{}, nil
		},
		bulk: func(context.Context, finalizer.BulkRequest) ([]finalizer.Result, error) { reached(); return nil, nil },
		get:  func(context.Context, string, string) (finalizer.View, error) { reached(); return finalizer.View{}, nil },
		list: func(context.Context, finalizer.ListRequest) (finalizer.Page, error) {
			reached()
			return finalizer.Page{}, nil
		},
		watch: func(context.Context, finalizer.WatchRequest, func(finalizer.Step) error) error { reached(); return nil },
	}
}

// running is a Frontend that serves.
type running struct {
	pb.FinalizerServiceClient

	conn *grpc.ClientConn
	url  string
	web  *http.Client
	log  *lockedBuffer
	stop func() error // ends Serve and returns its error; safe to call again
	end  context.CancelFunc
	done <-chan struct{}
}

func start(t *testing.T, core api.Core, change ...func(*Frontend)) *running {
	t.Helper()
	r := &running{log: new(lockedBuffer)}
	bound := make(chan Addresses, 1)
	f := Frontend{
		Core:            core,
		Log:             slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		GRPCAddress:     "127.0.0.1:0",
		HTTPAddress:     "127.0.0.1:0",
		ShutdownTimeout: 5 * time.Second,
		Listening:       func(a Addresses) { bound <- a },
	}
	for _, c := range change {
		c(&f)
	}
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = Serve(ctx, f)
	}()
	var at Addresses
	select {
	case at = <-bound:
	case <-done:
		end()
		t.Fatalf("Serve ended early: %v", result)
	}
	transport := &http.Transport{}
	r.web, r.url = &http.Client{Transport: transport}, "http://"+at.HTTP.String()
	conn, err := grpc.NewClient("passthrough:///"+at.GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.conn, r.FinalizerServiceClient = conn, pb.NewFinalizerServiceClient(conn)
	r.end, r.done = end, done
	r.stop = sync.OnceValue(func() error {
		end()
		<-done
		transport.CloseIdleConnections()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		return result
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	return r
}

// answer is what came back over REST.
type answer struct {
	code   int
	header http.Header
	body   string
}

// restStatus is google.rpc.Status as JSON.
type restStatus struct {
	Code    int              `json:"code"`
	Message string           `json:"message"`
	Details []map[string]any `json:"details"`
}

func (a answer) status(t *testing.T) restStatus {
	t.Helper()
	var st restStatus
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&st); err != nil {
		t.Fatalf("the body is not google.rpc.Status: %v: HTTP %d %s", err, a.code, a.body)
	}
	return st
}

func (s restStatus) detail(name string) map[string]any {
	for _, d := range s.Details {
		if d["@type"] == "type.googleapis.com/google.rpc."+name {
			return d
		}
	}
	return nil
}

func (s restStatus) reason() string {
	reason, _ := s.detail("ErrorInfo")["reason"].(string)
	return reason
}

func (r *running) rest(t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.web.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(out)}
}

// wantStatus checks code, reason and domain of an error over gRPC.
func wantStatus(t *testing.T, err error, row api.Row) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != row.Code || api.Reason(st) != row.ReasonName() {
		t.Errorf("over gRPC got %s/%q (%s), want %s/%s", st.Code(), api.Reason(st), st.Message(), row.Code, row.ReasonName())
	}
}

// lockedBuffer is a log that a test reads while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// lines returns the log entries with this message.
func (l *lockedBuffer) lines(t *testing.T, msg string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(l.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if entry["msg"] == msg {
			out = append(out, entry)
		}
	}
	return out
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
