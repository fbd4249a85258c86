package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Mode says how far the reconciler goes.
type Mode int

// The modes.
const (
	Off    Mode = iota // neither reads nor writes
	Report             // decides, logs and counts, and writes nothing
	On
)

// ParseMode reads off, report or on. The error names them.
func ParseMode(s string) (Mode, error) {
	for m := Off; m <= On; m++ {
		if m.String() == s {
			return m, nil
		}
	}
	return Off, fmt.Errorf("%q is no mode of the reconciler: use off, report or on", s)
}

// String is what ParseMode reads.
func (m Mode) String() string {
	switch m {
	case Off:
		return "off"
	case Report:
		return "report"
	case On:
		return "on"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// Pods is what the watch of pods has told. Its slices are not changed here.
type Pods interface {
	// PodsOfWorkflow is that of finalizer.Cache.
	PodsOfWorkflow(key finalizer.WorkflowKey) []finalizer.Pod
	// Workflows returns every key that has a pod with FIN or with label
	// completed=true. Held pods without a Workflow are under the empty name.
	Workflows() []finalizer.WorkflowKey
}

// Seen is what the watches of workflows and namespaces have told: hints.
type Seen interface {
	// Workflow returns a hint, with ReadAt zero.
	Workflow(key finalizer.WorkflowKey) finalizer.Workflow
	// ResourceVersion returns the version of the workflow that the watch told
	// last; empty: unknown.
	ResourceVersion(key finalizer.WorkflowKey) string
	// Synced reports whether the first lists are in.
	Synced() bool
}

// StatusReader reads pods with their status, live. It is part of
// finalizer.Reader.
type StatusReader interface {
	Pod(ctx context.Context, namespace, name string) (finalizer.Pod, error)
	Pods(ctx context.Context, key finalizer.WorkflowKey) ([]finalizer.Pod, error)
}

// Knowledge is what is read and remembered of captures.
type Knowledge interface {
	ReadWorkflow(ctx context.Context, key finalizer.WorkflowKey) (finalizer.Workflow, error)
	Remembered(uid types.UID) bool
}

// Acts carries out decisions, and keeps them for lists and metrics.
type Acts interface {
	Apply(ctx context.Context, e finalizer.Evidence, d finalizer.Decision) (finalizer.Result, error)
	Note(pod *finalizer.Pod, d finalizer.Decision, now time.Time)
}

// Core is finalizer.Service.
type Core interface {
	Knowledge
	Acts
}

// Observer takes figures for metrics. Each func may be nil; they are called from
// many goroutines and must not block.
type Observer struct {
	// Pass tells how long a workflow waited for its pass, from its first change
	// or from when a look was due, and how long the pass took.
	Pass func(waited, took time.Duration)
	// Read tells of a live read of a workflow; err nil: it succeeded.
	Read func(err error)
	// Would tells, in mode Report, of a decision that mode On would carry out:
	// once for a pod and reason.
	Would func(finalizer.Reason)
}

// Config is what a Reconciler is made of. Pods, Seen, Core, Status and Policy are
// required unless Mode is Off; zero durations and numbers stand for defaults.
type Config struct {
	Pods   Pods
	Seen   Seen
	Core   Core
	Status StatusReader
	// Nodes may be nil: then every cluster node counts as ready.
	Nodes finalizer.Nodes
	// Events may be nil.
	Events finalizer.Events
	// Policy is that of Core.
	Policy finalizer.Policy
	Mode   Mode
	// Synced returns nil once Pods has its first list. Nil: it always has.
	Synced func() error
	// Workers bounds the workflows that have a pass at a time. 0: 32.
	Workers int
	// ReadInterval is the least time between the starts of two reads of one
	// workflow whose pods wait for it. 0: 3 s.
	ReadInterval time.Duration
	// GlanceInterval is the same for pods that do not wait. 0: 15 s.
	GlanceInterval time.Duration
	// Resync is how long a walk over all workflows takes, against anything
	// missed. 0: 10 min.
	Resync time.Duration
	// Log may be nil.
	Log     *slog.Logger
	Observe Observer
}

const (
	defaultWorkers        = 32
	defaultReadInterval   = 3 * time.Second
	defaultGlanceInterval = 15 * time.Second
	defaultResync         = 10 * time.Minute
)

func (c Config) withDefaults() Config {
	if c.Workers <= 0 {
		c.Workers = defaultWorkers
	}
	if c.ReadInterval <= 0 {
		c.ReadInterval = defaultReadInterval
	}
	if c.GlanceInterval <= 0 {
		c.GlanceInterval = defaultGlanceInterval
	}
	if c.Resync <= 0 {
		c.Resync = defaultResync
	}
	if c.Synced == nil {
		c.Synced = func() error { return nil }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Observe.Pass == nil {
		c.Observe.Pass = func(time.Duration, time.Duration) {}
	}
	if c.Observe.Read == nil {
		c.Observe.Read = func(error) {}
	}
	if c.Observe.Would == nil {
		c.Observe.Would = func(finalizer.Reason) {}
	}
	return c
}
