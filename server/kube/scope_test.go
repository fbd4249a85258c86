package kube

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestNamespaceScopeWatchesNothingElse(t *testing.T) {
	var granted atomic.Bool
	first := func(namespace, name string) watched {
		m := object(name, namespace+name, 3, fin)
		m.Namespace = namespace
		return watched{first: []*metav1.PartialObjectMetadata{m}}
	}
	s := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		namespace := "a"
		if strings.Contains(r.URL.String(), "/namespaces/b/") || strings.Contains(r.URL.RawQuery, "metadata.name%3Db") {
			namespace = "b"
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods") && namespace == "b" && (!granted.Load() || r.URL.Query().Get("watch") == ""):
			sendJSON(t, w, 403, failure(403, metav1.StatusReasonForbidden, `pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "b"`, nil))
		case strings.HasSuffix(r.URL.Path, "/pods"):
			first(namespace, "p").serve(t, w, r)
		case strings.HasSuffix(r.URL.Path, "/workflows"):
			first(namespace, "w").serve(t, w, r)
		case r.URL.Path == "/api/v1/namespaces":
			first("", namespace).serve(t, w, r)
		}
	})
	c := s.client(t, Options{Namespaces: []string{"b", "a", "b"}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually(t, "B14: the right that one namespace lacks is named while the other works", func() bool {
		var e *finalizer.Error
		_, ok := c.Cache.Pod("a", "p")
		return ok && errors.As(c.Synced(), &e) && e.Verb == "list" && e.Resource == "pods" && strings.Contains(e.Message, `"b"`)
	})
	granted.Store(true)
	eventually(t, "B14: recovery without a restart", func() bool {
		return c.Synced() == nil && c.Seen.Synced() && c.WorkflowsSynced() && c.NamespacesSynced() && len(c.Faults()) == 0
	})
	for _, namespace := range []string{"a", "b"} {
		key := finalizer.WorkflowKey{Namespace: namespace, Name: "w"}
		if _, ok := c.Cache.Pod(namespace, "p"); !ok || c.Seen.ResourceVersion(key) != "3" {
			t.Errorf("namespace %s is not in the caches", namespace)
		}
		if _, ok := c.SeenNamespace(namespace); !ok {
			t.Errorf("namespace %s itself is not known", namespace)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var paths []string
	for _, q := range s.requests() {
		path, query, _ := strings.Cut(q.uri, "?")
		if i := strings.Index(query, "fieldSelector="); i >= 0 {
			selector, _, _ := strings.Cut(query[i:], "&")
			path += "?" + selector
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	want := []string{
		"/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods",
		"/api/v1/namespaces?fieldSelector=metadata.name%3Da", "/api/v1/namespaces?fieldSelector=metadata.name%3Db",
		"/apis/argoproj.io/v1alpha1/namespaces/a/workflows", "/apis/argoproj.io/v1alpha1/namespaces/b/workflows",
	}
	if diff := cmp.Diff(want, slices.Compact(paths)); diff != "" {
		t.Errorf("asked for (-want +got)\n%s", diff)
	}
}

func TestNamespaceScopeReadsAndWritesNothingElse(t *testing.T) {
	s := newAPIServer(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s", r.URL) })
	c := s.client(t, Options{Namespaces: []string{"a"}})
	calls := map[string]func() error{
		"Workflow": func() error { _, err := c.Reader.Workflow(t.Context(), wf("w")); return err },
		"Pod":      func() error { _, err := c.Reader.Pod(t.Context(), "ns", "p"); return err },
		"Pods":     func() error { _, err := c.Reader.Pods(t.Context(), wf("w")); return err },
		"Release":  func() error { _, err := c.Writer.Release(t.Context(), target, false); return err },
		"Unhide":   func() error { _, err := c.Writer.Unhide(t.Context(), target, true); return err },
		"Delete":   func() error { _, err := c.Writer.Delete(t.Context(), target); return err },
	}
	for name, call := range calls {
		if err := call(); finalizer.KindOf(err) != finalizer.KindNotServed {
			t.Errorf("%s outside of the scope: %v", name, err)
		}
	}
}
