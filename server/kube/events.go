package kube

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const (
	eventsResource = "events"
	verbCreate     = "create"

	// reporter is the reportingController of the events.
	reporter = "finalizerd.dev/finalizerd"
	// maxNote is what the API server accepts, in bytes.
	maxNote = 1024

	// eventQueue bounds the events that wait; past it they are lost.
	eventQueue = 8192
	// eventPace keeps the broadcaster's own queue, which drops what it cannot
	// hold, ahead of what it is given.
	eventPace = 2 * time.Millisecond
	// eventsInFlight is small: events must not compete with writes to pods.
	eventsInFlight = 2
	// eventsAhead bounds the goroutines that the broadcaster makes, one an event.
	eventsAhead  = 16
	eventTimeout = 10 * time.Second
	eventPause   = 10 * time.Second
)

// Events implements finalizer.Events by the broadcaster of client-go, which makes
// series of equal events. An event that cannot be stored for want of a right is
// lost, with a fault; one that meets an outage is tried for about two minutes.
type Events struct {
	queue chan finalizer.Event
	sink  *eventSink
}

// newEvents takes what stores events; usually events.EventSinkImpl.
func newEvents(store events.EventSink, f *faults) *Events {
	return &Events{
		queue: make(chan finalizer.Event, eventQueue),
		sink:  &eventSink{store: store, faults: f, pause: eventPause, slots: make(chan struct{}, eventsInFlight)},
	}
}

// Record implements finalizer.Events. What is recorded before Client.Run is kept
// for it, and what is still queued when Run ends is lost.
func (e *Events) Record(ev finalizer.Event) {
	select {
	case e.queue <- ev:
	default:
	}
}

// run hands events over, no faster than they are stored, until ctx is done.
func (e *Events) run(ctx context.Context) {
	// The broadcaster logs each refusal with the whole event; faults tell it once.
	silent := klog.NewContext(ctx, klog.Logger{})
	b := events.NewBroadcaster(e.sink)
	defer b.Shutdown()
	if err := b.StartRecordingToSinkWithContext(silent); err != nil {
		return // it was shut down already, which only this function does
	}
	recorder := b.NewRecorder(scheme.Scheme, reporter).WithLogger(klog.Logger{})
	for {
		select {
		case <-ctx.Done():
			return
		case ev := <-e.queue:
			if !e.sink.ready(ctx) {
				return
			}
			record(recorder, ev)
		}
		if !sleep(ctx, eventPace) {
			return
		}
	}
}

func record(r events.EventRecorder, ev finalizer.Event) {
	about := corev1.ObjectReference{
		Kind: "Workflow", APIVersion: argoVersion.String(),
		Namespace: ev.Workflow.Namespace, Name: ev.Workflow.Name, UID: ev.WorkflowUID,
	}
	if ev.Pod != (finalizer.PodID{}) {
		about = corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1",
			Namespace: ev.Pod.Namespace, Name: ev.Pod.Name, UID: ev.Pod.UID,
		}
	}
	kind := corev1.EventTypeNormal
	if ev.Warning {
		kind = corev1.EventTypeWarning
	}
	note := ev.Note[:min(len(ev.Note), maxNote)]
	r.Eventf(&about, nil, kind, ev.Reason, ev.Action, "%s", strings.ToValidUTF8(note, ""))
}

// eventSink stands before the store: few events in flight, none for a while after
// a failure, and what operators have to mend is noted.
type eventSink struct {
	store  events.EventSink
	faults *faults
	pause  time.Duration
	slots  chan struct{}

	mu     sync.Mutex
	inside int
	until  time.Time // of the pause
}

var errEventsPaused = errors.New("events are not sent for a while after a failure")

// Create implements events.EventSink.
func (s *eventSink) Create(ctx context.Context, ev *eventsv1.Event) (*eventsv1.Event, error) {
	return s.send(ctx, verbCreate, ev, func(ctx context.Context) (*eventsv1.Event, error) { return s.store.Create(ctx, ev) })
}

// Update implements events.EventSink. The broadcaster never calls it.
func (s *eventSink) Update(ctx context.Context, ev *eventsv1.Event) (*eventsv1.Event, error) {
	return s.send(ctx, "update", ev, func(ctx context.Context) (*eventsv1.Event, error) { return s.store.Update(ctx, ev) })
}

// Patch implements events.EventSink.
func (s *eventSink) Patch(ctx context.Context, ev *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	return s.send(ctx, verbPatch, ev, func(ctx context.Context) (*eventsv1.Event, error) { return s.store.Patch(ctx, ev, data) })
}

func (s *eventSink) send(ctx context.Context, verb string, ev *eventsv1.Event, do func(context.Context) (*eventsv1.Event, error)) (*eventsv1.Event, error) {
	s.count(1)
	defer s.count(-1)
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.paused(time.Now()) > 0 {
		return nil, errEventsPaused // not a word of the API server: it is tried again
	}
	limited, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	stored, err := do(limited)
	about := request{verb: verb, resource: eventsResource, namespace: ev.Namespace, name: ev.Name}
	if err == nil {
		s.faults.clear(about.use())
		return stored, nil
	}
	e := classify(err, ctx.Err(), about)
	s.faults.note(about.use(), e)
	if e.Kind.Retriable() || e.Kind == finalizer.KindForbidden {
		s.mu.Lock()
		s.until = time.Now().Add(s.pause)
		s.mu.Unlock()
	}
	return nil, err
}

func (s *eventSink) count(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside += by
}

func (s *eventSink) paused(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until.Sub(now)
}

func (s *eventSink) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside >= eventsAhead
}

// ready waits until another event may come; false: ctx is done.
func (s *eventSink) ready(ctx context.Context) bool {
	for {
		wait := s.paused(time.Now())
		if wait <= 0 {
			if !s.full() {
				return true
			}
			wait = eventPace
		}
		if !sleep(ctx, wait) {
			return false
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
