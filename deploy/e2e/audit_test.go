package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// request is one request as the API server has logged it.
type request struct {
	verb, resource, subresource, namespace, name string
	uri, userAgent                               string
	code                                         int32
	received                                     time.Time
}

func (r request) writes() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, r.verb)
}

// String is for messages of failed tests.
func (r request) String() string {
	return fmt.Sprintf("%s %s/%s -> %d", r.verb, r.resource, r.name, r.code)
}

// auditLog reads the API server's audit log, each line once.
type auditLog struct {
	path string

	mu      sync.Mutex
	offset  int64
	byScope map[string][]request // by namespace
	marks   atomic.Int64
}

// auditLine is the part of an audit.k8s.io/v1 Event that is read.
type auditLine struct {
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	UserAgent  string `json:"userAgent"`
	ObjectRef  *struct {
		Resource, Namespace, Name, Subresource string
	} `json:"objectRef"`
	ResponseStatus *struct {
		Code int32 `json:"code"`
	} `json:"responseStatus"`
	Received metav1.MicroTime `json:"requestReceivedTimestamp"`
}

// read takes in what was appended since the last time.
func (a *auditLog) read() error {
	file, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	news, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(news, '\n') + 1
	a.offset += int64(whole)
	for line := range bytes.Lines(news[:whole]) {
		var l auditLine
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
		if l.Stage != "ResponseComplete" || l.ObjectRef == nil {
			continue
		}
		r := request{
			verb: l.Verb, resource: l.ObjectRef.Resource, subresource: l.ObjectRef.Subresource,
			namespace: l.ObjectRef.Namespace, name: l.ObjectRef.Name,
			uri: l.RequestURI, userAgent: l.UserAgent, received: l.Received.Time,
		}
		if l.ResponseStatus != nil {
			r.code = l.ResponseStatus.Code
		}
		if a.byScope == nil {
			a.byScope = map[string][]request{}
		}
		a.byScope[r.namespace] = append(a.byScope[r.namespace], r)
	}
	return nil
}

func (a *auditLog) of(namespace string) ([]request, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.read(); err != nil {
		return nil, err
	}
	return slices.Clone(a.byScope[namespace]), nil
}

// requests returns what was asked of the API server about pods and workflows of
// the fixture's namespace by the finalizerd with that user agent, in the order
// of arrival. It is complete for all that was answered before the call: the log
// is written before the answer, and a request of our own marks the place.
func (f *fixture) requests(userAgent string) []request {
	f.t.Helper()
	mark := fmt.Sprintf("mark-%d", f.plane.audit.marks.Add(1))
	if _, err := f.plane.admin.CoreV1().Pods(f.ns).Get(f.ctx, mark, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		f.t.Fatalf("mark the audit log: %v", err)
	}
	var found []request
	f.eventually("the mark is in the audit log", func() (bool, error) {
		all, err := f.plane.audit.of(f.ns)
		if err != nil {
			return false, err
		}
		found = slices.DeleteFunc(slices.Clone(all), func(r request) bool { return !strings.HasPrefix(r.userAgent, userAgent) })
		return slices.ContainsFunc(all, func(r request) bool { return r.name == mark }), nil
	})
	slices.SortStableFunc(found, func(a, b request) int { return cmp.Or(a.received.Compare(b.received), cmp.Compare(a.name, b.name)) })
	return found
}

// count is what requests cost.
type count struct{ Writes, PodReads, WorkflowReads int }

func countOf(requests []request) count {
	var c count
	for _, r := range requests {
		switch {
		case r.writes():
			c.Writes++
		case r.resource == "pods":
			c.PodReads++
		case r.resource == "workflows":
			c.WorkflowReads++
		}
	}
	return c
}

// ofPod narrows requests to one pod.
func ofPod(requests []request, name string) []request {
	return slices.DeleteFunc(slices.Clone(requests), func(r request) bool { return r.resource != "pods" || r.name != name })
}

func onlyWrites(requests []request) []request {
	return slices.DeleteFunc(slices.Clone(requests), func(r request) bool { return !r.writes() })
}

// wantNoConflict fails the test for each request that the API server refused for
// a newer version.
func wantNoConflict(t *testing.T, requests []request) {
	t.Helper()
	for _, r := range requests {
		if r.code == 409 {
			t.Errorf("%s: a conflict", r)
		}
	}
}
