package reconcile

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// memory is what is remembered of a workflow between passes; only the pass that
// has its key touches it.
type memory struct {
	look     time.Time // when a pass is due although nothing changes; zero: never
	lastRead time.Time // when the last live read began
	reading  backoff   // of the live reads
	why      string    // why the last live read failed
	pods     map[types.UID]*podMemory
	passes   uint64
}

// podMemory is what is remembered of one cached pod.
type podMemory struct {
	status finalizer.PodStatus
	// asked is the version that the cache had when the status was read, answered
	// the version that the read gave: the status holds for both.
	asked, answered string
	hiddenSince     time.Time
	acting, asking  backoff // of writes, and of reads of the status
	noted           bool
	reported        finalizer.Reason // in mode Report
	pass            uint64           // the last that saw the pod
}

func (m *memory) empty() bool { return len(m.pods) == 0 && m.look.IsZero() }

// pod returns the memory of a pod that this pass sees.
func (m *memory) pod(uid types.UID) *podMemory {
	if m.pods == nil {
		m.pods = make(map[types.UID]*podMemory)
	}
	pm := m.pods[uid]
	if pm == nil {
		pm = &podMemory{}
		m.pods[uid] = pm
	}
	pm.pass = m.passes
	return pm
}

// forgetOthers drops the pods that this pass has not seen.
func (m *memory) forgetOthers() {
	for uid, pm := range m.pods {
		if pm.pass != m.passes {
			delete(m.pods, uid)
		}
	}
	if len(m.pods) == 0 {
		m.pods = nil
	}
}

// statusAt returns the status that is known for a version of the pod.
func (pm *podMemory) statusAt(version string) *finalizer.PodStatus {
	if version == "" || version != pm.asked && version != pm.answered {
		return nil
	}
	s := pm.status
	return &s
}

func (pm *podMemory) learn(asked string, live *finalizer.Pod) {
	pm.status, pm.asked, pm.answered = *live.Status, asked, live.ResourceVersion
}
