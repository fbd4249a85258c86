package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const (
	// fairTurn is how long a pass acts while other workflows wait for a worker.
	fairTurn = time.Second
	// longestTurn is how long it acts on one look at the pods.
	longestTurn = 30 * time.Second
)

// tally counts what a pass has done.
type tally struct {
	mu       sync.Mutex
	byReason map[finalizer.Reason]int
	failed   int
	fresh    bool // one failed that had not failed before
	err      error
}

// act carries out the decisions, or in mode Report tells of them, and calls for
// the looks that the rest want.
func (p *pass) act(ctx context.Context) {
	now := time.Now()
	var due []*item
	for _, it := range p.items {
		switch {
		case it.d.Action == finalizer.ActionKeep:
			p.lookAgain(it, now)
		case p.Mode == Report:
			p.report(it)
		case it.mem.acting.waits(now):
			p.lookAt(it.mem.acting.until)
		default:
			due = append(due, it)
		}
	}
	if len(due) == 0 || ctx.Err() != nil {
		return
	}
	start := time.Now()
	var cut atomic.Bool
	p.outside(func() {
		each(len(due), func(i int) {
			took := time.Since(start)
			if ctx.Err() != nil || took >= longestTurn || took >= fairTurn && p.queue.Len() > 0 {
				cut.Store(true)
				return
			}
			p.apply(ctx, due[i])
		})
	})
	p.unfinished = cut.Load() && ctx.Err() == nil
	for _, it := range due {
		p.lookAt(it.mem.acting.until)
	}
	p.conclude()
}

// lookAgain calls for a look at the time the rule says. A time that has passed
// would be asked for at once and for ever.
func (p *pass) lookAgain(it *item, now time.Time) {
	at := it.d.At
	if !at.IsZero() && !at.After(now) {
		at = now.Add(time.Second)
	}
	p.lookAt(at)
	if r := p.read; r != nil && r.version == "" && r.wf.Exists && !it.e.Workflow.ReadAt.IsZero() {
		// No watch will tell of a change of this workflow.
		p.lookAt(r.began.Add(p.GlanceInterval))
	}
}

// apply is called by many at once, each for an item of its own.
func (p *pass) apply(ctx context.Context, it *item) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := p.Core.Apply(limited, it.e, it.d)
	if err != nil && ctx.Err() != nil {
		return
	}
	kind := finalizer.KindOf(err)
	switch {
	case err != nil && (kind == finalizer.KindReplaced || kind == finalizer.KindGone):
		it.mem.acting = backoff{} // the watch will tell
	case err != nil:
		it.mem.acting.fail(err, time.Now())
		p.done.failure(err, it.mem.acting.tries)
	default:
		it.mem.acting = backoff{}
		p.succeeded(it, res.Outcome)
	}
}

func (p *pass) succeeded(it *item, o finalizer.Outcome) {
	switch o {
	case finalizer.OutcomeReleased, finalizer.OutcomeAlreadyReleased:
		freed := it.e.Pod
		freed.Finalizers = freed.Foreign(p.Policy.Finalizer)
		p.released(&freed)
	case finalizer.OutcomeAdded, finalizer.OutcomeAlreadyHeld:
	default:
		return // gone, or the rule has changed its mind: the watch tells
	}
	p.done.success(it.d.Reason)
}

func (t *tally) success(r finalizer.Reason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byReason == nil {
		t.byReason = make(map[finalizer.Reason]int)
	}
	t.byReason[r]++
}

func (t *tally) failure(err error, tries int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed++
	t.fresh = t.fresh || tries == 1
	if t.err == nil {
		t.err = err
	}
}

// String lists the counts by reason.
func (t *tally) String() string {
	var parts []string
	for _, r := range finalizer.Reasons() {
		if n := t.byReason[r]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, r))
		}
	}
	return strings.Join(parts, ", ")
}

// conclude tells of the pass in the log and, where there is one to find it at, in
// an Event.
func (p *pass) conclude() {
	t := &p.done
	if t.failed > 0 {
		tries := 2
		if t.fresh {
			tries = 1
		}
		p.tell(tries, "pods could not be released; they are tried again", t.err, "pods", t.failed)
	}
	if len(t.byReason) == 0 {
		return
	}
	p.Log.Info("the reconciler acted", "namespace", p.key.Namespace, "workflow", p.key.Name, "pods", t.String())
	released := 0
	for r, n := range t.byReason {
		if r != finalizer.ReasonHidden {
			released += n
		}
	}
	uid := p.existing()
	if released < 2 || uid == "" || p.Events == nil {
		return
	}
	p.Events.Record(finalizer.Event{
		Workflow: p.key, WorkflowUID: uid, Reason: "PodsReleased", Action: "Reconcile",
		Note: fmt.Sprintf("%d pods released: %s", released, t),
	})
}

// existing returns the UID of the workflow that has the key; empty: none is known.
func (p *pass) existing() types.UID {
	if p.read != nil && p.read.wf.Exists {
		return p.read.wf.UID
	}
	if p.read == nil && p.hint.Exists {
		return p.hint.UID
	}
	return ""
}

// report tells of what mode On would do, once for a pod and reason.
func (p *pass) report(it *item) {
	if it.mem.reported == it.d.Reason {
		return
	}
	it.mem.reported = it.d.Reason
	p.Observe.Would(it.d.Reason)
	would := "release"
	if it.d.Action == finalizer.ActionUnhide {
		would = "unhide"
	}
	p.Log.Info("the reconciler would act; it only reports", "would", would, "reason", it.d.Reason.String(),
		"namespace", it.e.Pod.Namespace, "pod", it.e.Pod.Name, "uid", string(it.e.Pod.UID), "workflow", p.key.Name)
}

// tell logs the first of a row of failures where people see it.
func (p *pass) tell(tries int, what string, err error, more ...any) {
	level := slog.LevelDebug
	if tries == 1 {
		level = slog.LevelWarn
	}
	attrs := slices.Concat([]any{"namespace", p.key.Namespace, "workflow", p.key.Name, "error", err}, more)
	p.Log.Log(context.Background(), level, what, attrs...)
}

// sentence is an error for people, without its causes.
func sentence(err error) string {
	var e *finalizer.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}
