package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/server/finalizer"
	"github.com/finalizerd/finalizerd/server/kube"
	"github.com/finalizerd/finalizerd/server/lane"
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
	metrics, err := newCoreMetrics(c.Registry)
	if err != nil {
		return err
	}
	// The client tells of pods that went before it hands out the first pod, and
	// runs only when core is set.
	var core *finalizer.Service
	client, err := kube.New(c.Kubernetes, kube.Options{
		Finalizer:         c.Policy.Finalizer,
		MaxWritesInFlight: c.MaxWritesInFlight,
		UserAgent:         c.UserAgent,
		Observe:           metrics.request,
		OnPodGone:         func(uid types.UID) { core.PodGone(uid) },
	})
	if err != nil {
		return err
	}
	lanes := lane.New[finalizer.WorkflowKey, string](lane.Options{MaxWaiters: c.MaxWaiters, Observe: metrics.lane})
	core = finalizer.New(finalizer.Config{
		Cache: client.Cache, Held: client.Cache, Reader: client.Reader, Writer: client.Writer,
		Lanes: lanes, Policy: c.Policy, Synced: client.Synced, RequestMemory: c.RequestMemory,
	})
	if err := gauges(c.Registry, lanes.Depth, client.Writer.Load, client.Cache.Counts); err != nil {
		return err
	}
	if err := reachable(ctx, client); err != nil {
		return err
	}
	c.Core, c.Finalizer = core, c.Policy.Finalizer
	c.Checks = []Check{
		{Name: "caches", Run: func(context.Context) error { return sentence(client.Synced()) }},
		{Name: "rights", Run: func(context.Context) error { return rights(client.Faults()) }},
	}
	front, err := open(ctx, c.Frontend)
	if err != nil {
		return err
	}
	return runBoth(ctx, client.Run, front.run)
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

// rights is about what an operator has to grant. Other faults pass by
// themselves, and a service that cannot write now still tells what it knows.
func rights(faults []*finalizer.Error) error {
	var lacking []string
	for _, f := range faults {
		if f.Kind == finalizer.KindForbidden {
			lacking = append(lacking, fmt.Sprintf("%s %s", f.Verb, f.Resource))
		}
	}
	if lacking == nil {
		return nil
	}
	return errors.New("the service's account may not: " + strings.Join(lacking, ", ") + "; grant it in the ClusterRole")
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
