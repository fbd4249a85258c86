package proxy_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/finalizerd/finalizerd/client/proxy"
)

// kube-apiserver takes leave of connections before it stops, and now and then
// with --goaway-chance. "Connection: close" makes Go's server do so.
func TestWritesSurviveAnAPIServerThatTakesLeaveOfConnections(t *testing.T) {
	const callers, each, leaves = 16, 60, 20
	body := bytes.Repeat([]byte("x"), 20_000)
	var served, left atomic.Int64
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		if !bytes.Equal(got, body) || r.ContentLength != int64(len(body)) {
			t.Errorf("the API server got %d bytes of %d", len(got), r.ContentLength)
		}
		if served.Add(1)%leaves == 0 {
			left.Add(1)
			w.Header().Set("Connection", "close")
		}
	}))
	at, through := start(t, proxy.Config{Upstream: upstream, CAFile: ca}), caller(t)
	var failed atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				req, err := http.NewRequestWithContext(t.Context(), "PUT", at+"/apis/argoproj.io/v1alpha1/namespaces/argo/workflows/a", bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := through.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				if resp.StatusCode != 200 {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if failed.Load() != 0 || served.Load() != callers*each || left.Load() < 10 {
		t.Errorf("%d of %d writes failed, %d were served, %d connections were left", failed.Load(), callers*each, served.Load(), left.Load())
	}
}

// A stream, whose length nobody knows, is passed on as it comes.
func TestBodiesOfUnknownLengthAreNotKept(t *testing.T) {
	first := make(chan struct{})
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 5))
		close(first)
		rest, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d %s", r.ContentLength, rest)
	}))
	read, write := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", start(t, proxy.Config{Upstream: upstream, CAFile: ca})+"/api/v1/a", read)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.WriteString(write, "first")
		<-first
		_, _ = io.WriteString(write, "second")
		_ = write.Close()
	}()
	resp, err := caller(t).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != "-1 second" {
		t.Errorf("%q %v", body, err)
	}
}

// Some callers close their sending half and wait: nothing was done, and a 200
// would say that it was.
func TestACallerWhoClosedHalfOfTheConnectionGetsNoAnswerMadeUp(t *testing.T) {
	reached, left := make(chan struct{}), make(chan struct{})
	upstream, ca := apiServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
		close(left)
	}))
	var log lockedBuffer
	at := start(t, proxy.Config{Upstream: upstream, CAFile: ca, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	conn, err := tls.Dial("tcp", strings.TrimPrefix(at, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "DELETE /api/v1/namespaces/a/configmaps/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-reached
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(conn)
	<-left
	if len(answer) > 0 {
		t.Errorf("answered %q though nothing was done", answer)
	}
	if log.String() != "" {
		t.Errorf("logged %s", log.String())
	}
}

// lockedBuffer is a buffer for many goroutines.
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
