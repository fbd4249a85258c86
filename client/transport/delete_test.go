package transport_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/finalizerd/finalizerd/client/transport"
	"github.com/google/go-cmp/cmp"
)

const (
	jsonType   = "application/json"
	protobuf   = "application/vnd.kubernetes.protobuf"
	background = `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`
	deleteCall = "delete argo/a uid-1 of wf wf-uid"
)

func TestDeletes(t *testing.T) {
	through := []string{"GET", "DELETE (dry)", "service"}
	direct := []string{"GET", "DELETE (dry)", "service", "DELETE"}
	for _, tc := range []struct {
		name, query, contentType, body string
		pod                            []func(object)
		uncaptured                     bool
		calls                          []string
		trace                          []string
		code                           int
		action                         transport.Action
		left                           bool // the pod is still there
	}{
		{name: "Argo's, of a captured pod", body: background, calls: []string{deleteCall}, trace: through, code: 200, action: transport.Deleted},
		{name: "without a body", calls: []string{deleteCall}, trace: through, code: 200, action: transport.Deleted},
		{name: "that says in the query not to ignore read errors", query: "?ignoreStoreReadErrorWithClusterBreakingPotential=False",
			calls: []string{deleteCall}, trace: through, code: 200, action: transport.Deleted},
		{name: "of a pod that is not held", pod: []func(object){unheld}, calls: []string{deleteCall}, trace: through, code: 200, action: transport.Deleted},
		{name: "with a foreign finalizer", pod: []func(object){finalizers(fin, "x/other")},
			calls: []string{deleteCall}, trace: through, code: 200, action: transport.Deleted, left: true},
		{name: "with the UID of the pod", body: `{"preconditions":{"uid":"uid-1"}}`, calls: []string{deleteCall}, trace: through, code: 200, action: transport.Deleted},
		{name: "B15 of a pod that is not captured: it terminates and is held", uncaptured: true, body: background,
			calls: []string{deleteCall}, trace: direct, code: 200, action: transport.Direct, left: true},
		{name: "with a grace period: as told, then released", body: `{"gracePeriodSeconds":0}`,
			calls: []string{"release argo/a uid-1"}, trace: []string{"GET", "DELETE", "service"}, code: 200, action: transport.Direct},
		{name: "with a grace period in the query", query: "?gracePeriodSeconds=5",
			calls: []string{"release argo/a uid-1"}, trace: []string{"GET", "DELETE", "service"}, code: 200, action: transport.Direct},
		{name: "in the foreground, not captured: held", uncaptured: true, body: `{"propagationPolicy":"Foreground"}`,
			calls: []string{"release argo/a uid-1"}, trace: []string{"GET", "DELETE", "service"}, code: 200, action: transport.Direct, left: true},
		{name: "with a grace period, not held", pod: []func(object){unheld}, body: `{"gracePeriodSeconds":0}`,
			trace: []string{"GET", "DELETE"}, code: 200, action: transport.Direct},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", tc.pod...)
			c.captured["uid-1"] = !tc.uncaptured
			var events []transport.Action
			resp, body := c.do(transport.Options{Observe: func(e transport.Event) { events = append(events, e.Action) }},
				"DELETE", podPath+tc.query, tc.contentType, tc.body)
			if resp.StatusCode != tc.code || !strings.Contains(body, `"uid":"uid-1"`) || !strings.Contains(body, "deletionTimestamp") {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if diff := cmp.Diff(tc.calls, c.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.trace, c.trace()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if !slices.Equal(events, []transport.Action{tc.action}) {
				t.Errorf("events %v", events)
			}
			if meta := c.meta("a"); (meta != nil) != tc.left || meta != nil && meta["deletionTimestamp"] == nil {
				t.Errorf("left: %v", meta)
			}
			for _, r := range c.requests {
				if r.method == "DELETE" && !strings.Contains(r.body, `"preconditions":{"uid":"uid-1"}`) {
					t.Errorf("a DELETE without the UID: %+v", r)
				}
				if query := strings.Contains(r.body, `"gracePeriodSeconds":5`); r.method == "DELETE" && strings.Contains(tc.query, "=5") && !query {
					t.Errorf("the options of the query are lost: %+v", r)
				}
			}
		})
	}
}

func TestDeletesThatPassThroughAsTheyAre(t *testing.T) {
	for _, tc := range []struct {
		name, path, contentType, body string
		pod                           []func(object)
		forbid                        string
	}{
		{name: "a collection", path: podsPath + "?labelSelector=a"},
		{name: "another resource", path: "/api/v1/namespaces/argo/secrets/a"},
		{name: "a dry run in the query", path: podPath + "?dryRun=All"},
		{name: "a dry run in the body", body: `{"dryRun":["All"]}`},
		{name: "protobuf", contentType: protobuf, body: "k8s\x00\n\x0f\n\x02v1"},
		{name: "no JSON", body: "{"},
		{name: "a query that the API server refuses", path: podPath + "?gracePeriodSeconds=soon"},
		{name: "the UID of another pod: the API server's 409", body: `{"preconditions":{"uid":"uid-0"}}`},
		{name: "that ignores read errors", body: `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`},
		{name: "that ignores read errors, in the query", path: podPath + "?ignoreStoreReadErrorWithClusterBreakingPotential=true"},
		{name: "that ignores read errors, in the query without a value", path: podPath + "?ignoreStoreReadErrorWithClusterBreakingPotential"},
		{name: "YAML", contentType: "application/yaml", body: "propagationPolicy: Background"},
		{name: "B7 a pod of a Job", pod: []func(object){ownedBy("batch/v1", "Job")}},
		{name: "a caller that may not read the pod", forbid: "GET"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", tc.pod...)
			c.captured["uid-1"] = true
			if tc.forbid != "" {
				c.forbid[tc.forbid] = true
			}
			if tc.path == "" {
				tc.path = podPath
			}
			if tc.contentType == "" {
				tc.contentType = jsonType
			}
			c.do(transport.Options{}, "DELETE", tc.path, tc.contentType, tc.body)
			sent := slices.DeleteFunc(slices.Clone(c.requests), func(s seen) bool { return s.method == "GET" })
			want := seen{method: "DELETE", uri: tc.path, contentType: tc.contentType, accept: "application/json, */*",
				authorization: "Bearer caller", body: tc.body, dryRun: strings.Contains(tc.path+tc.body, "dryRun")}
			if len(sent) != 1 || sent[0] != want || len(c.calls) > 0 {
				t.Errorf("the API server got %+v, want %+v; calls %q", sent, want, c.calls)
			}
		})
	}
}

func TestDeletesAreAnsweredAsKubernetesWould(t *testing.T) {
	for _, tc := range []struct {
		name  string
		set   func(*cluster)
		code  int
		calls int
	}{
		{"no such pod", func(c *cluster) { delete(c.pods, "argo/a") }, 404, 0},
		{"the caller may not delete", func(c *cluster) { c.forbid["DELETE"] = true }, 403, 0},
		{"the pod goes before the rehearsal", func(c *cluster) { c.before["DELETE"] = func() { delete(c.pods, "argo/a") } }, 404, 0},
		{"another pod has the name before the rehearsal", func(c *cluster) { c.before["DELETE"] = func() { c.pod("a", "uid-2") } }, 409, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1")
			c.captured["uid-1"], c.captured["uid-2"] = true, true
			tc.set(c)
			if resp, body := c.do(transport.Options{}, "DELETE", podPath, jsonType, background); resp.StatusCode != tc.code || len(c.calls) != tc.calls {
				t.Errorf("%d %s, calls %q", resp.StatusCode, body, c.calls)
			}
			if meta := c.meta("a"); meta != nil && meta["deletionTimestamp"] != nil {
				t.Error("a pod was deleted")
			}
		})
	}
}
