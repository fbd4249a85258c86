package finalizer

import (
	"context"
	"errors"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/lane"
)

// Config is what a Service is made of. Cache, Held, Reader, Writer and Lanes are
// required.
type Config struct {
	Cache  Cache
	Held   Held
	Reader Reader
	Writer Writer
	Lanes  *Lanes
	Policy Policy
	// Synced returns nil once Cache is filled. Nil: it always is.
	Synced func() error
	// Unhider, Events and Observe may be nil; without Unhider nothing is
	// unhidden.
	Unhider Unhider
	Events  Events
	Observe func(Act)
	// Nodes tells GetPod the health of cluster nodes. Nil: unknown.
	Nodes Nodes
	// Namespaces are those that are served. Empty: all.
	Namespaces []string
	// RequestMemory is how long the answer of a request_id is kept. 0: an hour.
	RequestMemory time.Duration
	// Workers bounds the pods of one bulk call that are worked on at a time; the
	// writes among them pass Writer's own limit. 0: 64.
	Workers int
}

// Lanes are the lanes of workflows, with the pod's name as sub key.
type Lanes = lane.Lanes[WorkflowKey, string]

// Service is the one way through. It is safe for concurrent use and runs nothing
// of its own.
type Service struct {
	cache     Cache
	held      Held
	reader    Reader
	writer    Writer
	lanes     *Lanes
	calls     *lane.Calls[WorkflowKey, string, call, Result]
	policy    Policy
	synced    func() error
	workers   int
	captures  captures
	standings standings
	acts      acts
	unhider   Unhider
	nodes     Nodes
	served    map[string]struct{}
	requests  *requestMemory
	works     works
	// reads lets who asks for one workflow at a time share the read and what is
	// learnt from it: a workflow's pods are many, and each may ask.
	reads *lane.Calls[WorkflowKey, struct{}, struct{}, Workflow]
}

// New composes a Service. It starts nothing.
func New(c Config) *Service {
	s := &Service{
		cache: c.Cache, held: c.Held, reader: c.Reader, writer: c.Writer,
		lanes: c.Lanes, calls: lane.NewCalls[WorkflowKey, string, call, Result](c.Lanes),
		policy: c.Policy, synced: c.Synced, workers: c.Workers,
		acts: acts{events: c.Events, observe: c.Observe}, unhider: c.Unhider, nodes: c.Nodes,
	}
	if len(c.Namespaces) > 0 {
		s.served = make(map[string]struct{}, len(c.Namespaces))
		for _, ns := range c.Namespaces {
			s.served[ns] = struct{}{}
		}
	}
	if s.synced == nil {
		s.synced = func() error { return nil }
	}
	if s.workers <= 0 {
		s.workers = 64
	}
	if c.RequestMemory <= 0 {
		c.RequestMemory = time.Hour
	}
	s.requests = newRequestMemory(c.RequestMemory)
	// Who waits here holds a lane and was counted there.
	s.reads = lane.NewCalls[WorkflowKey, struct{}, struct{}, Workflow](
		lane.New[WorkflowKey, struct{}](lane.Options{MaxWaiters: math.MaxInt}))
	return s
}

// PodGone drops what is remembered of a pod. The cache calls it when the pod's
// UID has left the API.
func (s *Service) PodGone(uid types.UID) {
	s.captures.forget(uid)
	s.standings.forget(uid)
}

// ready refuses calls before the cache is filled, and those on a namespace that
// is not served.
func (s *Service) ready(namespace string) error {
	if _, ok := s.served[namespace]; s.served != nil && !ok && namespace != "" {
		return &Error{Kind: KindNotServed, Message: "this finalizerd does not serve namespace \"" + namespace + "\"; call the one that does, or add it to --namespaces"}
	}
	return s.synced()
}

// ReadWorkflow is a live read whose captures are learnt. Those who ask for one
// workflow at a time share it; an answer rests on a read that began after the
// call. Errors: those of Reader.
func (s *Service) ReadWorkflow(ctx context.Context, key WorkflowKey) (Workflow, error) {
	wf, err := s.readWorkflow(ctx, key)
	return wf, laneError(err)
}

// Remembered reports whether a live read once showed this UID captured.
func (s *Service) Remembered(uid types.UID) bool { return s.captures.has(uid) }

// readWorkflow reads live and learns the captures that the read shows. Those who
// ask while a read is under way share the next one: an answer rests on a read
// that began after the call.
func (s *Service) readWorkflow(ctx context.Context, key WorkflowKey) (Workflow, error) {
	wf, _, err := s.reads.Do(ctx, key, struct{}{}, struct{}{},
		func(ctx context.Context) (Workflow, error) { return s.readAndLearn(ctx, key) })
	return wf, err
}

// readAndLearn learns nothing of pods that were unknown when the read began.
func (s *Service) readAndLearn(ctx context.Context, key WorkflowKey) (Workflow, error) {
	known := s.cache.PodsOfWorkflow(key)
	wf, err := s.reader.Workflow(ctx, key)
	if err != nil {
		return Workflow{}, err
	}
	s.captures.learn(s.policy, known, wf)
	for i := range known {
		if p, ok := s.cache.Pod(known[i].Namespace, known[i].Name); !ok || p.UID != known[i].UID {
			s.captures.forget(known[i].UID) // it went meanwhile, nobody will tell
		}
	}
	return wf, nil
}

// resolve finds the pod of a name, and checks that it is the UID that was asked
// for. The cache answers where it agrees with the request; all else is read
// live. Errors: KindPodNotFound, KindReplaced, those of Reader.
func (s *Service) resolve(ctx context.Context, id PodID) (Pod, error) {
	if p, ok := s.cache.Pod(id.Namespace, id.Name); ok && (id.UID == "" || p.UID == id.UID) {
		return p, nil
	}
	p, err := s.reader.Pod(ctx, id.Namespace, id.Name)
	if err != nil {
		return Pod{}, err
	}
	if id.UID != "" && p.UID != id.UID {
		return Pod{}, replaced(id)
	}
	return p, nil
}

// admit checks that the pod is one of this instance's workflow pods. With force,
// a pod that only FIN and no controller holds will do: nobody else releases it.
func (s *Service) admit(p *Pod, force bool) error {
	abandoned := p.Owner.None() && p.Has(s.policy.Finalizer)
	if !p.Owner.IsWorkflow() && !(force && abandoned) {
		return &Error{Kind: KindNotWorkflowPod, Pod: p.PodID,
			Message: "the pod's controller is not an Argo Workflow; only workflow pods are acted upon"}
	}
	if p.InstanceID != s.policy.InstanceID {
		return &Error{Kind: KindOtherInstance, Pod: p.PodID, InstanceID: p.InstanceID,
			Message: "the pod belongs to the controller with instance id \"" + p.InstanceID + "\"; call the finalizerd of that instance"}
	}
	return nil
}

// unnamed refuses an assertion, or a pod to act on, without its UID: it would
// hit whichever pod has the name by then.
func unnamed(field string) *Error {
	const why = "a UID is required: the name may have passed to another pod"
	return &Error{Kind: KindInvalid, Message: why, Violations: []Violation{{Field: field, Description: why}}}
}

func replaced(id PodID) *Error {
	return &Error{Kind: KindReplaced, Pod: id,
		Message: "the name belongs to another pod than UID " + string(id.UID) + " now; nothing was written"}
}

func notCaptured(id PodID, r Reason, explanation string) *Error {
	return &Error{Kind: KindNotCaptured, Pod: id, Reason: r, Message: "refused: " + explanation}
}

// workflow is the key of the pod's lane; its Name is empty without an owner.
func (p *Pod) workflow() WorkflowKey { return WorkflowKey{p.Namespace, p.Owner.Name} }

func (p *Pod) target() Target { return Target{Workflow: p.workflow(), Pod: p.PodID} }

// laneError turns what a lane or a context says into an Error.
func laneError(err error) error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return err
	case errors.Is(err, lane.ErrBusy):
		return &Error{Kind: KindBusy, RetryAfter: time.Second, Err: err,
			Message: "too many calls wait for this workflow; try again a little later"}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Kind: KindDeadline, Err: err,
			Message: "the deadline passed; nothing was written for what had not begun"}
	case errors.Is(err, context.Canceled):
		return &Error{Kind: KindCanceled, Err: err, Message: "the caller left"}
	}
	return &Error{Kind: KindInternal, Message: "internal fault", Err: err}
}

// asError is laneError for places that keep the type.
func asError(err error) *Error {
	var e *Error
	if errors.As(laneError(err), &e) {
		return e
	}
	return nil
}
