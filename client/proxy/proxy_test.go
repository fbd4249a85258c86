package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/finalizerd/finalizerd/client/proxy"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc"
)

// finalizerd answers every call with one outcome.
type finalizerd struct {
	calls chan string
	err   error
}

func (f finalizerd) ReleasePod(_ context.Context, r *finalizerv1.ReleasePodRequest, _ ...grpc.CallOption) (*finalizerv1.ReleasePodResponse, error) {
	f.calls <- "release " + r.GetPod()
	return &finalizerv1.ReleasePodResponse{Result: &finalizerv1.PodResult{Outcome: finalizerv1.Outcome_OUTCOME_RELEASED}}, f.err
}

func (f finalizerd) DeleteWorkflowPods(_ context.Context, r *finalizerv1.DeleteWorkflowPodsRequest, _ ...grpc.CallOption) (*finalizerv1.DeleteWorkflowPodsResponse, error) {
	f.calls <- "delete " + r.GetPods()[0].GetName()
	return &finalizerv1.DeleteWorkflowPodsResponse{Results: []*finalizerv1.PodResult{{Outcome: finalizerv1.Outcome_OUTCOME_DELETED}}}, f.err
}

// apiServer starts a TLS server with HTTP/2 and returns its URL and CA file.
func apiServer(t testing.TB, handler http.Handler) (*url.URL, string) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u, writeFile(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func writeFile(t testing.TB, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// start runs a proxy and returns its URL. It is stopped with the test.
func start(t testing.TB, c proxy.Config) string {
	t.Helper()
	at, _ := startCertified(t, c)
	return at
}

// startCertified also returns the certificate, in PEM.
func startCertified(t testing.TB, c proxy.Config) (at string, certificate []byte) {
	t.Helper()
	if c.Service == nil {
		c.Service = finalizerd{calls: make(chan string, 100)}
	}
	listening := make(chan net.Addr, 1)
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	c.Listening = func(a net.Addr, pem []byte) {
		certificate = pem
		listening <- a
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = 10 * time.Millisecond
	}
	p, err := proxy.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	at = "https://" + (<-listening).String()
	return at, certificate
}

// caller is a client of the proxy that does not check its certificate, as the
// sidecar's kubeconfig has it.
func caller(t testing.TB) *http.Transport {
	t.Helper()
	c := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 100}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// callers speak each protocol that the proxy does.
func callers(t testing.TB) map[string]*http.Transport {
	t.Helper()
	two := caller(t)
	two.Protocols = &http.Protocols{}
	two.Protocols.SetHTTP2(true)
	return map[string]*http.Transport{"HTTP/1.1": caller(t), "HTTP/2.0": two}
}

func send(t testing.TB, method, at, body string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := caller(t).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(answer)
}

func TestRequestsPassThroughByteForByte(t *testing.T) {
	type got struct {
		method, uri, body string
		header            http.Header
		proto             int
	}
	requests := make(chan got, 1)
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- got{r.Method, r.RequestURI, string(body), r.Header, r.ProtoMajor}
		w.Header().Set("Audit-Id", "7")
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte("k8s\x00\xff"))
	}))
	at := start(t, proxy.Config{Upstream: upstream, CAFile: ca})
	for _, tc := range []struct{ name, method, uri, body string }{
		{"a protobuf create", "POST", "/api/v1/namespaces/argo/pods?fieldManager=a", "k8s\x00\n\x09\n\x02v1\x12\x03Pod\xff\xfe"},
		{"escapes in path and query", "GET", "/api/v1/namespaces/argo/services/https:x:1/proxy/a%2Fb//c?q=a%20b;c&labelSelector=a%3Db", ""},
		{"a query that Go does not parse", "GET", "/api/v1/pods?a=%zz&b;c", ""},
		{"a large body", "PUT", "/api/v1/namespaces/argo/configmaps/a", strings.Repeat("x", 1<<20)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			header := http.Header{
				"Authorization": {"Bearer own"}, "Impersonate-User": {"ann"}, "Impersonate-Group": {"a", "b"}, "User-Agent": {"argo/v4"},
				"Content-Type": {"application/vnd.kubernetes.protobuf"}, "Accept-Encoding": {"gzip"}, "Accept": {"application/vnd.kubernetes.protobuf"},
			}
			resp, answer := send(t, tc.method, at+tc.uri, tc.body, header.Clone())
			r := <-requests
			if r.method != tc.method || r.uri != tc.uri || r.body != tc.body || r.proto != 2 {
				t.Errorf("the API server got %s %s over HTTP/%d, %d bytes", r.method, r.uri, r.proto, len(r.body))
			}
			for name, want := range header {
				if fmt.Sprint(r.header[name]) != fmt.Sprint(want) {
					t.Errorf("%s: %v, want %v", name, r.header[name], want)
				}
			}
			for name := range r.header {
				if header.Get(name) == "" && name != "Content-Length" {
					t.Errorf("the proxy added %s", name)
				}
			}
			if resp.StatusCode != 202 || answer != "k8s\x00\xff" || resp.Header.Get("Audit-Id") != "7" {
				t.Errorf("the caller got %d %q %v", resp.StatusCode, answer, resp.Header)
			}
		})
	}
}

func TestWatchesStreamLineByLineAndEndWithTheCaller(t *testing.T) {
	next, left := make(chan string), make(chan struct{})
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { left <- struct{}{} }()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case line := <-next:
				_, _ = io.WriteString(w, line+"\n")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	at := start(t, proxy.Config{Upstream: upstream, CAFile: ca})
	for protocol, through := range callers(t) {
		t.Run(protocol, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "GET", at+"/api/v1/namespaces/argo/pods?watch=true", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := through.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.Proto != protocol {
				t.Errorf("answered over %s", resp.Proto)
			}
			lines := bufio.NewReader(resp.Body)
			for i := range 5 {
				want := fmt.Sprintf(`{"type":"ADDED","n":%d}`, i)
				next <- want
				if got, err := lines.ReadString('\n'); err != nil || got != want+"\n" {
					t.Fatalf("line %d: %q %v", i, got, err)
				}
			}
			cancel()
			<-left
		})
	}
}

func TestUpgradesWorkBesideHTTP2(t *testing.T) {
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Errorf("HTTP/%d has no upgrade: %v", r.ProtoMajor, err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	}))
	at := start(t, proxy.Config{Upstream: upstream, CAFile: ca})
	send(t, "GET", at+"/api", "", nil) // an HTTP/2 connection is open
	for _, tc := range []struct {
		protocol string
		next     []string // what the caller negotiates
	}{
		{"SPDY/3.1", nil}, {"SPDY/3.1", []string{"http/1.1"}},
		{"websocket", nil}, {"websocket", []string{"h2", "http/1.1"}},
	} {
		t.Run(fmt.Sprint(tc.protocol, tc.next), func(t *testing.T) {
			conn, err := tls.Dial("tcp", strings.TrimPrefix(at, "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: tc.next})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST /api/v1/namespaces/argo/pods/a/exec?command=x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\n\r\n", tc.protocol)
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != tc.protocol {
				t.Fatalf("%+v %v", resp, err)
			}
			fmt.Fprintln(conn, "hello")
			if got, err := r.ReadString('\n'); got != "echo hello\n" {
				t.Errorf("%q %v", got, err)
			}
		})
	}
}

func TestRecognisedRequestsGoToTheServiceUnderAnUpstreamPath(t *testing.T) {
	const pod = `{"kind":"Pod","metadata":{"name":"a","uid":"u","ownerReferences":[{"apiVersion":"argoproj.io/v1alpha1","kind":"Workflow","name":"wf","uid":"w","controller":true}]}}`
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/k8s/api/prod/api/v1/namespaces/argo/pods/a" || r.Header.Get("Authorization") != "Bearer own" {
			t.Errorf("%s %s by %q", r.Method, r.URL.Path, r.Header.Get("Authorization"))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, pod)
	}))
	upstream.Path = "/k8s/api/prod/"
	f := finalizerd{calls: make(chan string, 1)}
	at := start(t, proxy.Config{Upstream: upstream, CAFile: ca, Service: f})
	resp, answer := send(t, "DELETE", at+"/api/v1/namespaces/argo/pods/a", "", http.Header{"Authorization": {"Bearer own"}})
	if got := <-f.calls; got != "delete a" || resp.StatusCode != 200 || answer != pod {
		t.Errorf("%s, %d %s", got, resp.StatusCode, answer)
	}
}
