package finalizer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Pod implements Cache.
func (w *world) Pod(namespace, name string) (Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.cached[nameKey{namespace, name}]
	return p, ok
}

func (w *world) PodsOfWorkflow(key WorkflowKey) []Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Pod
	for _, p := range w.cached {
		if p.Owner.IsWorkflow() && p.workflow() == key {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (w *world) Subscribe(key WorkflowKey) (<-chan struct{}, func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{}, 1)
	w.subs[c] = key
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.subs, c)
	}
}

func (w *world) subscriptions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.subs)
}

func (w *world) HeldPods(namespace string, after PodID, limit int) []Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Pod
	for _, p := range w.cached {
		past := cmp.Or(cmp.Compare(p.Namespace, after.Namespace), cmp.Compare(p.Name, after.Name)) > 0
		if p.Has(fin) && past && (namespace == "" || p.Namespace == namespace) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(limit, len(out))]
}

// liveReader is the world's Reader; Cache and Reader both have a method Pod.
type liveReader struct{ w *world }

func (l liveReader) Workflow(ctx context.Context, key WorkflowKey) (Workflow, error) {
	w, began := l.w, time.Now()
	end, err := w.request(ctx, access{Op: opGetWorkflow, Flow: key})
	if err != nil {
		return Workflow{}, err
	}
	defer end()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.readErr[key]; err != nil {
		return Workflow{}, err
	}
	wf := w.flows[key]
	wf.Key, wf.ReadAt = key, began
	return wf, nil
}

func (l liveReader) Pod(ctx context.Context, namespace, name string) (Pod, error) {
	w := l.w
	end, err := w.request(ctx, access{Op: opGetPod, Pod: PodID{Namespace: namespace, Name: name}})
	if err != nil {
		return Pod{}, err
	}
	defer end()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.podErr[name]; err != nil {
		return Pod{}, err
	}
	p, ok := w.pods[nameKey{namespace, name}]
	if !ok {
		return Pod{}, &Error{Kind: KindPodNotFound, Message: "the pod does not exist"}
	}
	return p, nil
}

// Pods goes by label: the owner's name, unless labels has another.
func (l liveReader) Pods(ctx context.Context, key WorkflowKey) ([]Pod, error) {
	w := l.w
	end, err := w.request(ctx, access{Op: opListPods, Flow: key})
	if err != nil {
		return nil, err
	}
	defer end()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Pod
	for _, p := range w.pods {
		label := p.Owner.Name
		if l, ok := w.labels[p.Name]; ok {
			label = l
		}
		if p.Namespace == key.Namespace && label == key.Name {
			out = append(out, p)
		}
	}
	return out, nil
}

func (w *world) AddFinalizer(ctx context.Context, t Target) (Pod, error) {
	return w.send(ctx, access{Op: opAdd, Flow: t.Workflow, Pod: t.Pod, Background: t.Background}, func(p *Pod) error {
		if p.Terminating() {
			return &Error{Kind: KindTerminating, Pod: t.Pod, Message: "no new finalizer"}
		}
		if !p.Has(fin) {
			p.Finalizers = append(p.Finalizers, fin)
		}
		return nil
	})
}

func (w *world) Release(ctx context.Context, t Target, mark bool) (Pod, error) {
	return w.send(ctx, access{Op: opRelease, Flow: t.Workflow, Pod: t.Pod, Background: t.Background, Mark: mark}, func(p *Pod) error {
		p.Finalizers = p.Foreign(fin)
		p.Completed = p.Completed || mark
		return nil
	})
}

// Unhide implements Unhider.
func (w *world) Unhide(ctx context.Context, t Target, hold bool) (Pod, error) {
	return w.send(ctx, access{Op: opUnhide, Flow: t.Workflow, Pod: t.Pod, Background: t.Background, Mark: hold}, func(p *Pod) error {
		if hold && p.Terminating() && !p.Has(fin) {
			return &Error{Kind: KindTerminating, Pod: t.Pod, Message: "no new finalizer"}
		}
		if hold && !p.Has(fin) {
			p.Finalizers = append(p.Finalizers, fin)
		}
		p.Completed = false
		return nil
	})
}

func (w *world) Delete(ctx context.Context, t Target) (Pod, error) {
	return w.send(ctx, access{Op: opDelete, Flow: t.Workflow, Pod: t.Pod}, func(p *Pod) error {
		if p.Terminating() {
			return nil
		}
		p.GraceSeconds = w.grace[p.UID]
		p.DeletedAt = time.Now().Add(time.Duration(p.GraceSeconds) * time.Second)
		return nil
	})
}

func (w *world) send(ctx context.Context, a access, f func(*Pod) error) (Pod, error) {
	end, err := w.request(ctx, a)
	if err != nil {
		return Pod{}, err
	}
	defer end()
	if before := w.before[a.Pod.UID]; before != nil {
		before()
	}
	if fault := w.fault[a.Pod.UID]; fault != nil {
		if err := fault(a.Op); err != nil {
			return Pod{}, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.pods[nameKey{a.Pod.Namespace, a.Pod.Name}]
	switch {
	case !ok:
		return Pod{}, &Error{Kind: KindGone, Pod: a.Pod, Message: "gone"}
	case p.UID != a.Pod.UID:
		return Pod{}, &Error{Kind: KindReplaced, Pod: a.Pod, Message: "another UID"}
	}
	p.Finalizers = slices.Clone(p.Finalizers)
	if err := f(&p); err != nil {
		return Pod{}, err
	}
	return w.settle(p, true), nil
}

// failing returns a fault that fails the first n writes.
func failing(n int, e *Error) func(string) error {
	var mu sync.Mutex
	return func(string) error {
		mu.Lock()
		defer mu.Unlock()
		if n--; n >= 0 {
			c := *e
			return &c
		}
		return nil
	}
}

func throttled() *Error   { return &Error{Kind: KindThrottled, Message: "throttled"} }
func unavailable() *Error { return &Error{Kind: KindUnavailable, Message: "unavailable"} }
