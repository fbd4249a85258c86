package transport_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/client/transport"
	"github.com/google/go-cmp/cmp"
)

// Written by client-go 0.33.1, the version of Argo 4.0.5.
const (
	argoDelete = "k8s\x00\n\x13\n\x02v1\x12\rDeleteOptions\x12\f\"\nBackground\x1a\x00\"\x00"
	nilOptions = "k8s\x00\n\x13\n\x02v1\x12\rDeleteOptions\x12\x00\x1a\x00\"\x00"
	argoPod    = "k8s\x00\n\t\n\x02v1\x12\x03Pod\x12\xca\x01\n\x93\x01\n\x01a\x12\x00\x1a\x00\"\x00*\x002\x008\x00B\x00Z(" +
		"\n\x1fworkflows.argoproj.io/completed\x12\x05falseb$\n\x1dworkflows.argoproj.io/node-id\x12\x03n-a" +
		"j0\n\bWorkflow\x1a\x02wf\"\x06wf-uid*\x14argoproj.io/v1alpha10\x018\x01" +
		"\x12\x1d\x1a\x002\x00B\x00J\x00R\x01nX\x00`\x00h\x00\x82\x01\x00\x8a\x01\x00\x9a\x01\x00\xc2\x01\x00" +
		"\x1a\x13\n\x00\x1a\x00\"\x00*\x002\x00J\x00Z\x00r\x00\x88\x01\x00\x1a\x00\"\x00"
	argoPodHeld = "k8s\x00\n\t\n\x02v1\x12\x03Pod\x12\xe8\x01\n\xb1\x01\n\x01a\x12\x00\x1a\x00\"\x00*\x002\x008\x00B\x00Z(" +
		"\n\x1fworkflows.argoproj.io/completed\x12\x05falseb$\n\x1dworkflows.argoproj.io/node-id\x12\x03n-a" +
		"j0\n\bWorkflow\x1a\x02wf\"\x06wf-uid*\x14argoproj.io/v1alpha10\x018\x01" +
		"r\x1cworkflows.argoproj.io/status" +
		"\x12\x1d\x1a\x002\x00B\x00J\x00R\x01nX\x00`\x00h\x00\x82\x01\x00\x8a\x01\x00\x9a\x01\x00\xc2\x01\x00" +
		"\x1a\x13\n\x00\x1a\x00\"\x00*\x002\x00J\x00Z\x00r\x00\x88\x01\x00\x1a\x00\"\x00"
)

func TestDeletesInProtobufGoThroughTheService(t *testing.T) {
	through := []string{"GET", "DELETE (dry)", "service"}
	direct := []string{"GET", "DELETE", "service"}
	const bound = `"preconditions":{"uid":"uid-1"}`
	for _, tc := range []struct {
		name, query, body string
		uncaptured        bool
		call              string
		trace             []string
		sent              []string // in the body of every DELETE
	}{
		{name: "Argo's, of a captured pod", body: argoDelete, call: deleteCall, trace: through,
			sent: []string{bound, `"propagationPolicy":"Background"`, `"dryRun":["All"]`}},
		{name: "B15 Argo's, of a pod that is not captured", body: argoDelete, uncaptured: true, call: deleteCall,
			trace: append(slices.Clone(through), "DELETE"), sent: []string{bound, `"propagationPolicy":"Background"`}},
		{name: "without options", body: nilOptions, call: deleteCall, trace: through, sent: []string{bound}},
		{name: "without a body", call: deleteCall, trace: through, sent: []string{bound}},
		{name: "without a body, options in the query", query: "?gracePeriodSeconds=5", call: "release argo/a uid-1", trace: direct,
			sent: []string{bound, `"gracePeriodSeconds":5`}},
		{name: "without type, of any group's version", body: "k8s\x00" + string(pbMessage(2, pbText(4, "Background"))), call: deleteCall, trace: through, sent: []string{bound}},
		{name: "of meta.k8s.io/v1", body: pbObject("meta.k8s.io/v1", "DeleteOptions"), call: deleteCall, trace: through, sent: []string{bound}},
		{name: "with the UID of the pod", body: pbOptions(pbMessage(2, pbText(1, "uid-1"))), call: deleteCall, trace: through, sent: []string{bound}},
		{name: "that says not to ignore read errors", body: pbOptions(pbNumber(6, 0)), call: deleteCall, trace: through, sent: []string{bound}},
		{name: "with grace period 0", body: pbOptions(pbNumber(1, 0)), call: "release argo/a uid-1", trace: direct,
			sent: []string{bound, `"gracePeriodSeconds":0`}},
		{name: "with a negative grace period, which the API server judges", body: pbOptions(pbNumber(1, 1<<64-1)), call: "release argo/a uid-1",
			trace: direct, sent: []string{`"gracePeriodSeconds":-1`}},
		{name: "with orphans", body: pbOptions(pbNumber(3, 1)), call: "release argo/a uid-1", trace: direct, sent: []string{bound, `"orphanDependents":true`}},
		{name: "with a resourceVersion", body: pbOptions(pbMessage(2, pbText(1, "uid-1"), pbText(2, "7"))), call: "release argo/a uid-1", trace: direct,
			sent: []string{`"resourceVersion":"7"`, `"uid":"uid-1"`}},
		{name: "in the foreground", body: pbOptions(pbText(4, "Foreground")), call: "release argo/a uid-1", trace: direct,
			sent: []string{bound, `"propagationPolicy":"Foreground"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1")
			c.captured["uid-1"] = !tc.uncaptured
			resp, body := c.do(transport.Options{}, "DELETE", podPath+tc.query, protobuf, tc.body)
			if resp.StatusCode != 200 || !strings.Contains(body, "deletionTimestamp") {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if diff := cmp.Diff([]string{tc.call}, c.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.trace, c.trace()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			for _, r := range c.requests {
				if r.method != "DELETE" {
					continue
				}
				if r.contentType != jsonType || r.accept != "application/json, */*" || r.authorization != "Bearer caller" {
					t.Errorf("headers: %+v", r)
				}
				for _, s := range tc.sent {
					if !strings.Contains(r.body, s) && (r.dryRun || !strings.Contains(s, "dryRun")) {
						t.Errorf("no %s in %s", s, r.body)
					}
				}
			}
		})
	}
}

func TestDeletesInProtobufThatAreNotUnderstoodPassByteForByte(t *testing.T) {
	options := func(parts ...[]byte) string {
		return "k8s\x00" + string(slices.Concat(parts...))
	}
	typed := pbMessage(1, pbText(1, "v1"), pbText(2, "DeleteOptions"))
	for name, body := range map[string]string{
		"JSON":                        background,
		"white space":                 " \n",
		"the magic alone":             "k8s\x00",
		"half the magic":              "k8",
		"another magic":               "k9s\x00" + argoDelete[4:],
		"another kind":                pbObject("v1", "Pod"),
		"another version":             pbObject("v2", "DeleteOptions"),
		"a field of the envelope":     options(typed, pbMessage(2), pbText(5, "")),
		"a field of the type":         options(pbMessage(1, pbText(3, "x")), pbMessage(2)),
		"two types":                   options(typed, typed, pbMessage(2)),
		"two objects":                 options(typed, pbMessage(2), pbMessage(2)),
		"compressed":                  options(typed, pbMessage(2), pbText(3, "gzip")),
		"JSON in the envelope":        options(typed, pbMessage(2), pbText(4, jsonType)),
		"an object that is a number":  options(typed, pbNumber(2, 1)),
		"a field of the options":      pbOptions(pbText(4, "Background"), pbNumber(7, 1)),
		"a field of preconditions":    pbOptions(pbMessage(2, pbText(1, "uid-1"), pbText(3, "x"))),
		"preconditions cut off":       pbOptions(pbText(2, "\x0a\x09uid")),
		"two preconditions":           pbOptions(pbMessage(2, pbText(1, "uid-1")), pbMessage(2)),
		"two grace periods":           pbOptions(pbNumber(1, 1), pbNumber(1, 2)),
		"two policies":                pbOptions(pbText(4, "Background"), pbText(4, "Orphan")),
		"a grace period that is text": pbOptions(pbText(1, "")),
		"a policy that is a number":   pbOptions(pbNumber(4, 1)),
		"a policy that is not UTF-8":  pbOptions(pbText(4, "\xff")),
		"a dry run":                   pbOptions(pbText(5, "All")),
		"an empty dry run":            pbOptions(pbText(5, "")),
		"to ignore read errors":       pbOptions(pbNumber(6, 1)),
		"no UID as precondition":      pbOptions(pbMessage(2, pbText(1, ""))),
		"the UID of another pod":      pbOptions(pbMessage(2, pbText(1, "uid-0"))),
	} {
		t.Run(name, func(t *testing.T) { passesAsItCame(t, "DELETE", podPath, body) })
	}
	for i := range argoDelete {
		// Cut between two fields it is whole: without options, or without its end.
		if cut := argoDelete[:i]; i > 0 && i != 25 && i != 39 && i != 41 {
			t.Run(fmt.Sprint("cut off at ", i), func(t *testing.T) { passesAsItCame(t, "DELETE", podPath, cut) })
		}
	}
}

// passesAsItCame requires that nothing but reads is done beside the request.
func passesAsItCame(t *testing.T, method, path, body string) {
	t.Helper()
	c := newCluster(t)
	c.pod("a", "uid-1", terminating)
	c.captured["uid-1"] = true
	c.do(transport.Options{AddFinalizer: true}, method, path, protobuf, body)
	sent := slices.DeleteFunc(slices.Clone(c.requests), func(s seen) bool { return s.method == "GET" })
	want := seen{method: method, uri: path, contentType: protobuf, accept: "application/json, */*", authorization: "Bearer caller", body: body}
	if len(sent) != 1 || sent[0] != want || len(c.calls) > 0 {
		t.Errorf("the API server got %+v, want %+v; calls %q", sent, want, c.calls)
	}
}

func TestCreatesInProtobufGetTheFinalizer(t *testing.T) {
	long := pbEntry(12, "x/long", strings.Repeat("x", 1<<14)) // three bytes of length
	for _, tc := range []struct{ name, body, want string }{
		{"Argo's", argoPod, argoPodHeld},
		{"a field that nobody knows stays", pbPod(pbMeta()), pbPod(pbMeta(pbText(14, fin)))},
		{"beside others", pbPod(pbMeta(pbText(14, "x/other"))), pbPod(pbMeta(pbText(14, "x/other"), pbText(14, fin)))},
		{"with long metadata", pbPod(pbMeta(long, pbText(99, "x"))), pbPod(pbMeta(long, pbText(99, "x"), pbText(14, fin)))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			var events []transport.Action
			resp, _ := c.do(transport.Options{AddFinalizer: true, Observe: func(e transport.Event) { events = append(events, e.Action) }},
				"POST", podsPath, protobuf, tc.body)
			if resp.StatusCode != 201 || len(c.requests) != 1 || !slices.Equal(events, []transport.Action{transport.FinalizerAdded}) {
				t.Fatalf("%d, requests %v, events %v", resp.StatusCode, c.requests, events)
			}
			if r := c.requests[0]; r.body != tc.want || r.contentType != protobuf {
				t.Errorf("sent as %s:\n%q, want\n%q", r.contentType, r.body, tc.want)
			}
			if f := c.finalizers("a"); len(f) == 0 || f[len(f)-1] != fin {
				t.Errorf("finalizers %v", f)
			}
		})
	}
}

// Where the pod's name is that of one that terminates, so that one that is
// understood by mistake would be helped.
func TestCreatesInProtobufThatPassByteForByte(t *testing.T) {
	meta := string(pbMeta())
	for name, body := range map[string]string{
		"B7 a pod of a Job":              pbPod(slices.Concat(pbText(1, "a"), pbOwner("batch/v1", "Job"))),
		"a pod of nobody":                pbPod(pbText(1, "a")),
		"an owner that is no controller": pbPod(slices.Concat(pbText(1, "a"), pbMessage(13, pbText(1, "Workflow"), pbText(5, "argoproj.io/v1alpha1")))),
		"no metadata":                    pbObject("v1", "Pod", pbMessage(2)),
		"two metadata":                   pbObject("v1", "Pod", pbText(1, meta), pbText(1, meta)),
		"metadata cut off":               pbObject("v1", "Pod", pbText(1, meta[:len(meta)-1])),
		"metadata that is a number":      pbObject("v1", "Pod", pbNumber(1, 1)),
		"a finalizer that is a number":   pbPod(pbMeta(pbNumber(14, 1))),
		"a name that is not UTF-8":       pbPod(pbMeta(pbText(1, "\xff"))),
		"a label cut off":                pbPod(pbMeta(pbText(11, "\x0a\x09x"))),
		"an owner cut off":               pbPod(pbMeta(pbText(13, "\x0a\x09x"))),
		"another kind":                   pbObject("v1", "Binding", pbText(1, meta)),
		"bytes behind":                   argoPod + "\xff",
		"JSON":                           newPod(),
	} {
		t.Run(name, func(t *testing.T) {
			passesAsItCame(t, "POST", podsPath, body)
		})
	}
	for name, body := range map[string]string{
		"it has it already": pbPod(pbMeta(pbText(14, fin))),
		"an agent: no node": pbPod(slices.Concat(pbText(1, "b"), pbOwner("argoproj.io/v1alpha1", "Workflow"))),
		"completed":         pbPod(pbMeta(pbEntry(11, completed, "true"))),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			if c.do(transport.Options{AddFinalizer: true}, "POST", podsPath, protobuf, body); len(c.requests) != 1 || c.requests[0].body != body {
				t.Errorf("not as it came: %+v", c.requests)
			}
		})
	}
}

func TestB43ACreateInProtobufUnderATerminatingPodsName(t *testing.T) {
	for _, tc := range []struct {
		name   string
		add    bool
		others []any
		body   string // of both creates
	}{
		{name: "released, and created at once", body: argoPod},
		{name: "with FIN in both creates", add: true, body: argoPodHeld},
		{name: "awaited while another holds it", others: []any{"x/other"}, body: argoPod},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.pod("a", "uid-1", terminating, finalizers(append([]any{fin}, tc.others...)...))
				c.captured["uid-1"] = true
				time.AfterFunc(3*time.Second, func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					if c.pods["argo/a"]["metadata"].(object)["uid"] == "uid-1" {
						delete(c.pods, "argo/a")
					}
				})
				began := time.Now()
				resp, body := c.do(transport.Options{AddFinalizer: tc.add}, "POST", podsPath, protobuf, argoPod)
				took := time.Since(began)
				if resp.StatusCode != http.StatusCreated || !strings.Contains(body, "uid-created") || !slices.Equal(c.calls, []string{deleteCall}) {
					t.Errorf("%d %s, calls %q", resp.StatusCode, body, c.calls)
				}
				if waits := len(tc.others) > 0; waits != (took >= 3*time.Second) || took > 4*time.Second {
					t.Errorf("after %s", took)
				}
				for _, r := range c.requests {
					if r.method == "POST" && (r.body != tc.body || r.contentType != protobuf) {
						t.Errorf("sent as %s: %q", r.contentType, r.body)
					}
				}
				time.Sleep(5 * time.Second) // the bubble's timer
			})
		})
	}
}
