package kube

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestFaultsEndByClearOrByTime(t *testing.T) {
	right := use{verb: verbDelete, resource: podsResource, namespace: "a"}
	forbidden := &finalizer.Error{Kind: finalizer.KindForbidden, Message: "right"}
	outage := &finalizer.Error{Kind: finalizer.KindUnavailable, Message: "outage"}
	type step func(*faults)
	note := func(e *finalizer.Error) step { return func(f *faults) { f.note(right, e) } }
	set := func(f *faults) { f.set(right, forbidden) }
	wait := func(d time.Duration) step { return func(*faults) { time.Sleep(d) } }
	elsewhere := right
	elsewhere.namespace = "b"
	cases := map[string]struct {
		steps []step
		want  bool
	}{
		"a request that lacks a right":                   {[]step{note(forbidden)}, true},
		"a failure of the moment is none":                {[]step{note(outage)}, false},
		"it stands while it may still be sent again":     {[]step{note(forbidden), wait(noteLasts - 1)}, true},
		"it ends if it is never sent again":              {[]step{note(forbidden), wait(noteLasts)}, false},
		"it stands while others like it fail":            {[]step{note(forbidden), wait(noteLasts - 1), note(forbidden), wait(noteLasts - 1)}, true},
		"success ends it":                                {[]step{note(forbidden), func(f *faults) { f.clear(right) }}, false},
		"success in another namespace does not":          {[]step{note(forbidden), func(f *faults) { f.clear(elsewhere) }}, true},
		"that of a watch stands until the watch works":   {[]step{set, wait(time.Hour)}, true},
		"a request does not shorten that of a watch":     {[]step{set, note(forbidden), wait(time.Hour)}, true},
		"a watch makes that of a request stand":          {[]step{note(forbidden), set, wait(time.Hour)}, true},
		"success ends that of a watch":                   {[]step{set, func(f *faults) { f.clear(right) }}, false},
		"one that is over can come again":                {[]step{note(forbidden), wait(time.Hour), note(forbidden)}, true},
		"one that is over does not hide that of a watch": {[]step{note(forbidden), wait(time.Hour), set, wait(time.Hour)}, true},
	}
	for name, tc := range cases {
		t.Run("B14: "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f faults
				for _, do := range tc.steps {
					do(&f)
				}
				if got := f.get(right) != nil; got != tc.want {
					t.Errorf("a fault stands: %v, want %v", got, tc.want)
				}
				if got := len(f.list()) > 0; got != tc.want {
					t.Errorf("a fault is listed: %v, want %v", got, tc.want)
				}
				if got := len(f.byUse) > 0; got != tc.want {
					t.Errorf("a fault is remembered: %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// scripted answers each request by a function, without a socket.
type scripted func(*http.Request) (code int, body string)

func (s scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	code, body := s(r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewBufferString(body)), Request: r,
	}, nil
}

func (s scripted) client(t *testing.T) *Client {
	t.Helper()
	c, err := New(&rest.Config{Host: "http://host", Transport: s}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const writtenBody = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"namespace":"ns","name":"p","uid":"a","resourceVersion":"5"}}`

// mayNot is the answer to an account that lacks a right in a namespace.
func mayNot(verb, namespace string) (int, string) {
	return 403, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"pods \"p\" is forbidden: User \"u\" cannot ` +
		verb + ` resource \"pods\" in API group \"\" in the namespace \"` + namespace + `\""}`
}

func TestAFaultOfWhatOnlyCallersAskForEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(func(r *http.Request) (int, string) {
			if r.Method == http.MethodDelete {
				return mayNot("delete", "ns")
			}
			return 200, writtenBody
		}).client(t)
		if _, err := c.Writer.Delete(t.Context(), target); finalizer.KindOf(err) != finalizer.KindForbidden {
			t.Fatalf("got %v", err)
		}
		for end := time.Now().Add(noteLasts); time.Now().Before(end); time.Sleep(10 * time.Second) {
			if f := c.Faults(); len(f) != 1 || f[0].Verb != verbDelete {
				t.Fatalf("B14: faults %v, want delete pods", f)
			}
			// What the reconciler does by itself: it never deletes.
			if _, err := c.Writer.Release(t.Context(), target, false); err != nil {
				t.Fatal(err)
			}
		}
		if f := c.Faults(); len(f) != 0 {
			t.Errorf("B14: faults %v of a request that nobody sends any more", f)
		}
	})
}

func TestAFaultOfOneNamespaceStandsWhileOthersWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(func(r *http.Request) (int, string) {
			if strings.Contains(r.URL.Path, "/namespaces/sick/") {
				return mayNot("patch", "sick")
			}
			return 200, writtenBody
		}).client(t)
		sick := target
		sick.Pod.Namespace = "sick"
		for i := range 20 {
			_, _ = c.Writer.Release(t.Context(), sick, false)
			if _, err := c.Writer.Release(t.Context(), target, false); err != nil {
				t.Fatal(err)
			}
			if n := len(c.Faults()); n != 1 {
				t.Fatalf("B14: %d faults after write %d, want the one of the namespace where the right is missing", n, i)
			}
		}
	})
}
