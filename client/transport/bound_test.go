package transport_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/finalizerd/finalizerd/client/transport"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

// While the service is asked, the pod goes and its name gets a successor.
func TestWhatGoesPastTheServiceDoesNotHitTheSuccessor(t *testing.T) {
	for _, tc := range []struct{ name, method, contentType, body, sent string }{
		{"DELETE", "DELETE", jsonType, background,
			`{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"uid-1"},"propagationPolicy":"Background"}`},
		{"DELETE in protobuf", "DELETE", protobuf, argoDelete,
			`{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"uid-1"},"propagationPolicy":"Background"}`},
		{"DELETE without a body", "DELETE", "", "", `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"uid-1"}}`},
		{"merge patch", "PATCH", merging, `{"metadata":{"labels":{"workflows.argoproj.io/completed":"true"}}}`,
			`{"metadata":{"labels":{"workflows.argoproj.io/completed":"true"},"uid":"uid-1"}}`},
		{"strategic merge patch", "PATCH", strategically, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["` + fin + `"],"annotations":{"more":"yes"}}}`,
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["` + fin + `"],"annotations":{"more":"yes"},"uid":"uid-1"}}`},
		{"JSON patch", "PATCH", stepwise, `[{"op":"test","path":"/metadata/finalizers/0","value":"` + fin + `"},{"op":"remove","path":"/metadata/finalizers/0"}]`,
			`[{"op":"test","path":"/metadata/uid","value":"uid-1"},{"op":"test","path":"/metadata/finalizers/0","value":"` + fin + `"},` +
				`{"op":"remove","path":"/metadata/finalizers/0"}]`},
	} {
		for _, answer := range []struct {
			name   string
			err    error // nil: it does not answer
			action transport.Action
		}{
			{"bypass after silence", nil, transport.Bypassed},
			{"another instance's pod", refusal(codes.FailedPrecondition, "OTHER_INSTANCE", "not ours"), transport.Unmanaged},
		} {
			t.Run(tc.name+", "+answer.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t)
					c.pod("a", "uid-1")
					c.block = make(chan struct{})
					var successor object
					var replaced sync.WaitGroup
					replaced.Go(func() {
						synctest.Wait() // until the service is asked
						c.pod("a", "uid-2")
						successor = c.meta("a")
						if answer.err != nil {
							c.mu.Lock()
							defer c.mu.Unlock()
							c.fault = answer.err
							close(c.block)
						}
					})
					var events []transport.Action
					o := transport.Options{WhenDown: transport.Bypass, Observe: func(e transport.Event) { events = append(events, e.Action) }}
					resp, body := c.do(o, tc.method, podPath, tc.contentType, tc.body)
					replaced.Wait()
					if resp.StatusCode != 409 && resp.StatusCode != 422 {
						t.Errorf("%d %s", resp.StatusCode, body)
					}
					if diff := cmp.Diff(successor, c.meta("a")); diff != "" {
						t.Errorf("the successor was hit (-before +after):\n%s", diff)
					}
					if last := c.requests[len(c.requests)-1]; last.method != tc.method || last.dryRun || last.body != tc.sent {
						t.Errorf("the last request was %+v", last)
					}
					if !slices.Equal(events, []transport.Action{answer.action}) {
						t.Errorf("events %v", events)
					}
				})
			})
		}
	}
}

// The API server takes such a path for the one without.
func TestATrailingSlashHidesNothing(t *testing.T) {
	for _, tc := range []struct{ method, path, contentType, body, call string }{
		{"PATCH", podPath, merging, argoPatch, "release argo/a uid-1 mark"},
		{"DELETE", podPath, jsonType, background, deleteCall},
		{"POST", podsPath, jsonType, newPod(), deleteCall},
	} {
		t.Run(tc.method, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", terminating)
			c.captured["uid-1"] = true
			resp, body := c.do(transport.Options{}, tc.method, tc.path+"/", tc.contentType, tc.body)
			if resp.StatusCode >= 300 || !slices.Equal(c.calls, []string{tc.call}) {
				t.Errorf("%d %s, calls %q", resp.StatusCode, body, c.calls)
			}
			for _, r := range c.requests {
				if want := "/api/v1/namespaces/argo/pods/a"; r.method == "GET" && r.uri != want {
					t.Errorf("GET %s, want %s", r.uri, want)
				}
			}
		})
	}
}
