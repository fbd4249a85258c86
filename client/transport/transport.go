package transport

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc"
)

// DefaultFinalizer is FIN of a service with default flags.
const DefaultFinalizer = "workflows.argoproj.io/status"

// The defaults of Options.
const (
	DefaultTimeout    = 10 * time.Second
	DefaultCreateWait = 10 * time.Second
	DefaultMaxBody    = 3 << 20 // the API server's own limit
)

// Service is what the transport asks of finalizerd; a *client.Client is one.
type Service interface {
	ReleasePod(ctx context.Context, in *finalizerv1.ReleasePodRequest, opts ...grpc.CallOption) (*finalizerv1.ReleasePodResponse, error)
	DeleteWorkflowPods(ctx context.Context, in *finalizerv1.DeleteWorkflowPodsRequest, opts ...grpc.CallOption) (*finalizerv1.DeleteWorkflowPodsResponse, error)
}

// WhenDown says what becomes of a recognised request while finalizerd cannot be
// reached, says UNAVAILABLE, or does not answer within Options.Timeout. A call
// that was not answered in time may still be carried out, whatever the caller is
// told. An API server that throttles the service, API_THROTTLED, is a 429 with
// either choice.
type WhenDown int

// The choices.
const (
	// Fail answers 503 with Retry-After. The caller repeats; that is safe whether
	// or not something was written, and something may be: by the service, late;
	// by a PATCH that adds a foreign finalizer, which is written before the
	// service is asked; and by a DELETE whose options the service cannot express,
	// a grace period above all, which the API server carries out and answers
	// first, so that its caller gets no 503.
	Fail WhenDown = iota
	// Bypass sends the caller's request to the API server as it is, but bound to
	// the UID of the pod that was read: a successor that takes the name meanwhile
	// is not hit. What finalizerd otherwise protects from, the loss of a result
	// that is not stored and a late clean-up of the pod that has the name, can
	// then happen. A create that met a terminating pod gets the API server's 409.
	Bypass
)

// Options change what New builds. The zero value is usable.
type Options struct {
	// Finalizer is FIN, as the service has it. Empty: DefaultFinalizer.
	Finalizer string
	// BasePath is the path of the API server's URL. Empty: requests are
	// recognised under any prefix that has no element "api" or "apis".
	BasePath string
	// AddFinalizer puts FIN on workflow pods as they are created.
	AddFinalizer bool
	WhenDown     WhenDown
	// Timeout bounds one call of the service. 0: DefaultTimeout.
	Timeout time.Duration
	// CreateWait bounds how long a create waits for the pod that still has its
	// name. 0: DefaultCreateWait; negative: such a create is not helped.
	CreateWait time.Duration
	// MaxBody is the largest request body that is looked at, in bytes; a larger
	// one passes through. 0: DefaultMaxBody.
	MaxBody int64
	// Observe, if not nil, is told of each thing the transport did other than
	// passing a request through. It is called by many goroutines at once and
	// must not block.
	Observe func(Event)
}

// Action is the kind of an Event; its text is fit for a metric's label.
type Action string

// The actions.
const (
	// Released: a PATCH went through ReleasePod.
	Released Action = "released"
	// Deleted: a DELETE went through DeleteWorkflowPods.
	Deleted Action = "deleted"
	// Refused: the service refused, and the caller got a 409; for a create that
	// is the API server's.
	Refused Action = "refused"
	// Direct: a DELETE went to the API server with the pod's UID, because the
	// pod is not captured yet or the service cannot express the options.
	Direct Action = "direct"
	// Unmanaged: the API server alone decided, because the service is not in
	// charge of the pod or the caller may not read it. The request was bound to
	// the UID if that was read.
	Unmanaged Action = "unmanaged"
	// Unavailable: the caller got a 503, 429, 403 or 500, because the service
	// could not do its work.
	Unavailable Action = "unavailable"
	// Bypassed: the service was down and the API server alone decided; the request
	// was bound to the pod's UID.
	Bypassed Action = "bypassed"
	// FinalizerAdded: a pod was created with FIN by AddFinalizer.
	FinalizerAdded Action = "finalizer_added"
	// Recreated: a create succeeded after the pod that had its name was released.
	Recreated Action = "recreated"
)

// Actions lists all actions, for metrics that start at zero.
func Actions() []Action {
	return []Action{Released, Deleted, Refused, Direct, Unmanaged, Unavailable, Bypassed, FinalizerAdded, Recreated}
}

// Event is one thing that the transport did. Err is the service's error, if one
// led to it.
type Event struct {
	Action    Action
	Namespace string
	Pod       string
	Err       error
}

// New returns a wrapper for rest.Config.Wrap, which must stand inside of those
// that add credentials; client-go's do. It panics when service is nil.
func New(service Service, o Options) func(http.RoundTripper) http.RoundTripper {
	if service == nil {
		panic("transport: the service is nil")
	}
	if o.Finalizer == "" {
		o.Finalizer = DefaultFinalizer
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.CreateWait == 0 {
		o.CreateWait = DefaultCreateWait
	}
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	o.BasePath = strings.TrimRight(o.BasePath, "/")
	return func(next http.RoundTripper) http.RoundTripper {
		if next == nil {
			next = http.DefaultTransport
		}
		return &roundTripper{service: service, options: o, next: next}
	}
}

type roundTripper struct {
	service Service
	options Options
	next    http.RoundTripper
}

// WrappedRoundTripper returns what is wrapped, for client-go, which looks for
// the TLS configuration underneath.
func (t *roundTripper) WrappedRoundTripper() http.RoundTripper { return t.next }

// CloseIdleConnections passes the call on.
func (t *roundTripper) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip sends req, or what finalizerd makes of it.
func (t *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	target, ok := recognise(req, t.options.BasePath)
	if !ok {
		return t.next.RoundTrip(req)
	}
	c, err := t.buffer(req, target)
	if err != nil {
		return nil, err
	}
	switch {
	case c.tooLarge:
		return t.next.RoundTrip(c.req)
	case req.Method == http.MethodPatch:
		return c.patch()
	case req.Method == http.MethodDelete:
		return c.delete()
	}
	return c.create()
}

// call is one recognised request.
type call struct {
	*roundTripper
	ctx    context.Context
	req    *http.Request // its body is read already, unless tooLarge
	target target
	body   []byte
	// tooLarge: the body was left alone but for what had been read, which req
	// has in front of the rest.
	tooLarge bool
}

func (c *call) observe(a Action, err error) {
	if c.options.Observe != nil {
		c.options.Observe(Event{Action: a, Namespace: c.target.namespace, Pod: c.target.pod, Err: err})
	}
}

// failed says what the caller gets for an error of the service that is no
// decision about the pod. without gives the API server's answer without the
// service. A UID has been read by then, and the service may have taken its time:
// by name alone, without could hit a successor.
func (c *call) failed(err error, without func() (*http.Response, error)) (*http.Response, error) {
	if c.ctx.Err() != nil {
		return nil, c.ctx.Err()
	}
	switch f := classify(err); {
	case f == faultForeign:
		c.observe(Unmanaged, err)
		return without()
	case f == faultRefused:
		c.observe(Refused, err)
		return c.conflict(err), nil
	case f == faultDown && c.options.WhenDown == Bypass:
		c.observe(Bypassed, err)
		return without()
	default:
		c.observe(Unavailable, err)
		return c.unable(f, err), nil
	}
}

// within returns a context for one call of the service.
func (c *call) within() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(c.ctx, c.options.Timeout, errServiceSilent)
}

var errServiceSilent = errors.New("finalizerd did not answer in time")
