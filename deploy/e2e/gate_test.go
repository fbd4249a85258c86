package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// gate is a proxy before the API server. It can hold the watches back, which
// makes a finalizerd behind it stale, and answer or delay single requests in the
// API server's place.
type gate struct {
	config *rest.Config // of a client that goes through the gate

	mu     sync.Mutex
	frozen chan struct{} // nil: watches flow; closed at thaw
	act    func(*http.Request) http.Handler
	told   func(*http.Response) error
}

// newGate opens a gate whose requests are those of the given user.
func newGate(t *testing.T, user *rest.Config) *gate {
	t.Helper()
	target, err := url.Parse(user.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(user)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{config: &rest.Config{Host: "http://" + listener.Addr().String()}}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ModifyResponse: func(resp *http.Response) error {
			if isWatch(resp.Request) {
				resp.Body = &gatedBody{ReadCloser: resp.Body, gate: g, ctx: resp.Request.Context()}
			}
			g.mu.Lock()
			told := g.told
			g.mu.Unlock()
			if told != nil {
				return told(resp)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		act := g.act
		g.mu.Unlock()
		if act != nil {
			if h := act(r); h != nil {
				h.ServeHTTP(w, r)
				return
			}
		}
		proxy.ServeHTTP(w, r)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		g.thaw()
		_ = server.Close()
		serving.Wait()
	})
	return g
}

// freeze holds back what the watches tell from now on, until thaw.
func (g *gate) freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen == nil {
		g.frozen = make(chan struct{})
	}
}

func (g *gate) thaw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen != nil {
		close(g.frozen)
		g.frozen = nil
	}
}

// intercept lets act choose who answers a request; nil from it: the API server.
func (g *gate) intercept(act func(*http.Request) http.Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.act = act
}

// answered lets told see each answer of the API server before the client does. An
// error of it takes the answer's place.
func (g *gate) answered(told func(*http.Response) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = told
}

func isWatch(r *http.Request) bool {
	w := r.URL.Query().Get("watch")
	return w == "true" || w == "1"
}

// isWriteOf reports whether the request writes to the pod.
func isWriteOf(r *http.Request, pod string) bool {
	return (r.Method == http.MethodPatch || r.Method == http.MethodDelete) && strings.HasSuffix(r.URL.Path, "/pods/"+pod)
}

// gatedBody passes on what was read only while the gate is not frozen.
type gatedBody struct {
	io.ReadCloser
	gate *gate
	ctx  context.Context
}

// Read implements io.Reader.
func (b *gatedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.gate.mu.Lock()
	frozen := b.gate.frozen
	b.gate.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-b.ctx.Done():
		}
	}
	return n, err
}
