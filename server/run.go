package server

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/server/finalizer"
	"github.com/finalizerd/finalizerd/server/kube"
	"github.com/finalizerd/finalizerd/server/lane"
	"github.com/finalizerd/finalizerd/server/reconcile"
)

// Config is all that finalizerd needs. Kubernetes and Frontend.Log are required;
// of Frontend, Run itself sets Core, Finalizer and Checks.
type Config struct {
	Frontend

	// Kubernetes says how to reach the API server.
	Kubernetes *rest.Config
	// Policy holds the thresholds; see finalizer.DefaultPolicy.
	Policy finalizer.Policy
	// MaxWaiters bounds the callers that wait for one workflow. 0: the default
	// of package lane.
	MaxWaiters int
	// MaxWritesInFlight is the ceiling of the adaptive limit. 0: the default of
	// package kube.
	MaxWritesInFlight int
	// RequestMemory is how long the answer of a request_id is kept. 0: an hour.
	RequestMemory time.Duration
	// UserAgent is what the API server's audit log shows. Empty: "finalizerd".
	UserAgent string
	// Namespaces are the only ones that are watched and served. Empty: all.
	Namespaces []string

	// Reconcile says what is done without any call. The zero value: nothing.
	Reconcile ReconcileMode
	// ReconcileWorkers is how many workflows are reconciled at a time,
	// ReadInterval the least time between two reads of one of them, and Resync
	// the time after which all has been looked at again. 0: the defaults of
	// package reconcile.
	ReconcileWorkers     int
	ReadInterval, Resync time.Duration
}

// DefaultConfig has the defaults of all that is not zero by default. Kubernetes
// and Log are left to the caller.
func DefaultConfig() Config {
	return Config{
		Frontend: Frontend{
			GRPCAddress:     DefaultGRPCAddress,
			HTTPAddress:     DefaultHTTPAddress,
			DefaultDeadline: DefaultDeadline,
			ShutdownTimeout: DefaultShutdownTimeout,
		},
		Policy:            finalizer.DefaultPolicy(),
		MaxWaiters:        lane.DefaultMaxWaiters,
		MaxWritesInFlight: 64,
		RequestMemory:     time.Hour,
		Reconcile:         ReconcileOn,
		ReconcileWorkers:  32,
		ReadInterval:      3 * time.Second,
		Resync:            10 * time.Minute,
	}
}

// startTimeout bounds the first question to the API server.
const startTimeout = 15 * time.Second

// Run serves until ctx ends, and then returns nil. It returns an error, a
// sentence that says what to do, when the API server does not answer at the
// start or a listener cannot be opened. Later failures of the API server end
// nothing: readiness tells, and work resumes by itself.
func Run(ctx context.Context, c Config) error {
	if c.Registry == nil {
		c.Registry = NewRegistry()
	}
	p, err := compose(c)
	if err != nil {
		return err
	}
	if err := reachable(ctx, p.client); err != nil {
		return err
	}
	c.Core, c.Finalizer, c.Checks = p.core, c.Policy.Finalizer, p.checks()
	front, err := open(ctx, c.Frontend)
	if err != nil {
		return err
	}
	return runBoth(ctx, p.client.Run, beside(front.run, p.reconciler.Run))
}

// parts are what Run runs, below the listeners.
type parts struct {
	client     *kube.Client
	core       *finalizer.Service
	reconciler *reconcile.Reconciler
}

// compose makes the parts and starts nothing.
func compose(c Config) (*parts, error) {
	metrics, err := newCoreMetrics(c.Registry)
	if err != nil {
		return nil, err
	}
	acts, err := newActMetrics(c.Registry)
	if err != nil {
		return nil, err
	}
	// The client tells of nothing before it runs, and by then all parts are
	// there.
	p := new(parts)
	p.client, err = kube.New(c.Kubernetes, kube.Options{
		Finalizer:         c.Policy.Finalizer,
		MaxWritesInFlight: c.MaxWritesInFlight,
		UserAgent:         c.UserAgent,
		Namespaces:        c.Namespaces,
		Observe:           metrics.request,
		OnPodGone:         func(uid types.UID) { p.core.PodGone(uid) },
		OnChange:          func(key finalizer.WorkflowKey) { p.reconciler.Changed(key) },
	})
	if err != nil {
		return nil, err
	}
	client := p.client
	lanes := lane.New[finalizer.WorkflowKey, string](lane.Options{MaxWaiters: c.MaxWaiters, Observe: metrics.lane})
	p.core = finalizer.New(finalizer.Config{
		Cache: client.Cache, Held: client.Cache, Reader: client.Reader, Writer: client.Writer,
		Unhider: client.Writer, Events: client.Events, Nodes: client.Nodes, Namespaces: c.Namespaces,
		Observe: audited(c.Log, acts.act), Synced: client.Synced,
		Lanes: lanes, Policy: c.Policy, RequestMemory: c.RequestMemory,
	})
	if p.reconciler, err = newReconciler(c, client, p.core); err != nil {
		return nil, err
	}
	if err := gauges(c.Registry, lanes.Depth, client.Writer.Load); err != nil {
		return nil, err
	}
	return p, register(c.Registry, newHeldMetrics(client.Cache.Counts, p.core.HeldByReason), newFaultMetrics(client.Faults))
}

func (p *parts) checks() []Check {
	check := func(name string, run func() error) Check {
		return Check{Name: name, Run: func(context.Context) error { return run() }}
	}
	return []Check{
		check("caches", func() error { return sentence(p.client.Synced()) }),
		check("rights", func() error { return rights(p.client.Faults()) }),
		check("events", func() error { return events(p.client.Faults()) }),
		check("workflows", func() error { return definition(p.client.Faults()) }),
	}
}

func reachable(ctx context.Context, client *kube.Client) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return client.Check(ctx)
}

// sentence is an error without its causes, which repeat it for the log.
func sentence(err error) error {
	var e *finalizer.Error
	if errors.As(err, &e) {
		return errors.New(e.Message)
	}
	return err
}

// runBoth runs below and above until ctx ends or one fails. Above depends on
// below, so it is stopped first.
func runBoth(ctx context.Context, below, above func(context.Context) error) error {
	lower, stopLower := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLower()
	g, upper := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := below(lower)
		if err == nil && lower.Err() == nil {
			return errors.New("the watch of the API server ended by itself")
		}
		return err
	})
	g.Go(func() error {
		defer stopLower()
		return above(upper)
	})
	return g.Wait()
}

// beside runs all until ctx ends or one of them fails.
func beside(all ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, run := range all {
			g.Go(func() error { return run(ctx) })
		}
		return g.Wait()
	}
}
