package transport_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/client/transport"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// newPod is the body of a create of a workflow pod.
func newPod(edit ...func(meta object)) string {
	meta := object{
		"name": "a", "labels": object{"workflows.argoproj.io/completed": "false"},
		"annotations":     object{"workflows.argoproj.io/node-id": "n-a"},
		"ownerReferences": []any{object{"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "wf", "uid": "wf-uid", "controller": true}},
	}
	for _, e := range edit {
		e(meta)
	}
	raw, err := json.Marshal(object{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": object{"priority": json.Number("12345678901234567")}})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func TestCreatesGetTheFinalizer(t *testing.T) {
	for _, tc := range []struct {
		name, body, contentType string
		off                     bool
		added                   bool
	}{
		{name: "a workflow pod", body: newPod(), added: true},
		{name: "beside others", body: newPod(finalizers("x/other")), added: true},
		{name: "it has it already", body: newPod(finalizers(fin))},
		{name: "the option is off", body: newPod(), off: true},
		{name: "an agent: no node", body: newPod(func(m object) { delete(m, "annotations") })},
		{name: "completed from the start", body: newPod(labelled(completed, "true"))},
		{name: "B7 a pod of a Job", body: newPod(ownedBy("batch/v1", "Job"))},
		{name: "not JSON", body: `{"metadata"`},
		{name: "protobuf", body: "k8s\x00\n\x09\n\x02v1\x12\x03Pod", contentType: protobuf},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			if tc.contentType == "" {
				tc.contentType = jsonType
			}
			var events []transport.Action
			c.do(transport.Options{AddFinalizer: !tc.off, Observe: func(e transport.Event) { events = append(events, e.Action) }},
				"POST", podsPath+"?fieldManager=m", tc.contentType, tc.body)
			if !tc.added {
				if len(c.requests) != 1 || c.requests[0].body != tc.body || len(events) > 0 {
					t.Errorf("not as it came: %+v, events %v", c.requests, events)
				}
				return
			}
			if got := c.finalizers("a"); got[len(got)-1] != fin {
				t.Errorf("finalizers %v", got)
			}
			if sent := c.requests[0].body; !strings.Contains(sent, "12345678901234567") {
				t.Errorf("numbers have changed: %s", sent)
			}
			if !slices.Equal(events, []transport.Action{transport.FinalizerAdded}) {
				t.Errorf("events %v", events)
			}
		})
	}
}

// B43, the other half: a retry whose names are still taken.
func TestB43ACreateUnderATerminatingPodsName(t *testing.T) {
	t.Run("the old pod is captured: released, and created at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", terminating)
			c.captured["uid-1"] = true
			var events []transport.Action
			began := time.Now()
			resp, body := c.do(transport.Options{Observe: func(e transport.Event) { events = append(events, e.Action) }}, "POST", podsPath, jsonType, newPod())
			if resp.StatusCode != 201 || !strings.Contains(body, "uid-created") || time.Since(began) > 0 {
				t.Errorf("%d %s after %s", resp.StatusCode, body, time.Since(began))
			}
			if !slices.Equal(c.calls, []string{deleteCall}) || !slices.Equal(events, []transport.Action{transport.Recreated}) {
				t.Errorf("calls %q, events %v", c.calls, events)
			}
			if first, last := c.requests[0], c.requests[len(c.requests)-1]; first.body != last.body || last.body != newPod() {
				t.Error("the second create is not the first again")
			}
		})
	})
	t.Run("it has gone meanwhile: created without the service", func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1", terminating)
		c.before["GET"] = func() { delete(c.pods, "argo/a") }
		if resp, body := c.do(transport.Options{}, "POST", podsPath, jsonType, newPod()); resp.StatusCode != 201 || len(c.calls) > 0 {
			t.Errorf("%d %s, calls %q", resp.StatusCode, body, c.calls)
		}
	})
	t.Run("its kubelet or a foreign finalizer holds it for a while: waited for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", terminating, finalizers(fin, "x/other"))
			c.captured["uid-1"] = true
			time.AfterFunc(3*time.Second, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				delete(c.pods, "argo/a")
			})
			began := time.Now()
			resp, body := c.do(transport.Options{}, "POST", podsPath, jsonType, newPod())
			if took := time.Since(began); resp.StatusCode != 201 || took < 3*time.Second || took > 4*time.Second || len(c.calls) != 1 {
				t.Errorf("%d %s after %s, calls %q", resp.StatusCode, body, took, c.calls)
			}
		})
	})
	for _, tc := range []struct {
		name string
		pod  []func(object)
		set  func(*cluster)
		took time.Duration // at least
		by   time.Duration
	}{
		{"it is not captured", []func(object){terminating}, func(*cluster) {}, 0, 0},
		{"the service is down", []func(object){terminating}, func(c *cluster) { c.fault = status.Error(codes.Unavailable, "down") }, 0, 0},
		{"the service is silent", []func(object){terminating}, func(c *cluster) { c.block = make(chan struct{}) }, 10 * time.Second, 10 * time.Second},
		{"it does not go in time", []func(object){terminating, finalizers(fin, "x/other")}, func(c *cluster) { c.captured["uid-1"] = true }, 9 * time.Second, 10 * time.Second},
		{"it is nobody's", []func(object){terminating, ownedBy("batch/v1", "Job")}, func(*cluster) {}, 0, 0},
		{"it is alive", nil, func(*cluster) {}, 0, 0},
		{"a live one has taken its place", []func(object){terminating}, func(c *cluster) {
			c.captured["uid-2"] = true
			c.before["GET"] = func() { c.pod("a", "uid-2") }
		}, 0, 0},
		{"the caller may not read it", []func(object){terminating}, func(c *cluster) { c.forbid["GET"] = true }, 0, 0},
	} {
		t.Run(tc.name+": the first 409", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.pod("a", "uid-1", tc.pod...)
				tc.set(c)
				began := time.Now()
				resp, body := c.do(transport.Options{}, "POST", podsPath, jsonType, newPod())
				if resp.StatusCode != 409 || !strings.Contains(body, "already exists") {
					t.Errorf("%d %s", resp.StatusCode, body)
				}
				if meta := c.meta("a"); meta["uid"] == "uid-2" && meta["deletionTimestamp"] != nil {
					t.Error("the live pod was deleted")
				}
				if took := time.Since(began); took < tc.took || took > tc.by {
					t.Errorf("after %s", took)
				}
			})
		})
	}
	t.Run("switched off: the first 409", func(t *testing.T) {
		c := newCluster(t)
		c.pod("a", "uid-1", terminating)
		c.captured["uid-1"] = true
		if resp, _ := c.do(transport.Options{CreateWait: -1}, "POST", podsPath, jsonType, newPod()); resp.StatusCode != 409 || len(c.calls) > 0 {
			t.Errorf("%d, calls %q", resp.StatusCode, c.calls)
		}
	})
	t.Run("the caller leaves while it waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", terminating)
			c.block = make(chan struct{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			req := request(ctx, "POST", podsPath, jsonType, newPod())
			began := time.Now()
			resp, err := transport.New(c.service(), transport.Options{})(inMemory{c}).RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			if time.Since(began) != time.Second {
				t.Errorf("it stayed %s", time.Since(began))
			}
		})
	})
}
