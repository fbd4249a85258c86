package transport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/finalizerd/finalizerd/client/transport"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

const fin = transport.DefaultFinalizer

type object = map[string]any

// seen is one request that reached the API server.
type seen struct {
	method, uri, contentType, accept, authorization, body string
	dryRun                                                bool
}

func (s seen) String() string {
	mode := ""
	if s.dryRun {
		mode = " (dry)"
	}
	return s.method + mode
}

// cluster is an API server with pods and nothing else, and finalizerd over the
// same pods.
type cluster struct {
	t  *testing.T
	mu sync.Mutex

	pods     map[string]object // namespace/name
	version  int
	requests []seen
	steps    []string          // requests and calls of the service, in order
	forbid   map[string]bool   // methods that the caller may not
	before   map[string]func() // runs once before the next request of the method

	captured map[string]bool          // UIDs
	calls    []string                 // of the service
	fault    error                    // of the service
	block    chan struct{}            // the service waits for it
	results  []*finalizerv1.PodResult // of DeleteWorkflowPods, if not nil
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, pods: map[string]object{}, forbid: map[string]bool{}, before: map[string]func(){}, captured: map[string]bool{}}
}

// pod adds a held workflow pod.
func (c *cluster) pod(name, uid string, edit ...func(meta object)) {
	meta := object{
		"name": name, "namespace": "argo", "uid": uid, "finalizers": []any{fin},
		"labels":      object{"workflows.argoproj.io/completed": "false", "workflows.argoproj.io/workflow": "wf"},
		"annotations": object{"workflows.argoproj.io/node-id": "n-" + name},
		"ownerReferences": []any{object{"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "wf", "uid": "wf-uid",
			"controller": true, "blockOwnerDeletion": true}},
	}
	for _, e := range edit {
		e(meta)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store("argo/"+name, object{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": object{"nodeName": "n"}})
}

func terminating(meta object)          { meta["deletionTimestamp"] = "2026-01-01T00:00:00Z" }
func unheld(meta object)               { delete(meta, "finalizers") }
func finalizers(f ...any) func(object) { return func(meta object) { meta["finalizers"] = f } }
func ownedBy(api, k string) func(object) {
	return func(m object) {
		m["ownerReferences"] = []any{object{"apiVersion": api, "kind": k, "name": "wf", "uid": "wf-uid", "controller": true}}
	}
}
func labelled(k, v string) func(object) { return func(m object) { m["labels"].(object)[k] = v } }
func noController(meta object)          { delete(meta["ownerReferences"].([]any)[0].(object), "controller") }

func (c *cluster) store(key string, pod object) {
	c.version++
	pod["metadata"].(object)["resourceVersion"] = strconv.Itoa(c.version)
	meta := pod["metadata"].(object)
	if f, _ := meta["finalizers"].([]any); meta["deletionTimestamp"] != nil && len(f) == 0 {
		delete(c.pods, key)
		return
	}
	c.pods[key] = pod
}

// meta returns a copy of the pod's metadata, nil if there is none.
func (c *cluster) meta(name string) object {
	c.mu.Lock()
	defer c.mu.Unlock()
	pod := c.pods["argo/"+name]
	if pod == nil {
		return nil
	}
	return clone(pod)["metadata"].(object)
}

func (c *cluster) finalizers(name string) []any {
	f, _ := c.meta(name)["finalizers"].([]any)
	return f
}

func (c *cluster) completed(name string) any {
	labels, _ := c.meta(name)["labels"].(object)
	return labels["workflows.argoproj.io/completed"]
}

func clone(o object) object {
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	var copied object
	if err := json.Unmarshal(raw, &copied); err != nil {
		panic(err)
	}
	return copied
}

// trace returns the methods that reached the API server, and where the service
// was called.
func (c *cluster) trace() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.steps)
}

func failure(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

// ServeHTTP is the API server.
func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		return
	}
	s := seen{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), r.Header.Get("Accept"), r.Header.Get("Authorization"), string(body),
		r.URL.Query().Has("dryRun") || strings.Contains(string(body), `"dryRun":["All"]`)}
	c.mu.Lock()
	if f := c.before[r.Method]; f != nil {
		delete(c.before, r.Method)
		c.mu.Unlock()
		f()
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	c.requests, c.steps = append(c.requests, s), append(c.steps, s.String())
	if c.forbid[r.Method] {
		failure(w, 403, "Forbidden", "forbidden")
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if i := slices.Index(parts, "api"); i >= 0 {
		parts = parts[i:]
	}
	if len(parts) == 5 && r.Method == http.MethodPost {
		c.create(w, parts[3], body, s.dryRun)
		return
	}
	if len(parts) != 6 {
		_, _ = w.Write(body) // an echo for what is not a pod
		return
	}
	c.one(w, r, parts[3]+"/"+parts[5], body, s.dryRun)
}

func answer(w http.ResponseWriter, code int, pod object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(pod)
}

func (c *cluster) create(w http.ResponseWriter, namespace string, body []byte, dry bool) {
	var pod object
	if json.Unmarshal(body, &pod) != nil {
		if pod = fromProtobuf(body); pod == nil {
			_, _ = w.Write(body) // an echo for what is not a pod
			return
		}
	}
	meta := pod["metadata"].(object)
	key := fmt.Sprint(namespace, "/", meta["name"])
	if old := c.pods[key]; old != nil {
		message := fmt.Sprintf("pods %q already exists", meta["name"])
		if old["metadata"].(object)["deletionTimestamp"] != nil {
			message = "object is being deleted: " + message
		}
		failure(w, 409, "AlreadyExists", message)
		return
	}
	meta["namespace"], meta["uid"] = namespace, fmt.Sprint("uid-created-", c.version)
	if !dry {
		c.store(key, pod)
	}
	answer(w, 201, pod)
}

func (c *cluster) one(w http.ResponseWriter, r *http.Request, key string, body []byte, dry bool) {
	pod := c.pods[key]
	if pod == nil {
		failure(w, 404, "NotFound", "pods \""+strings.SplitN(key, "/", 2)[1]+"\" not found")
		return
	}
	pod = clone(pod)
	meta := pod["metadata"].(object)
	switch r.Method {
	case http.MethodPatch:
		code, reason := change(pod, r.Header.Get("Content-Type"), body)
		if code != 200 {
			failure(w, code, reason, reason)
			return
		}
	case http.MethodDelete:
		var options struct{ Preconditions struct{ UID string } }
		_ = json.Unmarshal(body, &options)
		if uid := options.Preconditions.UID; uid != "" && uid != meta["uid"] {
			failure(w, 409, "Conflict", "the UID in the precondition differs")
			return
		}
		terminating(meta)
	}
	if !dry && r.Method != http.MethodGet {
		c.store(key, pod)
	}
	answer(w, 200, pod)
}

// do sends a request through the transport under test and returns the answer.
func (c *cluster) do(o transport.Options, method, path, contentType, body string) (*http.Response, string) {
	c.t.Helper()
	req := request(c.t.Context(), method, path, contentType, body)
	closed := &closing{Reader: strings.NewReader(body)}
	req.Body = closed
	next := &remembering{next: inMemory{c}}
	resp, err := transport.New(c.service(), o)(next).RoundTrip(req)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		c.t.Fatal(err)
	}
	if i := slices.IndexFunc(next.bodies, func(b *closing) bool { return !b.closed() }); i >= 0 {
		c.t.Errorf("%s %s: the body of answer %d was left open", method, path, i)
	}
	if !closed.closed() {
		c.t.Errorf("%s %s: the request's body was left open", method, path)
	}
	return resp, string(answer)
}

func request(ctx context.Context, method, path, contentType, body string) *http.Request {
	req := httptest.NewRequestWithContext(ctx, method, "http://api"+path, strings.NewReader(body))
	req.RequestURI = ""
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Authorization", "Bearer caller")
	req.Header.Set("Accept", "application/json, */*")
	return req
}

type closing struct {
	io.Reader
	mu   sync.Mutex
	done bool
}

func (c *closing) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
	return nil
}

func (c *closing) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// remembering knows the bodies of all answers of one call.
type remembering struct {
	next   http.RoundTripper
	bodies []*closing
}

func (r *remembering) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body := &closing{Reader: resp.Body}
	resp.Body, r.bodies = body, append(r.bodies, body)
	return resp, nil
}

// inMemory is a RoundTripper to a handler, without a socket.
type inMemory struct{ http.Handler }

func (h inMemory) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	served := req.Clone(req.Context())
	if served.Body == nil {
		served.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, served)
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return w.Result(), nil
}
