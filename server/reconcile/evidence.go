package reconcile

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// callTimeout bounds each wait for others, so that none keeps a worker for good.
const callTimeout = 30 * time.Second

// giveWorkflow gives a live read to the pods that want one, and returns those
// that got something new to decide on. What cannot be had now is looked for
// later.
func (p *pass) giveWorkflow(ctx context.Context) []*item {
	var given, wanting []*item
	interval := p.GlanceInterval
	for _, it := range p.items {
		if it.d.Need != finalizer.NeedWorkflow && it.d.Need != finalizer.NeedGlance {
			continue
		}
		// The rule that asks although it has a read wants one that begins now.
		if it.e.Workflow.ReadAt.IsZero() && p.read.speaksOf(it.e.Pod.UID) {
			it.e.Workflow = p.read.wf
			given = append(given, it)
			continue
		}
		wanting = append(wanting, it)
		if it.d.Need == finalizer.NeedWorkflow {
			interval = p.ReadInterval
		}
	}
	if len(wanting) == 0 {
		return given
	}
	now, due := time.Now(), p.mem.lastRead.Add(interval)
	switch {
	case p.mem.reading.waits(now):
		p.lookAt(p.mem.reading.until)
		p.unreadable(wanting)
	case p.tried || now.Before(due):
		p.lookAt(due)
		return given
	case p.readLive(ctx):
		for _, it := range wanting {
			it.e.Workflow = p.read.wf
		}
	case ctx.Err() != nil:
		return given
	default:
		p.lookAt(p.mem.reading.until)
		p.unreadable(wanting)
	}
	return append(given, wanting...)
}

// unreadable lets the rule decide without the workflow, on doubt: what needs no
// workflow goes on while it cannot be read.
func (p *pass) unreadable(items []*item) {
	for _, it := range items {
		it.e.Workflow = finalizer.Unreadable(&it.e.Pod, time.Now(), p.mem.why)
	}
}

// readLive reads the workflow. The version is taken before, since the watch may
// tell of a change that the read has missed, and so are the pods: a read that
// began before a pod was known may show its predecessor's node.
func (p *pass) readLive(ctx context.Context) bool {
	r := &read{
		key: p.key, version: p.Seen.ResourceVersion(p.key), began: time.Now(),
		uids: make(map[types.UID]struct{}, len(p.items)),
	}
	for _, it := range p.items {
		r.uids[it.e.Pod.UID] = struct{}{}
	}
	p.tried, p.mem.lastRead = true, r.began
	var err error
	p.outside(func() {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		r.wf, err = p.Core.ReadWorkflow(limited, p.key)
	})
	if ctx.Err() != nil {
		return false
	}
	p.Observe.Read(err)
	if err != nil {
		p.mem.reading.fail(err, time.Now())
		p.mem.why = sentence(err)
		p.tell(p.mem.reading.tries, "a workflow cannot be read; its pods stay", err, "next", time.Until(p.mem.reading.until))
		return false
	}
	p.mem.reading = backoff{}
	p.read = r
	p.reads.put(r)
	return true
}

// giveStatus gives their status to the pods that want it, and returns them. A
// pod that is not there any more, or whose name is another's, gets none: the
// watch will tell.
func (p *pass) giveStatus(ctx context.Context) []*item {
	wanting := p.askers(finalizer.NeedStatus)
	if len(wanting) == 0 {
		return nil
	}
	var listed map[types.UID]finalizer.Pod
	if p.worthAList(len(wanting)) {
		var err error
		p.outside(func() { listed, err = p.list(ctx) })
		if err != nil {
			p.statusFailed(ctx, wanting, err)
			return nil
		}
	}
	errs := make([]error, len(wanting))
	p.outside(func() {
		each(len(wanting), func(i int) {
			it := wanting[i]
			live, ok := listed[it.e.Pod.UID]
			if !ok {
				live, errs[i] = p.one(ctx, it.e.Pod.PodID)
			}
			if errs[i] == nil && live.UID == it.e.Pod.UID && live.Status != nil {
				it.mem.learn(it.e.Pod.ResourceVersion, &live)
				it.mem.asking = backoff{}
				it.e.Pod.Status = it.mem.statusAt(it.e.Pod.ResourceVersion)
			}
		})
	})
	var given []*item
	for i, it := range wanting {
		switch {
		case errs[i] != nil && finalizer.KindOf(errs[i]) != finalizer.KindPodNotFound:
			p.statusFailed(ctx, wanting[i:i+1], errs[i])
		case it.e.Pod.Status != nil:
			given = append(given, it)
		}
	}
	return given
}

// askers returns the pods that ask for the need for the first time in this pass,
// and are not in back-off.
func (p *pass) askers(need finalizer.Need) []*item {
	var wanting []*item
	now := time.Now()
	for _, it := range p.items {
		switch {
		case it.d.Need != need || it.asked >= need:
		case it.mem.asking.waits(now):
			p.lookAt(it.mem.asking.until)
		default:
			it.asked = need
			wanting = append(wanting, it)
		}
	}
	return wanting
}

// worthAList reports whether one list, which has all pods of the workflow, costs
// less than reading the few that are asked for.
func (p *pass) worthAList(asked int) bool {
	const podsPerRead = 50
	return asked > 1 && asked*podsPerRead > len(p.cached)
}

func (p *pass) list(ctx context.Context) (map[types.UID]finalizer.Pod, error) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pods, err := p.Status.Pods(limited, p.key)
	if err != nil {
		return nil, err
	}
	byUID := make(map[types.UID]finalizer.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	return byUID, nil
}

func (p *pass) one(ctx context.Context, id finalizer.PodID) (finalizer.Pod, error) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return p.Status.Pod(limited, id.Namespace, id.Name)
}

func (p *pass) statusFailed(ctx context.Context, items []*item, err error) {
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	for _, it := range items {
		it.mem.asking.fail(err, now)
		p.lookAt(it.mem.asking.until)
	}
	p.tell(items[0].mem.asking.tries, "the status of pods cannot be read; they stay", err, "pods", len(items))
}

// giveHealth gives the health of their cluster nodes to the pods that want it,
// and returns them. Whoever cannot learn it takes the node for ready.
func (p *pass) giveHealth(ctx context.Context) []*item {
	wanting := p.askers(finalizer.NeedHealth)
	byNode := make(map[string]finalizer.NodeHealth)
	for _, it := range wanting {
		byNode[it.e.Pod.Status.NodeName] = finalizer.NodeHealth{Known: true, Ready: true}
	}
	if p.Nodes != nil && len(wanting) > 0 {
		p.askNodes(ctx, byNode)
	}
	for _, it := range wanting {
		it.e.Health = byNode[it.e.Pod.Status.NodeName]
	}
	return wanting
}

func (p *pass) askNodes(ctx context.Context, byNode map[string]finalizer.NodeHealth) {
	names := make([]string, 0, len(byNode))
	for name := range byNode {
		names = append(names, name)
	}
	health := make([]finalizer.NodeHealth, len(names))
	errs := make([]error, len(names))
	p.outside(func() {
		each(len(names), func(i int) {
			limited, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			health[i], errs[i] = p.Nodes.NodeHealth(limited, names[i])
		})
	})
	var failed error
	for i, name := range names {
		if errs[i] != nil {
			failed = errs[i]
			continue
		}
		byNode[name] = health[i]
	}
	if failed != nil && ctx.Err() == nil {
		p.tell(0, "the health of a cluster node cannot be read; it counts as ready", failed)
	}
}
