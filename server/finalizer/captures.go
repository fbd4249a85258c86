package finalizer

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// captures remembers the UIDs that a live read once showed captured: a retry may
// reset the node later, yet the result of that pod was stored. An entry lives
// until the pod is gone.
type captures struct {
	mu   sync.Mutex
	uids map[types.UID]struct{}
}

func (c *captures) has(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.uids[uid]
	return ok
}

func (c *captures) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.uids, uid)
}

// learn adds what a read shows of pods that were known before the read began.
func (c *captures) learn(p Policy, known []Pod, wf Workflow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range known {
		// A pod that is labelled completed and not held matters too: once it is
		// known as captured, the label hides nothing.
		if !known[i].Has(p.Finalizer) && !known[i].Completed || !p.Captured(&known[i], wf) {
			continue
		}
		if c.uids == nil {
			c.uids = make(map[types.UID]struct{})
		}
		c.uids[known[i].UID] = struct{}{}
	}
}
