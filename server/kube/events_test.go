package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// eventStore answers POST and PATCH of events.
type eventStore struct {
	*apiServer
	mu      sync.Mutex
	created []eventsv1.Event
	patched []eventsv1.Event // series alone
}

// newEventStore asks refuse for an answer of its own, nil for none.
func newEventStore(t *testing.T, refuse func(*http.Request) *metav1.Status) *eventStore {
	s := &eventStore{}
	s.apiServer = newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/apis/events.k8s.io/v1/") {
			<-r.Context().Done() // the watches
			return
		}
		if status := refuse(r); status != nil {
			sendJSON(t, w, int(status.Code), status)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var ev eventsv1.Event
		if r.Method == "POST" {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &ev)
		} else {
			err = json.Unmarshal(body, &ev)
		}
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		if r.Method == "POST" {
			s.created = append(s.created, ev)
		} else {
			s.patched = append(s.patched, ev)
		}
		s.mu.Unlock()
		sendJSON(t, w, 200, &ev)
	})
	return s
}

func (s *eventStore) counts() (created, patched int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.created), len(s.patched)
}

func (s *eventStore) asked() int {
	n := 0
	for _, q := range s.requests() {
		if strings.HasPrefix(q.uri, "/apis/events.k8s.io/") {
			n++
		}
	}
	return n
}

func running(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func podEvent(name string) finalizer.Event {
	return finalizer.Event{
		Workflow: wf("w"), WorkflowUID: "wu", Pod: finalizer.PodID{Namespace: "ns", Name: name, UID: "a"},
		Warning: true, Reason: "NodeLost", Action: "Release", Note: "100% of it",
	}
}

var taken = func(*http.Request) *metav1.Status { return nil }

func TestEventsOnTheWire(t *testing.T) {
	s := newEventStore(t, taken)
	c := s.client(t, Options{})
	c.Events.Record(podEvent("p")) // before Run
	running(t, c)
	bulk := finalizer.Event{Workflow: wf("w"), WorkflowUID: "wu", Reason: "Released", Action: "ReleaseAll", Note: strings.Repeat("é", 600)}
	c.Events.Record(bulk)
	eventually(t, "both events", func() bool { n, _ := s.counts(); return n == 2 })
	byKind := map[string]eventsv1.Event{}
	for _, ev := range s.created {
		if ev.EventTime.IsZero() || !strings.HasPrefix(ev.ReportingInstance, reporter) || len(ev.ReportingInstance) > 128 || ev.Namespace != "ns" {
			t.Errorf("got %+v", ev)
		}
		byKind[ev.Regarding.Kind] = ev
	}
	pod, workflow := byKind["Pod"], byKind["Workflow"]
	want := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "ns", Name: "p", UID: "a"}
	if diff := cmp.Diff(want, pod.Regarding); diff != "" {
		t.Errorf("of the pod (-want +got)\n%s", diff)
	}
	if got := fmt.Sprint(pod.Type, pod.Reason, pod.Action, pod.Note, pod.ReportingController); got != "WarningNodeLostRelease100% of itfinalizerd.dev/finalizerd" {
		t.Errorf("of the pod: %s", got)
	}
	want = corev1.ObjectReference{Kind: "Workflow", APIVersion: "argoproj.io/v1alpha1", Namespace: "ns", Name: "w", UID: "wu"}
	if diff := cmp.Diff(want, workflow.Regarding); diff != "" {
		t.Errorf("of the workflow (-want +got)\n%s", diff)
	}
	if workflow.Type != "Normal" || len(workflow.Note) != maxNote || !utf8.ValidString(workflow.Note) {
		t.Errorf("type %s, note of %d bytes", workflow.Type, len(workflow.Note))
	}
}

func TestANoteIsCutBetweenLetters(t *testing.T) {
	var got eventsv1.Event
	r := recorderFunc(func(note string) { got.Note = note })
	for _, note := range []string{"x" + strings.Repeat("é", 600), "bad \xff byte", ""} {
		ev := podEvent("p")
		ev.Note = note
		record(r, ev)
		if len(got.Note) > maxNote || !utf8.ValidString(got.Note) {
			t.Errorf("note of %d bytes, valid %v", len(got.Note), utf8.ValidString(got.Note))
		}
	}
}

type recorderFunc func(note string)

func (f recorderFunc) Eventf(_, _ runtime.Object, _, _, _, note string, args ...any) {
	f(fmt.Sprintf(note, args...))
}

func TestEqualEventsBecomeASeries(t *testing.T) {
	s := newEventStore(t, taken)
	c := s.client(t, Options{})
	running(t, c)
	c.Events.Record(podEvent("p"))
	eventually(t, "the first", func() bool { n, _ := s.counts(); return n == 1 })
	for range 100 {
		c.Events.Record(podEvent("p"))
	}
	c.Events.Record(podEvent("last"))
	eventually(t, "the series and the last", func() bool { n, m := s.counts(); return n == 2 && m == 1 })
	if series := s.patched[0].Series; series == nil || series.Count != 2 {
		t.Errorf("series %+v", series)
	}
}

func TestManyEventsAreAllStored(t *testing.T) {
	s := newEventStore(t, taken)
	c := s.client(t, Options{})
	const many = 400
	for i := range many {
		c.Events.Record(podEvent(fmt.Sprint("p", i)))
	}
	running(t, c)
	eventually(t, "all of them", func() bool { n, _ := s.counts(); return n == many })
}

func TestRecordNeverBlocks(t *testing.T) {
	c := newAPIServer(t, nil).client(t, Options{})
	for range eventQueue + 100 { // nothing takes them: Run is not called
		c.Events.Record(podEvent("p"))
	}
	if n := len(c.Events.queue); n != eventQueue {
		t.Errorf("%d queued, want %d", n, eventQueue)
	}
}

func TestEventsThatAreRefused(t *testing.T) {
	right := failure(403, metav1.StatusReasonForbidden, `events.events.k8s.io is forbidden: User "u" cannot create resource "events" in API group "events.k8s.io" in the namespace "ns"`, nil)
	ending := failure(403, metav1.StatusReasonForbidden, `events.events.k8s.io "p.1" is forbidden: unable to create new content in namespace ns because it is being terminated`, nil)
	cases := map[string]struct {
		answer *metav1.Status
		fault  string
		most   int // requests for 50 events
	}{
		"B14: for want of a right: it is named, and not asked again at once": {right, "create events", 2 * eventsInFlight},
		"B35: since the namespace ends: no right is missing":                 {ending, "", 50},
		"as malformed": {failure(422, metav1.StatusReasonInvalid, "x", nil), "", 50},
		"B39: by an API server that is down, which is not asked again at once": {failure(503, metav1.StatusReasonServiceUnavailable, "x", nil), "", 2 * eventsInFlight},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newEventStore(t, func(*http.Request) *metav1.Status { return tc.answer })
			c := s.client(t, Options{})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); c.Events.run(ctx) }()
			for i := range 50 {
				c.Events.Record(podEvent(fmt.Sprint("p", i)))
			}
			eventually(t, "the first answer", func() bool { return s.asked() > 0 })
			if tc.most == 50 {
				eventually(t, "each is tried once", func() bool { return s.asked() == 50 })
			} else {
				eventually(t, "the pause", func() bool { return c.Events.sink.paused(time.Now()) > 0 })
			}
			fault := ""
			for _, f := range c.Faults() {
				fault += f.Verb + " " + f.Resource
			}
			if fault != tc.fault {
				t.Errorf("faults %q, want %q", fault, tc.fault)
			}
			cancel()
			<-ended
			if n := s.asked(); n > tc.most {
				t.Errorf("%d requests, want at most %d", n, tc.most)
			}
		})
	}
}

func TestEventsGoOnAfterAnOutage(t *testing.T) {
	var granted atomic.Bool
	s := newEventStore(t, func(*http.Request) *metav1.Status {
		if granted.Load() {
			return nil
		}
		return failure(403, metav1.StatusReasonForbidden, `User "u" cannot create resource "events"`, nil)
	})
	c := s.client(t, Options{})
	c.Events.sink.pause = 50 * time.Millisecond
	running(t, c)
	c.Events.Record(podEvent("lost"))
	eventually(t, "the fault", func() bool {
		return c.faults.get(use{verb: verbCreate, resource: eventsResource, namespace: "ns"}) != nil
	})
	c.Events.Record(podEvent("kept"))
	granted.Store(true)
	eventually(t, "B14: what came during the pause is stored", func() bool { n, _ := s.counts(); return n > 0 })
	// The server counts before the client has the answer.
	eventually(t, "B14: with the right the fault goes", func() bool {
		return c.faults.get(use{verb: verbCreate, resource: eventsResource, namespace: "ns"}) == nil
	})
}
