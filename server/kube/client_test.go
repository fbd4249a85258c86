package kube

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

var (
	_ finalizer.Cache  = (*Cache)(nil)
	_ finalizer.Held   = (*Cache)(nil)
	_ finalizer.Reader = (*Reader)(nil)
	_ finalizer.Writer = (*Writer)(nil)

	_ finalizer.Unhider = (*Writer)(nil)
	_ finalizer.Nodes   = (*Nodes)(nil)
	_ finalizer.Events  = (*Events)(nil)
)

// watched is a resource that streams its first list and then events.
type watched struct {
	first  []*metav1.PartialObjectMetadata
	events chan metav1.WatchEvent
}

func (r watched) serve(t *testing.T, w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	send := func(kind string, m *metav1.PartialObjectMetadata) {
		raw, err := json.Marshal(partial(m))
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", kind, raw)
		w.(http.Flusher).Flush()
	}
	for _, m := range r.first {
		send("ADDED", m)
	}
	send("BOOKMARK", &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "10", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	for {
		select {
		case e := <-r.events:
			send(e.Type, e.Object.Object.(*metav1.PartialObjectMetadata))
		case <-req.Context().Done():
			return
		}
	}
}

func TestRunFillsTheCaches(t *testing.T) {
	var granted atomic.Bool
	pods := watched{first: []*metav1.PartialObjectMetadata{object("p", "a", 3, fin)}, events: make(chan metav1.WatchEvent)}
	workflow := object("w", "wu", 4)
	namespace := object("ns", "n", 5)
	namespace.Namespace = ""
	namespaces := watched{first: []*metav1.PartialObjectMetadata{namespace}, events: make(chan metav1.WatchEvent)}
	s := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("labelSelector") != "" || q.Get("fieldSelector") != "" {
			t.Errorf("B10: a selector hides pods: %s", r.URL)
		}
		switch r.URL.Path {
		case "/api/v1/pods":
			// A plain list is the fallback; that it is refused brings the stream back.
			if !granted.Load() || r.URL.Query().Get("watch") == "" {
				sendJSON(t, w, 403, failure(403, metav1.StatusReasonForbidden, `pods is forbidden: User "u" cannot list resource "pods" in API group "" at the cluster scope`, nil))
				return
			}
			pods.serve(t, w, r)
		case "/apis/argoproj.io/v1alpha1/workflows":
			watched{first: []*metav1.PartialObjectMetadata{workflow}}.serve(t, w, r)
		case "/api/v1/namespaces":
			namespaces.serve(t, w, r)
		}
	})
	gone, changed := make(chan types.UID, 10), make(chan finalizer.WorkflowKey, 100)
	c := s.client(t, Options{
		OnPodGone: func(uid types.UID) { gone <- uid },
		OnChange:  func(key finalizer.WorkflowKey) { changed <- key },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually(t, "B14: Synced names verb and resource", func() bool {
		var e *finalizer.Error
		return errors.As(c.Synced(), &e) && e.Kind == finalizer.KindNotSynced && e.Verb == "list" && e.Resource == "pods"
	})
	granted.Store(true)
	eventually(t, "B14: recovery without a restart", func() bool {
		return c.Synced() == nil && c.WorkflowsSynced() && c.NamespacesSynced() && len(c.Faults()) == 0
	})
	if p, ok := c.Cache.Pod("ns", "p"); !ok || !p.Has(fin) {
		t.Errorf("B32: the pod of the first list: %+v", p)
	}
	if m, ok := c.SeenWorkflow(wf("w")); !ok || m.UID != "wu" {
		t.Errorf("the workflow of the first list: %+v", m)
	}
	for len(changed) > 0 {
		<-changed
	}
	ending := namespace.DeepCopy()
	ending.ResourceVersion, ending.DeletionTimestamp = "12", &metav1.Time{Time: time.Now()}
	namespaces.events <- event("MODIFIED", ending)
	if key := <-changed; key != wf("w") {
		t.Errorf("B35: told of %v, want the workflow whose namespace ends", key)
	}
	pods.events <- event("DELETED", object("p", "a", 13, fin))
	if uid := <-gone; uid != "a" {
		t.Errorf("told of %s", uid)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
}

func event(kind string, m *metav1.PartialObjectMetadata) metav1.WatchEvent {
	e := metav1.WatchEvent{Type: kind}
	e.Object.Object = m
	return e
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		if ok() {
			return
		}
		<-tick.C
	}
	t.Fatalf("%s: not within 20 seconds", what)
}

func TestCheckSaysWhatToDo(t *testing.T) {
	answering := func(code int) func(*rest.Config) {
		return func(c *rest.Config) {
			s := newAPIServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
			c.Host = s.URL
		}
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	cases := map[string]struct {
		edit func(*rest.Config)
		want string // empty: no error
	}{
		"all is well":            {answering(200), ""},
		"bad credentials":        {answering(401), "renew the token"},
		"no right":               {answering(403), "system:public-info-viewer"},
		"not an API server":      {answering(404), "is no API server"},
		"a sick API server":      {answering(500), "check its health"},
		"TLS missing":            {answering(400), "needs https://"},
		"nobody listens":         {func(c *rest.Config) { c.Host = "https://" + closed.Addr().String() }, "nothing listens"},
		"an unknown certificate": {func(c *rest.Config) { answering(200)(c); c.Insecure = false; c.CAData = nil }, "is not trusted"},
		"TLS to a plain port":    {func(c *rest.Config) { c.Host = strings.Replace(plain.URL, "http:", "https:", 1) }, "does not speak TLS"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cfg := &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
			tc.edit(cfg)
			c, err := New(cfg, Options{})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Check(t.Context())
			if (tc.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestAdvice(t *testing.T) {
	cases := map[string]struct {
		err  error
		want string
	}{
		"a name that does not resolve": {&net.DNSError{Err: "no such host"}, "cannot be resolved"},
		"a certificate for another":    {x509.HostnameError{Certificate: &x509.Certificate{}, Host: "h"}, "is not trusted"},
		"no answer in time":            {context.DeadlineExceeded, "does not answer in time"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := advice(tc.err, "host"); !strings.Contains(got, tc.want) || !strings.Contains(got, "host") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestNewRefusesABadConfiguration(t *testing.T) {
	if _, err := New(&rest.Config{Host: "https://host", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("none")}}, Options{}); err == nil {
		t.Error("a certificate that cannot be read was accepted")
	}
}
