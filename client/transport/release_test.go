package transport_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/finalizerd/finalizerd/client/transport"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	merging       = "application/merge-patch+json"
	strategically = "application/strategic-merge-patch+json"
	stepwise      = "application/json-patch+json"
	podPath       = "/api/v1/namespaces/argo/pods/a"
	podsPath      = "/api/v1/namespaces/argo/pods"
	completed     = "workflows.argoproj.io/completed"
)

// argoPatch is what Argo's clean-up sends.
const argoPatch = `{"metadata":{"finalizers":[],"labels":{"workflows.argoproj.io/completed":"true"},"resourceVersion":"1"}}`

func TestPatchesThatReleaseOrLabelGoThroughTheService(t *testing.T) {
	for _, tc := range []struct {
		name, contentType, body string
		pod                     []func(object)
		call                    string
		trace                   []string
		finalizers              []any
		marked                  bool
	}{
		{name: "Argo's clean-up", contentType: merging, body: argoPatch,
			call: "release argo/a uid-1 mark", marked: true},
		{name: "a clean-up that only takes the finalizer off", contentType: merging, body: `{"metadata":{"finalizers":null,"resourceVersion":"1"}}`,
			call: "release argo/a uid-1"},
		{name: "Argo's clean-up with an old resourceVersion", contentType: merging, body: strings.Replace(argoPatch, `"1"`, `"0"`, 1),
			call: "release argo/a uid-1 mark", marked: true},
		{name: "a media type with parameters", contentType: merging + "; charset=utf-8", body: argoPatch,
			call: "release argo/a uid-1 mark", marked: true},
		{name: "the label alone on a held pod", contentType: merging, body: `{"metadata":{"labels":{"workflows.argoproj.io/completed":"true"}}}`,
			call: "release argo/a uid-1 mark", marked: true},
		{name: "B43 the label alone on a pod that is not held", contentType: merging, body: `{"metadata":{"labels":{"workflows.argoproj.io/completed":"true"}}}`,
			pod: []func(object){unheld}, call: "release argo/a uid-1 mark", marked: true},
		{name: "the label beside a list that keeps the finalizer", contentType: merging, body: `{"metadata":{"finalizers":["` + fin + `"],"labels":{"workflows.argoproj.io/completed":"true"}}}`,
			call: "release argo/a uid-1 mark", marked: true},
		{name: "the label and the finalizer put on a pod that is not held", contentType: merging, body: `{"metadata":{"finalizers":["` + fin + `"],"labels":{"workflows.argoproj.io/completed":"true"}}}`,
			pod: []func(object){unheld}, call: "release argo/a uid-1 mark", marked: true},
		{name: "the pod's own UID named", contentType: merging, body: `{"metadata":{"uid":"uid-1","finalizers":[]}}`,
			call: "release argo/a uid-1"},
		{name: "foreign finalizers that stay", contentType: merging, body: `{"metadata":{"finalizers":["x/other","x/another"]}}`,
			pod: []func(object){finalizers("x/other", fin, "x/another")}, call: "release argo/a uid-1", finalizers: []any{"x/other", "x/another"}},
		{name: "strategic merge by directive", contentType: strategically, body: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["` + fin + `"],"$setElementOrder/finalizers":["x/other"]}}`,
			pod: []func(object){finalizers(fin, "x/other")}, call: "release argo/a uid-1", finalizers: []any{"x/other"}},
		{name: "strategic merge that clears the list", contentType: strategically, body: `{"metadata":{"finalizers":null}}`,
			call: "release argo/a uid-1"},
		{name: "JSON patch by index with a test", contentType: stepwise,
			body: `[{"op":"test","path":"/metadata/finalizers/1","value":"` + fin + `"},{"op":"remove","path":"/metadata/finalizers/1"}]`,
			pod:  []func(object){finalizers("x/other", fin)}, call: "release argo/a uid-1", finalizers: []any{"x/other"}},
		{name: "JSON patch by an index from the end", contentType: stepwise,
			body: `[{"op":"test","path":"/metadata/finalizers/-1","value":"` + fin + `"},{"op":"remove","path":"/metadata/finalizers/-1"}]`,
			pod:  []func(object){finalizers("x/other", fin)}, call: "release argo/a uid-1", finalizers: []any{"x/other"}},
		{name: "JSON patch by the last index from the end", contentType: stepwise, body: `[{"op":"remove","path":"/metadata/finalizers/-2"}]`,
			pod: []func(object){finalizers(fin, "x/other")}, call: "release argo/a uid-1", finalizers: []any{"x/other"}},
		{name: "JSON patch that appends by an index from the end", contentType: stepwise,
			body: `[{"op":"add","path":"/metadata/finalizers/-1","value":"x/new"},{"op":"remove","path":"/metadata/finalizers/0"}]`,
			call: "release argo/a uid-1", finalizers: []any{"x/new"}, trace: []string{"GET", "PATCH (dry)", "PATCH", "service", "GET"}},
		{name: "JSON patch of the list and of the label", contentType: stepwise,
			body: `[{"op":"remove","path":"/metadata/finalizers"},{"op":"replace","path":"/metadata/labels/workflows.argoproj.io~1completed","value":"true"}]`,
			call: "release argo/a uid-1 mark", marked: true},

		{name: "more labels: the rest is written after the release", contentType: merging,
			body: `{"metadata":{"finalizers":[],"labels":{"more":"yes","workflows.argoproj.io/completed":"true"}}}`,
			call: "release argo/a uid-1 mark", marked: true, trace: []string{"GET", "PATCH (dry)", "service", "PATCH", "GET"}},
		{name: "a foreign finalizer goes too: written after the release", contentType: merging, body: `{"metadata":{"finalizers":["x/stays"]}}`,
			pod: []func(object){finalizers("x/stays", "x/goes", fin)}, call: "release argo/a uid-1",
			finalizers: []any{"x/stays"}, trace: []string{"GET", "PATCH (dry)", "service", "PATCH", "GET"}},
		{name: "a foreign finalizer takes over: written before the release", contentType: strategically,
			body: `{"metadata":{"finalizers":["x/new"],"$deleteFromPrimitiveList/finalizers":["` + fin + `"]}}`,
			call: "release argo/a uid-1", finalizers: []any{"x/new"}, trace: []string{"GET", "PATCH (dry)", "PATCH", "service", "GET"}},
		{name: "JSON patch with more steps", contentType: stepwise,
			body: `[{"op":"remove","path":"/metadata/finalizers/0"},{"op":"add","path":"/metadata/annotations/more","value":"yes"}]`,
			call: "release argo/a uid-1", trace: []string{"GET", "PATCH (dry)", "service", "PATCH", "GET"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", tc.pod...)
			c.captured["uid-1"] = true
			var events []transport.Action
			resp, body := c.do(transport.Options{Observe: func(e transport.Event) { events = append(events, e.Action) }},
				"PATCH", podPath+"?fieldManager=argo", tc.contentType, tc.body)
			if resp.StatusCode != 200 {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
			if diff := cmp.Diff([]string{tc.call}, c.calls); diff != "" {
				t.Errorf("calls of the service (-want +got):\n%s", diff)
			}
			if tc.trace == nil {
				tc.trace = []string{"GET", "PATCH (dry)", "service", "GET"}
			}
			if diff := cmp.Diff(tc.trace, c.trace()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if got := c.finalizers("a"); !slices.Equal(got, tc.finalizers) {
				t.Errorf("finalizers %v, want %v", got, tc.finalizers)
			}
			if got := c.completed("a") == "true"; got != tc.marked {
				t.Errorf("completed: %v", got)
			}
			if strings.Contains(tc.body, "more") && !strings.Contains(body, `"more":"yes"`) {
				t.Errorf("the rest of the patch is lost: %s", body)
			}
			var pod object
			if err := json.Unmarshal([]byte(body), &pod); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.meta("a"), pod["metadata"]); diff != "" {
				t.Errorf("the answer is not the pod as it is (-want +got):\n%s", diff)
			}
			if !slices.Equal(events, []transport.Action{transport.Released}) {
				t.Errorf("events %v", events)
			}
			for _, r := range c.requests {
				if r.authorization != "Bearer caller" {
					t.Errorf("%s went with the credentials %q", r, r.authorization)
				}
			}
		})
	}
}

// B43, the first half.
func TestB43ACleanUpByNameIsRefusedUntilTheSuccessorIsCaptured(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		pod        func(object)
	}{
		{"held successor", argoPatch, func(object) {}},
		{"successor that is not held, label only", `{"metadata":{"labels":{"workflows.argoproj.io/completed":"true"}}}`, unheld},
		{"with more that must wait as well", `{"metadata":{"finalizers":[],"annotations":{"more":"yes"}}}`, func(object) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-2", tc.pod)
			before := c.meta("a")
			var events []transport.Event
			o := transport.Options{Observe: func(e transport.Event) { events = append(events, e) }}
			resp, body := c.do(o, "PATCH", podPath, merging, tc.body)
			var st struct {
				Kind, Reason string
				Code         int
			}
			if err := json.Unmarshal([]byte(body), &st); err != nil || resp.StatusCode != 409 || st.Kind != "Status" || st.Reason != "Conflict" || st.Code != 409 {
				t.Errorf("%d %s, want a Conflict", resp.StatusCode, body)
			}
			if diff := cmp.Diff(before, c.meta("a")); diff != "" {
				t.Errorf("the refused patch changed the pod:\n%s", diff)
			}
			if len(events) != 1 || events[0].Action != transport.Refused || events[0].Err == nil || events[0].Pod != "a" {
				t.Errorf("events %v", events)
			}
			c.captured["uid-2"] = true
			if resp, body = c.do(o, "PATCH", podPath, merging, tc.body); resp.StatusCode != 200 {
				t.Errorf("once captured: %d %s", resp.StatusCode, body)
			}
		})
	}
}

func TestPatchesThatPassThroughAsTheyAre(t *testing.T) {
	label := `{"metadata":{"labels":{"workflows.argoproj.io/completed":"true"}}}`
	for _, tc := range []struct {
		name, path, contentType, body string
		pod                           []func(object)
	}{
		{name: "a subresource", path: podPath + "/status", body: argoPatch},
		{name: "another resource", path: "/api/v1/namespaces/argo/configmaps/a", body: argoPatch},
		{name: "pods of another group", path: "/apis/metrics.k8s.io/v1/namespaces/argo/pods/a", body: argoPatch},
		{name: "a path behind the proxy subresource", path: "/api/v1/namespaces/x/services/y/proxy" + podPath, body: argoPatch},
		{name: "a name that is none", path: "/api/v1/namespaces/argo/pods/A%2fb", body: argoPatch},
		{name: "a dry run", path: podPath + "?dryRun=All", body: argoPatch},
		{name: "server-side apply", contentType: "application/apply-patch+yaml", body: `{"metadata":{"finalizers":[]}}`},
		{name: "CBOR", contentType: "application/apply-patch+cbor", body: "\xd9\xd9\xf7"},
		{name: "no media type", contentType: "-", body: argoPatch},
		{name: "no JSON", body: `{"metadata":`},
		{name: "metadata that is no object", body: `{"metadata":[]}`},
		{name: "labels that are no object", body: `{"metadata":{"labels":7,"finalizers":[]}}`},
		{name: "finalizers that are no list", body: `{"metadata":{"finalizers":7}}`},
		{name: "no metadata", body: `{"spec":{}}`},
		{name: "other labels", body: `{"metadata":{"labels":{"a":"b"}}}`},
		{name: "the label set to false", body: `{"metadata":{"labels":{"workflows.argoproj.io/completed":"false"}}}`},
		{name: "a list that keeps the finalizer", body: `{"metadata":{"finalizers":["` + fin + `"]}}`},
		{name: "strategic merge that adds a finalizer", contentType: strategically, body: `{"metadata":{"finalizers":["x/new"]}}`},
		{name: "a strategic directive that replaces", contentType: strategically, body: `{"metadata":{"$patch":"replace","finalizers":[]}}`},
		{name: "foreign finalizers of a pod that is not held", body: `{"metadata":{"finalizers":[]}}`, pod: []func(object){finalizers("x/other")}},
		{name: "JSON patch of other things", contentType: stepwise, body: `[{"op":"add","path":"/metadata/labels/a","value":"b"}]`},
		{name: "JSON patch of metadata as a whole", contentType: stepwise, body: `[{"op":"test","path":"/metadata/finalizers/0","value":"no"},{"op":"replace","path":"/metadata","value":{}}]`},
		{name: "JSON patch that will fail", contentType: stepwise, body: `[{"op":"remove","path":"/metadata/finalizers/7"}]`},
		{name: "JSON patch that will fail from the end", contentType: stepwise, body: `[{"op":"remove","path":"/metadata/finalizers/-2"}]`},
		{name: "JSON patch of another's finalizer from the end", contentType: stepwise, body: `[{"op":"remove","path":"/metadata/finalizers/-1"}]`,
			pod: []func(object){finalizers(fin, "x/other")}},
		{name: "the UID of another pod", body: `{"metadata":{"uid":"uid-0","finalizers":[]}}`},
		{name: "B7 a pod of a Job", body: label, pod: []func(object){ownedBy("batch/v1", "Job")}},
		{name: "B7 a pod of a Workflow of another group", body: label, pod: []func(object){ownedBy("example.com/v1", "Workflow")}},
		{name: "B7 a pod of a WorkflowArtifactGCTask", body: label, pod: []func(object){ownedBy("argoproj.io/v1alpha1", "WorkflowArtifactGCTask")}},
		{name: "B7 a Workflow that is not the controller", body: label, pod: []func(object){noController}},
		{name: "more than is looked at", body: `{"metadata":{"finalizers":[],"annotations":{"big":"` + strings.Repeat("x", 4000) + `"}}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", tc.pod...)
			c.captured["uid-1"] = true
			if tc.path == "" {
				tc.path = podPath
			}
			switch tc.contentType {
			case "":
				tc.contentType = merging
			case "-":
				tc.contentType = ""
			}
			c.do(transport.Options{MaxBody: 2000}, "PATCH", tc.path, tc.contentType, tc.body)
			if len(c.calls) > 0 {
				t.Errorf("the service was called: %q", c.calls)
			}
			// Looking at the pod is all that may come before.
			sent := slices.DeleteFunc(slices.Clone(c.requests), func(s seen) bool { return s.method == "GET" })
			want := seen{method: "PATCH", uri: tc.path, contentType: tc.contentType, accept: "application/json, */*",
				authorization: "Bearer caller", body: tc.body, dryRun: strings.Contains(tc.path, "dryRun")}
			if len(sent) != 1 || sent[0] != want {
				t.Errorf("the API server got %+v, want %+v", sent, want)
			}
		})
	}
}

func TestTheCallerGetsWhatKubernetesWouldAnswer(t *testing.T) {
	t.Run("the pod goes with its last finalizer: 200 with its last state", func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1", terminating)
		c.captured["uid-1"] = true
		resp, body := c.do(transport.Options{}, "PATCH", podPath, merging, argoPatch)
		if resp.StatusCode != 200 || !strings.Contains(body, "uid-1") || strings.Contains(body, fin) || !strings.Contains(body, `completed":"true"`) {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		if c.meta("a") != nil {
			t.Error("the pod is still there")
		}
	})
	t.Run("a successor has taken the name meanwhile: the last state of ours", func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1", terminating)
		c.captured["uid-1"] = true
		c.before["PATCH"] = func() { c.before["GET"] = func() { c.pod("a", "uid-2") } }
		if resp, body := c.do(transport.Options{}, "PATCH", podPath, merging, argoPatch); resp.StatusCode != 200 || !strings.Contains(body, "uid-1") {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("there is no such pod: 404", func(t *testing.T) {
		c := newCluster(t)
		if resp, body := c.do(transport.Options{}, "PATCH", podPath, merging, argoPatch); resp.StatusCode != 404 || !strings.Contains(body, "NotFound") {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("the pod is replaced between look and release: 409 and nothing is written", func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1")
		c.before["PATCH"] = func() { c.pod("a", "uid-2"); c.captured["uid-2"] = true }
		if resp, body := c.do(transport.Options{}, "PATCH", podPath, merging, argoPatch); resp.StatusCode != 409 {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		if c.completed("a") != "false" {
			t.Error("the successor was labelled")
		}
	})
	t.Run("the pod is replaced between release and rest: the successor is untouched", func(t *testing.T) {
		for _, r := range []struct{ media, body string }{
			{merging, `{"metadata":{"finalizers":["x/other","x/goes"],"annotations":{"more":"yes"}}}`},
			{stepwise, `[{"op":"remove","path":"/metadata/finalizers/0"},{"op":"add","path":"/metadata/annotations/more","value":"yes"}]`},
			{merging, `{"metadata":{"finalizers":["x/other"]}}`},
		} {
			c := newCluster(t)
			c.pod("a", "uid-1", finalizers(fin, "x/other", "x/goes"))
			c.captured["uid-1"] = true
			c.before["rest"] = func() { c.pod("a", "uid-2", finalizers("x/goes")) }
			c.do(transport.Options{}, "PATCH", podPath, r.media, r.body)
			if got := c.meta("a"); got["annotations"].(object)["more"] != nil || !slices.Equal(c.finalizers("a"), []any{"x/goes"}) {
				t.Errorf("%s changed the successor: %v", r.body, got)
			}
		}
	})
	t.Run("the caller may not patch: its 403, and the service is not asked", func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1")
		c.captured["uid-1"] = true
		c.forbid["PATCH"] = true
		if resp, body := c.do(transport.Options{}, "PATCH", podPath, merging, argoPatch); resp.StatusCode != 403 || len(c.calls) > 0 {
			t.Errorf("%d %s, calls %q", resp.StatusCode, body, c.calls)
		}
	})
	t.Run("the caller may not read: its 403, and nothing is written unseen", func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1")
		c.forbid["GET"] = true
		if resp, body := c.do(transport.Options{}, "PATCH", podPath, merging, argoPatch); resp.StatusCode != 403 || c.completed("a") != "false" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("an old view of foreign finalizers: 409 as from Kubernetes", func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1", finalizers(fin, "x/other"))
		c.captured["uid-1"] = true
		if resp, body := c.do(transport.Options{}, "PATCH", podPath, merging, strings.Replace(argoPatch, `"1"`, `"0"`, 1)); resp.StatusCode != 409 || len(c.calls) > 0 {
			t.Errorf("%d %s, calls %q", resp.StatusCode, body, c.calls)
		}
	})
	t.Run("under a path prefix", func(t *testing.T) {
		for _, o := range []transport.Options{{}, {BasePath: "/k8s/clusters/c1"}} {
			c := newCluster(t)
			c.pod("a", "uid-1")
			c.captured["uid-1"] = true
			if resp, body := c.do(o, "PATCH", "/k8s/clusters/c1"+podPath, merging, argoPatch); resp.StatusCode != 200 || len(c.calls) != 1 {
				t.Errorf("%d %s, calls %q", resp.StatusCode, body, c.calls)
			}
		}
	})
}

func TestFaultsOfTheServiceAreAnsweredAsKubernetesWould(t *testing.T) {
	for _, tc := range []struct {
		name   string
		err    error
		down   transport.WhenDown
		code   int
		reason string
		action transport.Action
		passed bool
	}{
		{"down", status.Error(codes.Unavailable, "connection refused"), transport.Fail, 503, "ServiceUnavailable", transport.Unavailable, false},
		{"down, bypass", status.Error(codes.Unavailable, "connection refused"), transport.Bypass, 200, "", transport.Bypassed, true},
		{"silent, bypass", status.Error(codes.DeadlineExceeded, "late"), transport.Bypass, 200, "", transport.Bypassed, true},
		{"no leader", refusal(codes.Unavailable, "NO_LEADER", "no leader"), transport.Fail, 503, "ServiceUnavailable", transport.Unavailable, false},
		{"throttled, bypass would make it worse", refusal(codes.Unavailable, "API_THROTTLED", "slow down"), transport.Bypass, 429, "TooManyRequests", transport.Unavailable, false},
		{"busy", refusal(codes.ResourceExhausted, "WORKFLOW_BUSY", "many"), transport.Fail, 429, "TooManyRequests", transport.Unavailable, false},
		{"admission", refusal(codes.FailedPrecondition, "BLOCKED_BY_ADMISSION", "webhook"), transport.Fail, 409, "Conflict", transport.Refused, false},
		{"not captured, bypass", refusal(codes.FailedPrecondition, "POD_NOT_CAPTURED", "no"), transport.Bypass, 409, "Conflict", transport.Refused, false},
		{"another instance's pod", refusal(codes.FailedPrecondition, "OTHER_INSTANCE", "not ours"), transport.Fail, 200, "", transport.Unmanaged, true},
		{"not a workflow pod", refusal(codes.FailedPrecondition, "NOT_A_WORKFLOW_POD", "not ours"), transport.Fail, 200, "", transport.Unmanaged, true},
		{"a name that it does not take", refusal(codes.InvalidArgument, "INVALID_ARGUMENT", "long"), transport.Fail, 200, "", transport.Unmanaged, true},
		{"our credentials", refusal(codes.PermissionDenied, "PERMISSION_DENIED", "no"), transport.Bypass, 403, "Forbidden", transport.Unavailable, false},
		{"its rights", refusal(codes.Internal, "SERVICE_FORBIDDEN", "no"), transport.Bypass, 500, "InternalError", transport.Unavailable, false},
	} {
		for _, method := range []string{"PATCH", "DELETE"} {
			t.Run(method+" "+tc.name, func(t *testing.T) {
				c := newCluster(t)
				c.pod("a", "uid-1")
				c.fault = tc.err
				var events []transport.Action
				body, media := argoPatch, merging
				bound := strings.Replace(argoPatch, `"resourceVersion":"1"`, `"resourceVersion":"1","uid":"uid-1"`, 1)
				if method == "DELETE" {
					body, media = background, jsonType
					bound = `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"uid-1"},"propagationPolicy":"Background"}`
				}
				resp, answer := c.do(transport.Options{WhenDown: tc.down, Observe: func(e transport.Event) { events = append(events, e.Action) }},
					method, podPath, media, body)
				if resp.StatusCode != tc.code || !strings.Contains(answer, tc.reason) {
					t.Errorf("%d %s, want %d %s", resp.StatusCode, answer, tc.code, tc.reason)
				}
				if wait := resp.Header.Get("Retry-After"); (wait != "") != (tc.code == 503 || tc.code == 429) {
					t.Errorf("Retry-After %q", wait)
				}
				if !slices.Equal(events, []transport.Action{tc.action}) {
					t.Errorf("events %v", events)
				}
				last := c.requests[len(c.requests)-1]
				if passed := last.method == method && !last.dryRun && last.body == bound; passed != tc.passed {
					t.Errorf("passed on: %v; the last request was %+v", passed, last)
				}
			})
		}
	}
}

var _ http.RoundTripper = inMemory{}
