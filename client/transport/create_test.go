package transport_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/client/transport"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
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

// At AlreadyExists Argo takes the pod of that name for its new one; it repeats
// what a 429 or a 503 answers.
func TestB43ACreateThatTheServiceCannotHelpIsAnsweredAsOtherVerbsAre(t *testing.T) {
	fault := func(err error) func(*cluster) { return func(c *cluster) { c.fault = err } }
	silence := func(c *cluster) { c.block = make(chan struct{}) }
	results := func(r ...*finalizerv1.PodResult) func(*cluster) { return func(c *cluster) { c.results = r } }
	failed := func(reason finalizerv1.ErrorReason, code codes.Code) func(*cluster) {
		return results(&finalizerv1.PodResult{Outcome: finalizerv1.Outcome_OUTCOME_FAILED, ErrorReason: reason, Code: int32(code)})
	}
	for _, tc := range []struct {
		name   string
		set    func(*cluster)
		down   transport.WhenDown
		code   int // 409 is the API server's own
		action transport.Action
		took   time.Duration
	}{
		{"down", fault(status.Error(codes.Unavailable, "connection refused")), transport.Fail, 503, transport.Unavailable, 0},
		{"down, bypass", fault(status.Error(codes.Unavailable, "connection refused")), transport.Bypass, 409, transport.Bypassed, 0},
		{"silent", silence, transport.Fail, 503, transport.Unavailable, 10 * time.Second},
		{"silent, bypass", silence, transport.Bypass, 409, transport.Bypassed, 10 * time.Second},
		{"throttled", fault(refusal(codes.Unavailable, "API_THROTTLED", "slow down")), transport.Fail, 429, transport.Unavailable, 0},
		{"throttled, bypass", fault(refusal(codes.Unavailable, "API_THROTTLED", "slow down")), transport.Bypass, 429, transport.Unavailable, 0},
		{"busy", fault(refusal(codes.ResourceExhausted, "WORKFLOW_BUSY", "many")), transport.Fail, 429, transport.Unavailable, 0},
		{"our credentials", fault(refusal(codes.PermissionDenied, "PERMISSION_DENIED", "no")), transport.Fail, 403, transport.Unavailable, 0},
		{"its rights", fault(refusal(codes.Internal, "SERVICE_FORBIDDEN", "no")), transport.Fail, 500, transport.Unavailable, 0},
		{"throttled at this pod", failed(finalizerv1.ErrorReason_ERROR_REASON_API_THROTTLED, codes.Unavailable), transport.Fail, 429, transport.Unavailable, 0},
		{"failed at this pod", failed(finalizerv1.ErrorReason_ERROR_REASON_API_UNAVAILABLE, codes.Unavailable), transport.Fail, 503, transport.Unavailable, 0},
		{"no result", func(c *cluster) { c.results = []*finalizerv1.PodResult{} }, transport.Fail, 500, transport.Unavailable, 0},
		{"another instance's pod", fault(refusal(codes.FailedPrecondition, "OTHER_INSTANCE", "not ours")), transport.Fail, 409, transport.Unmanaged, 0},
		{"another instance's, told of this pod", failed(finalizerv1.ErrorReason_ERROR_REASON_OTHER_INSTANCE, codes.FailedPrecondition), transport.Fail, 409, transport.Unmanaged, 0},
		{"refused", fault(refusal(codes.FailedPrecondition, "POD_NOT_CAPTURED", "no")), transport.Bypass, 409, transport.Refused, 0},
		{"not captured", func(*cluster) {}, transport.Fail, 409, transport.Refused, 0},
		{"admission", results(&finalizerv1.PodResult{Outcome: finalizerv1.Outcome_OUTCOME_BLOCKED_BY_ADMISSION}), transport.Fail, 409, transport.Refused, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.pod("a", "uid-1", terminating)
				tc.set(c)
				var events []transport.Action
				began := time.Now()
				resp, body := c.do(transport.Options{WhenDown: tc.down, Observe: func(e transport.Event) { events = append(events, e.Action) }},
					"POST", podsPath, jsonType, newPod())
				if own := strings.Contains(body, "already exists"); resp.StatusCode != tc.code || own != (tc.code == 409) {
					t.Errorf("%d %s", resp.StatusCode, body)
				}
				if wait := resp.Header.Get("Retry-After"); (wait != "") != (tc.code == 503 || tc.code == 429) {
					t.Errorf("Retry-After %q", wait)
				}
				if !slices.Equal(events, []transport.Action{tc.action}) || time.Since(began) != tc.took {
					t.Errorf("events %v after %s", events, time.Since(began))
				}
			})
		})
	}
}

// An API server that cannot say whose pod it is has not said that it is another's.
func TestB43ACreateWhosePredecessorCannotBeReadIsRepeated(t *testing.T) {
	broken := errors.New("connection reset")
	for _, tc := range []struct {
		name string
		code int // of the GET
		want int // 0: the error
	}{{"throttled", 429, 429}, {"unavailable", 503, 503}, {"a timeout", 504, 504}, {"no connection", 0, 0}, {"forbidden: the first 409", 403, 409}} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.pod("a", "uid-1", terminating)
			next := roundTrip(func(r *http.Request) (*http.Response, error) {
				switch {
				case r.Method != http.MethodGet:
					return inMemory{c}.RoundTrip(r)
				case tc.code == 0:
					return nil, broken
				}
				return &http.Response{StatusCode: tc.code, Header: http.Header{"Retry-After": {"1"}}, Body: http.NoBody}, nil
			})
			resp, err := transport.New(c.service(), transport.Options{})(next).RoundTrip(request(t.Context(), "POST", podsPath, jsonType, newPod()))
			if tc.want == 0 {
				if !errors.Is(err, broken) {
					t.Errorf("%v, %v", resp, err)
				}
				return
			}
			if err != nil || resp.StatusCode != tc.want || len(c.calls) > 0 {
				t.Fatalf("%v, %v, calls %q", resp, err, c.calls)
			}
			_ = resp.Body.Close()
		})
	}
}
