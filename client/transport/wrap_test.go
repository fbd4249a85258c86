package transport_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/client"
	"github.com/finalizerd/finalizerd/client/transport"
)

var _ transport.Service = (*client.Client)(nil)

func TestManyCallersAtOnce(t *testing.T) {
	c := newCluster(t)
	var events sync.Map
	wrapped := transport.New(c.service(), transport.Options{
		AddFinalizer: true, Observe: func(e transport.Event) { events.Store(e, true) },
	})(inMemory{c})
	var all sync.WaitGroup
	for i := range 50 {
		name := fmt.Sprintf("p-%d", i)
		c.pod(name, "uid-"+name)
		c.mu.Lock()
		c.captured["uid-"+name] = i%2 == 0
		c.mu.Unlock()
		for _, r := range []struct{ method, path, media, body string }{
			{"PATCH", podsPath + "/" + name, merging, argoPatch},
			{"DELETE", podsPath + "/" + name, jsonType, background},
			{"GET", podsPath + "/" + name, "", ""},
			{"POST", podsPath, jsonType, strings.Replace(newPod(), `"name":"a"`, `"name":"new-`+name+`"`, 1)},
		} {
			all.Go(func() {
				resp, err := wrapped.RoundTrip(request(t.Context(), r.method, r.path, r.media, r.body))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode >= 500 {
					t.Errorf("%s %s: %d %v", r.method, r.path, resp.StatusCode, err)
				}
			})
		}
	}
	all.Wait()
	for i := range 50 {
		name := fmt.Sprintf("p-%d", i)
		meta := c.meta(name)
		if captured := i%2 == 0; captured && meta != nil {
			t.Errorf("%s is captured and deleted, and still there: %v", name, meta)
		} else if !captured && (meta == nil || len(c.finalizers(name)) == 0 || c.completed(name) != "false") {
			t.Errorf("%s is not captured and was let go: %v", name, meta)
		}
	}
}

// A body that is larger than is looked at must go on as a stream.
func TestALargeBodyIsNotBuffered(t *testing.T) {
	for _, known := range []bool{true, false} {
		left, wrote := io.Pipe()
		go func() {
			_, _ = io.WriteString(wrote, `{"metadata":{"finalizers":[],"annotations":{"a":"`)
			_, _ = io.WriteString(wrote, strings.Repeat("x", 100))
			_, _ = io.WriteString(wrote, `"}}}`)
			_ = wrote.Close()
		}()
		body := &closing{Reader: left}
		req := request(t.Context(), "PATCH", podPath, merging, "")
		req.Body, req.ContentLength = body, -1
		if known {
			req.ContentLength = 153
		}
		var got string
		next := inMemory{http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			all, _ := io.ReadAll(r.Body)
			got = string(all)
		})}
		resp, err := transport.New(newCluster(t).service(), transport.Options{MaxBody: 64})(next).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if want := `{"metadata":{"finalizers":[],"annotations":{"a":"` + strings.Repeat("x", 100) + `"}}}`; got != want || !body.closed() {
			t.Errorf("known length %v: got %q, closed %v", known, got, body.closed())
		}
	}
}

func TestWhatIsNotRecognisedReachesTheNextTransportItself(t *testing.T) {
	for _, uri := range []string{
		"/api/v1/namespaces/argo/pods?watch=true", "/api/v1/namespaces/argo/pods/a", "/api/v1/namespaces/argo/pods/a/log?follow=true",
		"/apis/argoproj.io/v1alpha1/namespaces/argo/workflows/a",
	} {
		var got *http.Request
		next := roundTrip(func(r *http.Request) (*http.Response, error) { got = r; return &http.Response{}, nil })
		req := httptest.NewRequestWithContext(t.Context(), "GET", uri, http.NoBody)
		if _, err := transport.New(newCluster(t).service(), transport.Options{})(next).RoundTrip(req); err != nil || got != req {
			t.Errorf("%s: the request was copied: %v", uri, err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestFaultsOnTheWayToTheAPIServerAreTheCallers(t *testing.T) {
	broken := errors.New("connection reset")
	for _, r := range []struct{ method, path, media, body string }{
		{"PATCH", podPath, merging, argoPatch}, {"DELETE", podPath, jsonType, background}, {"POST", podsPath, jsonType, newPod()},
	} {
		closed := &closing{Reader: strings.NewReader(r.body)}
		req := request(t.Context(), r.method, r.path, r.media, "")
		req.Body, req.ContentLength = closed, int64(len(r.body))
		next := roundTrip(func(*http.Request) (*http.Response, error) { return nil, broken })
		if _, err := transport.New(newCluster(t).service(), transport.Options{})(next).RoundTrip(req); !errors.Is(err, broken) || !closed.closed() {
			t.Errorf("%s: %v, closed %v", r.method, err, closed.closed())
		}
	}
}

func TestAServiceThatDoesNotAnswerIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1")
		c.block = make(chan struct{})
		began := time.Now()
		resp, body := c.do(transport.Options{Timeout: 2 * time.Second}, "PATCH", podPath, merging, argoPatch)
		if resp.StatusCode != 503 || time.Since(began) != 2*time.Second {
			t.Errorf("%d %s after %s", resp.StatusCode, body, time.Since(began))
		}
	})
}
