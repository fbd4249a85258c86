package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// The operations that a world counts.
const (
	opFlow    = "read workflow"
	opPod     = "read pod"
	opList    = "list pods"
	opNode    = "read node"
	opRelease = "release"
	opUnhide  = "unhide"
)

// request counts one request, takes its time and fails where it is to.
func (w *world) request(ctx context.Context, op, what string) error {
	w.mu.Lock()
	w.counts[op]++
	if op == opRelease || op == opUnhide {
		w.tries[what] = append(w.tries[what], time.Now())
	}
	fault, latency := w.fault, w.latency
	w.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return &finalizer.Error{Kind: finalizer.KindCanceled, Message: "left", Err: err}
	}
	if fault != nil {
		return fault(op, what)
	}
	return nil
}

// Pod is the cache's; without status.
func (w *world) Pod(_, name string) (finalizer.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.pods[name]
	p.Status = nil
	return p, ok
}

func (w *world) PodsOfWorkflow(key finalizer.WorkflowKey) []finalizer.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []finalizer.Pod
	for _, p := range w.pods {
		if keyOf(&p) == key && (p.Owner.IsWorkflow() || p.Owner.None() && p.Has(fin)) {
			p.Status = nil
			out = append(out, p)
		}
	}
	slices.SortFunc(out, comparePods)
	return out
}

func (w *world) Workflows() []finalizer.WorkflowKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []finalizer.WorkflowKey
	known := map[finalizer.WorkflowKey]bool{}
	for _, p := range w.pods {
		if key := keyOf(&p); (p.Completed || p.Has(fin)) && !known[key] {
			known[key] = true
			keys = append(keys, key)
		}
	}
	return keys
}

func (w *world) Subscribe(finalizer.WorkflowKey) (<-chan struct{}, func()) { return nil, func() {} }

func (w *world) HeldPods(string, finalizer.PodID, int) []finalizer.Pod { return nil }

// seenBy is the world's Seen.
type seenBy struct{ w *world }

func (s seenBy) Synced() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return !s.w.blind
}

func (s seenBy) Workflow(key finalizer.WorkflowKey) finalizer.Workflow {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	wf := finalizer.Workflow{Key: key}
	if !s.w.blind {
		wf = s.w.seen[key]
		wf.Key = key
	}
	wf.NamespaceTerminating = s.w.ending
	return wf
}

func (s seenBy) ResourceVersion(key finalizer.WorkflowKey) string {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if v := s.w.told[key]; v != 0 && !s.w.blind {
		return fmt.Sprint(v)
	}
	return ""
}

// liveReader is the world's Reader, of which Status is a part.
type liveReader struct{ w *world }

func (l liveReader) Workflow(ctx context.Context, key finalizer.WorkflowKey) (finalizer.Workflow, error) {
	began := time.Now()
	if err := l.w.request(ctx, opFlow, key.Name); err != nil {
		return finalizer.Workflow{}, err
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	wf := l.w.flows[key]
	wf.Key, wf.ReadAt, wf.NamespaceTerminating = key, began, l.w.ending
	return wf, nil
}

func (l liveReader) Pod(ctx context.Context, _, name string) (finalizer.Pod, error) {
	if err := l.w.request(ctx, opPod, name); err != nil {
		return finalizer.Pod{}, err
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	p, ok := l.w.pods[name]
	if !ok {
		return p, &finalizer.Error{Kind: finalizer.KindPodNotFound, Message: "no such pod"}
	}
	return p, nil
}

func (l liveReader) Pods(ctx context.Context, key finalizer.WorkflowKey) ([]finalizer.Pod, error) {
	if err := l.w.request(ctx, opList, key.Name); err != nil {
		return nil, err
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	var out []finalizer.Pod
	for _, p := range l.w.pods {
		if keyOf(&p) == key {
			out = append(out, p)
		}
	}
	return out, nil
}

func (w *world) NodeHealth(ctx context.Context, name string) (finalizer.NodeHealth, error) {
	if err := w.request(ctx, opNode, name); err != nil {
		return finalizer.NodeHealth{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if h, ok := w.health[name]; ok {
		return h, nil
	}
	return finalizer.NodeHealth{Known: true, Ready: true}, nil
}

func (w *world) Record(e finalizer.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *world) AddFinalizer(context.Context, finalizer.Target) (finalizer.Pod, error) {
	panic("the reconciler adds by Unhide only")
}

func (w *world) Delete(context.Context, finalizer.Target) (finalizer.Pod, error) {
	panic("the reconciler deletes nothing")
}

func (w *world) Release(ctx context.Context, t finalizer.Target, mark bool) (finalizer.Pod, error) {
	op := opRelease
	if mark {
		op += "+label"
	}
	return w.write(ctx, opRelease, op, t, func(p *finalizer.Pod) {
		p.Finalizers, p.Completed = p.Foreign(fin), p.Completed || mark
	})
}

func (w *world) Unhide(ctx context.Context, t finalizer.Target, hold bool) (finalizer.Pod, error) {
	op := opUnhide
	if hold {
		op += "+hold"
	}
	return w.write(ctx, opUnhide, op, t, func(p *finalizer.Pod) {
		p.Completed = false
		if hold && !p.Has(fin) {
			p.Finalizers = []string{fin}
		}
	})
}

func (w *world) write(ctx context.Context, op, what string, t finalizer.Target, f edit) (finalizer.Pod, error) {
	if !t.Background {
		panic("a write of the reconciler that does not step back")
	}
	if err := w.request(ctx, op, t.Pod.Name); err != nil {
		return finalizer.Pod{}, err
	}
	w.mu.Lock()
	p, ok := w.pods[t.Pod.Name]
	switch {
	case !ok:
		w.mu.Unlock()
		return p, &finalizer.Error{Kind: finalizer.KindGone, Message: "gone"}
	case p.UID != t.Pod.UID:
		w.mu.Unlock()
		return p, &finalizer.Error{Kind: finalizer.KindReplaced, Message: "another UID"}
	}
	w.writes = append(w.writes, written{what, p.Name, time.Now()})
	f(&p)
	gone := types.UID("")
	if p.Removed() {
		delete(w.pods, p.Name)
		gone = p.UID
	} else {
		w.store(p)
	}
	w.mu.Unlock()
	if gone != "" {
		w.core.PodGone(gone)
	}
	w.changed(t.Workflow)
	p.Status = nil
	return p, nil
}
