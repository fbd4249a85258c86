package kube

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const (
	nodesResource = "nodes"
	// maxNodesRemembered is above the largest clusters that Kubernetes supports.
	maxNodesRemembered = 10_000
)

// Nodes implements finalizer.Nodes by a GET of the node. Nodes are not watched:
// the heartbeats of a large cluster cost more than the few that are asked for.
//
// Those who ask for one node at once share a read, and its answer is taken from
// memory for a while; failures are not remembered.
type Nodes struct {
	core    rest.Interface
	faults  *faults
	timeout time.Duration
	memory  time.Duration
	reads   singleflight.Group

	mu    sync.Mutex
	known map[string]nodeAnswer
}

type nodeAnswer struct {
	health finalizer.NodeHealth
	until  time.Time
}

// NodeHealth implements finalizer.Nodes. Errors are *finalizer.Error, KindDeadline
// and KindCanceled by ctx among them.
func (n *Nodes) NodeHealth(ctx context.Context, name string) (finalizer.NodeHealth, error) {
	if name == "" {
		return finalizer.NodeHealth{}, &finalizer.Error{Kind: finalizer.KindInternal, Message: "a cluster node without a name was asked for"}
	}
	if h, ok := n.recall(name, time.Now()); ok {
		return h, nil
	}
	// The read outlives an asker that leaves, since others may share it.
	shared := context.WithoutCancel(ctx)
	answer := n.reads.DoChan(name, func() (any, error) {
		if h, ok := n.recall(name, time.Now()); ok {
			return h, nil // it came between the look and the flight
		}
		h, err := n.read(shared, name)
		if err == nil {
			n.remember(name, h, time.Now())
		}
		return h, err
	})
	select {
	case a := <-answer:
		return a.Val.(finalizer.NodeHealth), a.Err
	case <-ctx.Done():
		return finalizer.NodeHealth{}, classify(ctx.Err(), ctx.Err(), nodeRead(name))
	}
}

func nodeRead(name string) request {
	return request{verb: verbGet, resource: nodesResource, name: name}
}

func (n *Nodes) read(ctx context.Context, name string) (finalizer.NodeHealth, error) {
	limited, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	about := nodeRead(name)
	var node corev1.Node
	err := n.core.Get().Resource(nodesResource).Name(name).MaxRetries(readRetries).Do(limited).Into(&node)
	if err != nil {
		e := classify(err, ctx.Err(), about)
		n.faults.note(about.use(), e)
		if e.Kind == finalizer.KindGone {
			n.faults.clear(about.use())
			return finalizer.NodeHealth{Known: true, Gone: true}, nil
		}
		return finalizer.NodeHealth{}, e
	}
	n.faults.clear(about.use())
	if node.Name != name || node.UID == "" {
		return finalizer.NodeHealth{}, &finalizer.Error{Kind: finalizer.KindUnavailable, Message: "the cluster node cannot be read"}
	}
	return healthOf(&node)
}

// healthOf reads the Ready condition. A node that has none was not ready since it
// was made. One that is not ready since nobody knows when is an error: the time
// decides whether pods are given up.
func healthOf(node *corev1.Node) (finalizer.NodeHealth, error) {
	h := finalizer.NodeHealth{Known: true, Since: node.CreationTimestamp.Time}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			h.Ready, h.Since = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
			break
		}
	}
	if !h.Ready && h.Since.IsZero() {
		return finalizer.NodeHealth{}, &finalizer.Error{
			Kind: finalizer.KindUnavailable, Message: "the cluster node does not tell since when it is not ready",
		}
	}
	return h, nil
}

func (n *Nodes) recall(name string, now time.Time) (finalizer.NodeHealth, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.known[name]
	if !ok || !now.Before(a.until) {
		return finalizer.NodeHealth{}, false
	}
	return a.health, true
}

// remember drops what is too old when there are many, and then whatever comes
// first.
func (n *Nodes) remember(name string, h finalizer.NodeHealth, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[string]nodeAnswer{}
	}
	if len(n.known) >= maxNodesRemembered {
		for other, a := range n.known {
			if !now.Before(a.until) {
				delete(n.known, other)
			}
		}
	}
	if len(n.known) >= maxNodesRemembered {
		for other := range n.known {
			delete(n.known, other)
			break
		}
	}
	n.known[name] = nodeAnswer{health: h, until: now.Add(n.memory)}
}
