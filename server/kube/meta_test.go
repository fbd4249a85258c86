package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestMetaStoreTellsOfChanges(t *testing.T) {
	cases := map[string]struct {
		versions bool
		want     string
	}{
		"each version of a workflow": {true, "adeleted=false@5 adeleted=false@8 bdeleted=true@2 adeleted=true@9"},
		"not of a namespace":         {false, "bdeleted=true@ adeleted=true@"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var told []string
			s := newMetaStore(func(n types.NamespacedName, m Meta) {
				told = append(told, fmt.Sprintf("%sdeleted=%v@%s", n.Name, m.Deleting, m.ResourceVersion))
			}, tc.versions, []scope{{}})
			f := s.feeds[0]
			_ = f.Replace([]any{object("a", "1", 1), object("b", "2", 2)}, "2")
			told = nil
			_ = f.Update(object("a", "1", 5))
			_ = f.Update(object("a", "1", 5)) // an echo is no news
			news := []any{object("a", "1", 8)}
			if tc.versions {
				_ = f.Replace([]any{object("a", "1", 8), object("b", "2", 2)}, "8")
			}
			_ = f.Replace(news, "8")
			_ = f.Delete(object("a", "1", 9))
			if got := strings.Join(told, " "); got != tc.want {
				t.Errorf("told %q, want %q", got, tc.want)
			}
			if _, ok := s.get(types.NamespacedName{Namespace: "ns", Name: "a"}); ok {
				t.Error("a deleted object is still known")
			}
		})
	}
}

func TestMetaFeedReplacesNoMoreThanItsScope(t *testing.T) {
	in := func(namespace, name string) *metav1.PartialObjectMetadata {
		m := object(name, name, 1)
		m.Namespace = namespace
		return m
	}
	cases := map[string]struct {
		scopes []scope
		first  []any // of the first feed, and of the second
		second []any
		want   string
	}{
		"workflows, a namespace a watch": {
			[]scope{{namespace: "x"}, {namespace: "y"}},
			[]any{in("x", "a"), in("x", "b")}, []any{in("y", "a")}, "x/a y/a",
		},
		"namespaces, one a watch": {
			[]scope{{name: "a"}, {name: "b"}},
			[]any{in("", "a")}, []any{in("", "b")}, "/a /b",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newMetaStore(nil, true, tc.scopes)
			_ = s.feeds[0].Replace(tc.first, "1")
			if len(s.unsynced()) != 1 {
				t.Errorf("unsynced %v after one of two first lists", s.unsynced())
			}
			_ = s.feeds[1].Replace(tc.second, "1")
			_ = s.feeds[0].Replace(tc.first[:1], "2")
			_ = s.feeds[1].Replace(tc.second, "2")
			var got []string
			for n := range s.objects {
				got = append(got, n.Namespace+"/"+n.Name)
			}
			slices.Sort(got)
			if strings.Join(got, " ") != tc.want || len(s.unsynced()) != 0 {
				t.Errorf("got %v, want %s; unsynced %v", got, tc.want, s.unsynced())
			}
		})
	}
}

func TestSeen(t *testing.T) {
	s := newAPIServer(t, nil)
	c := s.client(t, Options{})
	m := object("w", "wu", 7)
	m.Labels = map[string]string{finalizer.LabelCompleted: "true"}
	_ = c.workflows.feeds[0].Add(terminating(m, time.Now(), 0))
	n := terminating(object("ns", "n", 8), time.Now(), 0)
	n.Namespace = ""
	_ = c.namespaces.feeds[0].Add(n)
	got := c.Seen.Workflow(wf("w"))
	if !got.ReadAt.IsZero() || !got.Exists || got.UID != "wu" || !got.Deleting || !got.Completed || !got.NamespaceTerminating || got.Key != wf("w") || got.Nodes != nil {
		t.Errorf("got %+v", got)
	}
	if v := c.Seen.ResourceVersion(wf("w")); v != "7" {
		t.Errorf("version %q, want 7", v)
	}
	for _, key := range []finalizer.WorkflowKey{wf("other"), wf("")} {
		if got := c.Seen.Workflow(key); got.Exists || !got.NamespaceTerminating || c.Seen.ResourceVersion(key) != "" {
			t.Errorf("of %v: got %+v", key, got)
		}
	}
}

func TestSeenWaitsForWhatComesByItself(t *testing.T) {
	missingKind := failure(404, metav1.StatusReasonNotFound, "the server could not find the requested resource", &metav1.StatusDetails{})
	forbidden := failure(403, metav1.StatusReasonForbidden, `User "u" cannot watch resource "namespaces"`, nil)
	down := failure(503, metav1.StatusReasonServiceUnavailable, "x", nil)
	cases := map[string]struct {
		workflows, namespaces *metav1.Status // the failure of the watch; nil: its first list is in
		want                  bool
	}{
		"both lists are in":                            {nil, nil, true},
		"the CustomResourceDefinition is missing":      {missingKind, nil, true},
		"namespaces may not be watched":                {nil, forbidden, true},
		"the API server is down":                       {down, nil, false},
		"one is missing and the other has yet to come": {missingKind, down, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newAPIServer(t, nil).client(t, Options{})
			if c.Seen.Synced() {
				t.Error("synced before anything was heard")
			}
			hear := func(f *metaFeed, resource string, fails *metav1.Status) {
				if fails == nil {
					_ = f.Replace(nil, "1")
					return
				}
				watchFault(t.Context(), c.faults, f.scope.about(verbWatch, resource), statusError(fails))
			}
			hear(c.workflows.feeds[0], workflowsResource, tc.workflows)
			hear(c.namespaces.feeds[0], namespacesResource, tc.namespaces)
			if got := c.Seen.Synced(); got != tc.want {
				t.Errorf("got %v, want %v; faults %v", got, tc.want, c.Faults())
			}
		})
	}
}
