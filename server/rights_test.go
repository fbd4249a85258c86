package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func forbids(verb, resource, more string) *finalizer.Error {
	return &finalizer.Error{Kind: finalizer.KindForbidden, Verb: verb, Resource: resource, Message: "the account of the service may not " + verb + " " + resource + more}
}

func TestB14WhatIsLackingIsNamed(t *testing.T) {
	outage := &finalizer.Error{Kind: finalizer.KindUnavailable, Verb: "watch", Resource: "workflows", Message: "the API server cannot be reached", Err: errors.New("EOF")}
	unserved := &finalizer.Error{Kind: finalizer.KindUnavailable, Verb: "list", Resource: "workflows", Message: "not served?",
		Err: apierrors.NewNotFound(schema.GroupResource{Group: "argoproj.io", Resource: "workflows"}, "")}
	for name, tc := range map[string]struct {
		faults                     []*finalizer.Error
		rights, events, definition string // what is told; empty: nothing
	}{
		"nothing":                      {},
		"an outage passes by itself":   {faults: []*finalizer.Error{outage}},
		"a right on pods":              {faults: []*finalizer.Error{forbids("patch", "pods", "")}, rights: "may not patch pods; grant it"},
		"a right on nodes":             {faults: []*finalizer.Error{forbids("get", "nodes", "")}, rights: "may not get nodes; grant it"},
		"a right in each of two":       {faults: []*finalizer.Error{forbids("list", "pods", ` in namespace "a"`), forbids("list", "pods", ` in namespace "b"`)}, rights: `namespace "a"; the account of the service may not list pods in namespace "b"; grant`},
		"a right on events is no need": {faults: []*finalizer.Error{forbids("create", "events", "")}, events: "Events are lost: the account of the service may not create events"},
		"workflows that nobody serves": {faults: []*finalizer.Error{unserved}, definition: "not served? Until it is"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct {
				what   string
				answer error
				want   string
				notice bool
			}{
				{"rights", rights(tc.faults), tc.rights, false},
				{"events", events(tc.faults), tc.events, true},
				{"definition", definition(tc.faults), tc.definition, true},
			} {
				var n Notice
				switch {
				case c.want == "" && c.answer != nil, c.want != "" && (c.answer == nil || !strings.Contains(c.answer.Error(), c.want)):
					t.Errorf("%s says %v, want %q", c.what, c.answer, c.want)
				case c.answer != nil && errors.As(c.answer, &n) != c.notice:
					t.Errorf("%s fails readiness: %v", c.what, !c.notice)
				}
			}
		})
	}
}

func TestB14MissingRightsAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(newFaultMetrics(func() []*finalizer.Error {
		return []*finalizer.Error{forbids("list", "pods", " in a"), forbids("list", "pods", " in b"), forbids("create", "events", ""), {Kind: finalizer.KindUnavailable, Verb: "watch"}}
	}))
	text := scrape(reg)
	wantMetrics(t, text, `finalizerd_missing_rights{resource="pods",verb="list"} 2`, `finalizerd_missing_rights{resource="events",verb="create"} 1`)
	if strings.Contains(text, "watch") {
		t.Errorf("an outage is no missing right:\n%s", text)
	}
}

func TestANoticeIsToldAndFailsNothing(t *testing.T) {
	var answer atomic.Pointer[error]
	set := func(err error) { answer.Store(&err) }
	set(Notice("the CRD is not there"))
	r := start(t, unreachableCore(t), func(f *Frontend) {
		f.Checks = []Check{{Name: "workflows", Every: time.Millisecond, Run: func(context.Context) error { return *answer.Load() }}}
	})
	told := func(path, want string) {
		t.Helper()
		eventually(t, want, func() bool {
			a := r.rest(t, http.MethodGet, path, "")
			return a.code == http.StatusOK && a.body == want
		})
	}
	told("/readyz", "ok\nnotice: workflows: the CRD is not there\n")
	told("/readyz?verbose", "[+] workflows: ok, but the CRD is not there\nok\n")
	set(nil)
	told("/readyz", "ok\n")
	eventually(t, "the log tells of both", func() bool { return len(r.log.lines(t, "notice is void")) == 1 })
	if n := len(r.log.lines(t, "notice")); n != 1 {
		t.Errorf("the notice was logged %d times", n)
	}
}
