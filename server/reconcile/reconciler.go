package reconcile

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Reconciler is made by New. It is safe for concurrent use.
type Reconciler struct {
	config Config
	loop   atomic.Pointer[loop] // nil while Run does not run
}

// New composes a Reconciler. It starts nothing.
func New(c Config) *Reconciler { return &Reconciler{config: c.withDefaults()} }

// Changed says that something about a workflow or its pods may have changed:
// whatever Pods or Seen tell differently now, the workflow's resource version and
// its namespace included. It does not block, and before Run, which looks at
// everything, it has nothing to do.
func (r *Reconciler) Changed(key finalizer.WorkflowKey) {
	if l := r.loop.Load(); l != nil {
		l.changed(key)
	}
}

// Depth returns how many workflows wait for a pass, of those that have something
// to do now.
func (r *Reconciler) Depth() int {
	if l := r.loop.Load(); l != nil {
		return l.queue.Len()
	}
	return 0
}

// Run works until ctx ends, then ends what it has begun and returns nil. Once it
// has returned it may be called again; it begins anew then.
func (r *Reconciler) Run(ctx context.Context) error {
	if r.config.Mode == Off {
		<-ctx.Done()
		return nil
	}
	l := newLoop(r.config)
	r.loop.Store(l)
	defer r.loop.Store(nil)
	defer l.queue.ShutDown()
	if !l.awaitSync(ctx) {
		return nil
	}
	// What changes from here on is told to Changed; all else is in this list.
	for _, key := range l.Pods.Workflows() {
		l.changed(key)
	}
	var running sync.WaitGroup
	for range l.Workers {
		running.Go(func() { l.work(ctx) })
	}
	running.Go(func() { l.walk(ctx) })
	<-ctx.Done()
	l.queue.ShutDown()
	running.Wait()
	return nil
}

const (
	syncPoll = 100 * time.Millisecond
	// seenTimeout bounds the wait for hints. Without them all is decided by live
	// reads.
	seenTimeout = 30 * time.Second
	// syncWarning is when the log tells that pods are still not listed.
	syncWarning = 30 * time.Second
)

// awaitSync returns true once pods are listed, and workflows too if that comes
// soon; false when ctx ends before.
func (l *loop) awaitSync(ctx context.Context) bool {
	tick := time.NewTicker(syncPoll)
	defer tick.Stop()
	wait := func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			return true
		}
	}
	start, warned := time.Now(), false
	for {
		err := l.Synced()
		if err == nil {
			break
		}
		if !warned && time.Since(start) >= syncWarning {
			l.Log.Warn("the reconciler waits for the first list of pods", "error", err)
			warned = true
		}
		if !wait() {
			return false
		}
	}
	for start = time.Now(); !l.Seen.Synced(); {
		if time.Since(start) >= seenTimeout {
			l.Log.Warn("workflows or namespaces cannot be watched yet; the reconciler goes on with live reads")
			break
		}
		if !wait() {
			return false
		}
	}
	return ctx.Err() == nil
}

// walk calls for a pass of every workflow within Resync, again and again, evenly
// spread.
func (l *loop) walk(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		keys := l.all()
		pause := l.Resync / time.Duration(len(keys)+1)
		for i := 0; i <= len(keys); i++ {
			timer.Reset(pause)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			if i < len(keys) {
				l.changed(keys[i])
			}
		}
	}
}
