package finalizer

import (
	"testing"
	"time"
)

// health is what was learnt of the pod's cluster node.
func health(h NodeHealth) func(*Evidence) {
	h.Known = true
	return func(e *Evidence) { e.Health = h }
}

// notReady is a cluster node that has been NotReady for so long.
func notReady(d time.Duration) func(*Evidence) { return health(NodeHealth{Since: before(d)}) }

// graceLeft makes the pod terminating with that much of its grace period left.
func graceLeft(d time.Duration) func(*Evidence) {
	return onPod(func(p *Pod) { p.DeletedAt, p.GraceSeconds = judgeNow.Add(d), 30 })
}

// deletedNow makes the pod terminating without a grace period.
func deletedNow(e *Evidence) { e.Pod.DeletedAt, e.Pod.GraceSeconds = e.Now, 0 }

func TestDecideOnATerminatingPod(t *testing.T) {
	kept := kept.since(deleted)
	unknown := unknown.since(deleted)
	free := releaseFor(ReasonCaptured)
	started := onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Pending", Started: true} })
	checkRule(t, []ruleCase{
		{"B15 a finished pod whose node runs is kept", on{ending}, kept},
		{"B15 however long it has been terminating", on{ending, onPod(func(p *Pod) { p.DeletedAt = before(1000 * time.Hour) })}, kept.since(before(1000*time.Hour + 30*time.Second))},
		{"its workflow is read", on{ending, hint}, kept.needs(NeedWorkflow)},
		{"also when it is young", on{ending, hint, aged(0)}, kept.needs(NeedWorkflow)},
		{"its status is read once nothing else gives leave", on{ending, noStatus}, kept.needs(NeedStatus)},

		{"a captured pod is released at once", on{ending, finishedAgo(time.Second)}, free.since(before(time.Second))},
		{"a captured pod without a finish too", on{ending, stored(Node{Phase: "Omitted"})}, free},
		{"a container set with a container that runs is kept", on{ending, finishedAgo(time.Minute), child("Running")}, kept},
		{"a remembered capture needs no read", on{ending, known, hint}, free},
		{"a remembered capture outlives a removed node", on{ending, known, noNode, aged(0)}, free},
		{"a remembered capture outlives the workflow", on{ending, known, gone, aged(0)}, free},
		{"B34 an offloaded node status is never captured", on{ending, finishedAgo(time.Minute), offload}, unknown},
		{"B34 nor is an unreadable workflow", on{ending, unreadable}, unknown},

		{"B18 a pod that never started is released at once", on{ending, onPod(pending), aged(0), startedAfterPod(0)}, releaseFor(ReasonNeverStarted)},
		{"B18 during its grace period too", on{graceLeft(30 * time.Second), onPod(pending)}, releaseFor(ReasonNeverStarted)},
		{"B18 an unscheduled one needs no node status", on{ending, onPod(pending), offload}, releaseFor(ReasonNeverStarted)},
		{"B18 nor a workflow that can be read", on{ending, onPod(pending), unreadable}, releaseFor(ReasonNeverStarted)},
		{"B18 nor its node", on{ending, onPod(pending), noNode, aged(0)}, releaseFor(ReasonNeverStarted)},
		{"one of which an init container ran is kept", on{ending, started}, kept},
		{"B19 a failed pod without container statuses has not never started", on{ending, onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Failed", NodeName: "n1"} })}, kept},
		{"B18 an unscheduled pod that pod GC marked failed never started", on{ending, onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Failed"} })}, releaseFor(ReasonNeverStarted)},

		{"B46 one whose node a retry removed is released", on{retried, ending, noNode}, releaseFor(ReasonNodeRemoved)},
		{"B46 also while it runs", on{retried, ending, noNode, onPod(running)}, releaseFor(ReasonNodeRemoved)},
		{"B46 also of a completed workflow", on{retried, ending, noNode, finished, noStatus}, releaseFor(ReasonNodeRemoved)},
		{"B46 a read at the minimum age proves it", on{retried, ending, noNode, aged(30 * time.Second)}, releaseFor(ReasonNodeRemoved)},
		{"B46 one that is merely so new that its node is not stored yet is kept", on{retried, ending, noNode, aged(30*time.Second - 1)}, kept.look(after(1))},
		{"B46 such a new one known from metadata only needs its status", on{retried, deletedNow, noNode, noStatus, aged(time.Second)}, kept.since(judgeNow).look(after(29 * time.Second)).needs(NeedStatus)},
		{"B46 a read from before the minimum age proves nothing later: it is read again", on{retried, ending, noNode, aged(30 * time.Second), readAgo(1)}, kept.needs(NeedWorkflow)},
		{"B46 that read comes before its status", on{retried, ending, noNode, noStatus, aged(time.Hour), readAgo(time.Hour)}, kept.needs(NeedWorkflow)},
		{"B18 one that never started does not wait for it", on{ending, noNode, onPod(pending), aged(time.Hour), readAgo(time.Hour)}, releaseFor(ReasonNeverStarted)},
		{"B34 an offloaded node status proves no removed node", on{ending, noNode, offload}, unknown},
		{"one without node ID is not taken for one whose node was removed", on{ending, noNode, onPod(func(p *Pod) { p.NodeID = "" })}, kept},

		{"B46 one whose node is a newer attempt's is released at once", on{retried, deletedNow, aged(time.Second), startedAfterPod(5*time.Second + 1), noStatus}, releaseFor(ReasonAttemptSuperseded)},
		{"B46 a node that started after the pod by the clocks' tolerance is its own", on{retried, ending, startedAfterPod(5 * time.Second)}, kept},
		{"B46 a node that started before it is its own", on{retried, ending, startedAfterPod(-time.Hour)}, kept},
		{"B15 a pod whose node was never stored, of a workflow that was never retried, is kept", on{ending, noNode}, kept},
		{"B15 also when nothing of the workflow is stored yet", on{ending, noNode, begunBy("", time.Time{})}, kept},
		{"B15 one whose controller came back and stored the node later is kept", on{ending, startedAfterPod(time.Minute)}, kept},
		{"B15 also in a workflow that was retried before", on{ending, retriedBeforePod(5*time.Second + 1), startedAfterPod(time.Minute)}, kept},
		{"B15 a pod of the first wave after a retry whose node is not stored is kept", on{ending, retriedBeforePod(time.Second), noNode}, kept},
		{"B15 also when its node is stored late", on{ending, retriedBeforePod(time.Second), startedAfterPod(time.Minute)}, kept},
		{"B46 one that the retry deleted is not", on{ending, aged(100 * time.Second), retriedBeforePod(-4 * time.Second), noNode}, releaseFor(ReasonNodeRemoved)},
		{"B15 a memoized resubmission has completed once without a retry: its pod is kept", on{ending, retried, resubmitted, startedAfterPod(time.Minute)}, kept},
		{"B46 one that a retry of a resubmission deleted is released", on{deletedNow, retried, resubmitted, startedAfterPod(time.Minute)}, releaseFor(ReasonAttemptSuperseded)},
		{"B34 B46 a finished one that the retry of an offloaded workflow deleted is given up", on{deletedNow, retried, offload}, releaseFor(ReasonAttemptSuperseded)},
		{"B34 its status must be known for that", on{deletedNow, retried, offload, noStatus}, unknown.since(judgeNow).needs(NeedStatus)},
		{"B34 one that runs is not", on{deletedNow, retried, offload, onPod(running), health(NodeHealth{Ready: true})}, unknown.since(judgeNow).look(after(nodePoll))},
		{"B34 nor one that was deleted before the retry", on{ending, retried, offload}, unknown},
		{"B34 nor one of a workflow that cannot be read at all", on{deletedNow, retried, unreadable}, unknown.since(judgeNow)},
		{"a failed pod that its controller makes anew is given up", on{ending, restarting}, releaseFor(ReasonAttemptSuperseded)},
		{"a container set that failed before its containers had a status is captured", on{ending, stored(Node{Type: "Pod", Phase: "Failed"}), child("Pending")}, free},
		{"one that succeeded is not captured with such a container", on{ending, stored(Node{Type: "Pod", Phase: "Succeeded"}), child("Pending")}, kept},
		{"B46 a node without a start is its own", on{ending, stored(Node{Phase: "Pending"})}, kept},

		{"B36 a finished pod of a completed workflow is labelled and released", on{ending, finished}, releaseFor(ReasonWorkflowCompleted).marked()},
		{"B36 one just younger than the minimum age is kept until then", on{ending, finished, aged(30*time.Second - 1)}, Decision{Reason: ReasonWorkflowCompleted, Since: deleted}.until(after(1))},
		{"B36 also with offloaded nodes", on{ending, finished, offload}, releaseFor(ReasonWorkflowCompleted).marked()},
		{"B10 one that is labelled completed, of a completed workflow, is released", on{ending, finished, labelled, noStatus}, releaseFor(ReasonCompleted)},
		{"B10 a captured one that is labelled completed is released", on{ending, labelled, finishedAgo(0)}, releaseFor(ReasonCompleted)},
	})
}

func TestDecideOnATerminatingPodThatHasNotEnded(t *testing.T) {
	kept := kept.since(deleted)
	lost := releaseFor(ReasonNodeLost)
	runs := onPod(running)
	losing := func(d time.Duration) Decision {
		return Decision{Reason: ReasonNodeLost, Since: before(d)}.until(after(5*time.Minute - d))
	}
	checkRule(t, []ruleCase{
		{"B20 the health of its cluster node is asked for", on{ending, runs}, kept.needs(NeedHealth)},
		{"B20 not within the grace period, which is the kubelet's", on{graceLeft(1), runs, health(NodeHealth{Gone: true})}, kept.since(after(1 - 30*time.Second)).look(after(1))},
		{"B20 at its end", on{graceLeft(0), runs}, kept.since(before(30 * time.Second)).needs(NeedHealth)},
		{"B20 a node that is gone is lost", on{ending, runs, health(NodeHealth{Gone: true})}, lost},
		{"B20 a health that could not be learnt is no loss, whatever else it says", on{ending, runs, func(e *Evidence) { e.Health = NodeHealth{Gone: true} }}, kept.needs(NeedHealth)},
		{"B20 a node that is ready is looked at again", on{ending, runs, health(NodeHealth{Ready: true, Since: before(time.Hour)})}, kept.look(after(nodePoll))},
		{"B20 a node NotReady for less than the time is waited for", on{ending, runs, notReady(5*time.Minute - 1)}, losing(5*time.Minute - 1)},
		{"B20 a node NotReady for the time is lost", on{ending, runs, notReady(5 * time.Minute)}, lost.since(before(5 * time.Minute))},
		{"B20 a node NotReady since nobody knows when is looked at again", on{ending, runs, health(NodeHealth{})}, kept.look(after(nodePoll))},
		{"B20 a node NotReady since the future is waited for", on{ending, runs, notReady(-time.Minute)}, losing(-time.Minute)},
		{"B20 a finished pod on a lost node is kept", on{ending, health(NodeHealth{Gone: true})}, kept},
		{"B20 a pod of unknown phase on a lost node is lost", on{ending, health(NodeHealth{Gone: true}), onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Unknown", Started: true, NodeName: "n1"} })}, lost},
		{"B20 a pod without a node has no node to lose", on{ending, health(NodeHealth{Gone: true}), onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Running", Started: true} })}, kept},
		{"B20 a pod that nobody deletes is kept on a lost node", on{runs, health(NodeHealth{Gone: true})}, kept.since(created)},
		{"B20 the workflow need not be readable", on{ending, runs, unreadable, notReady(time.Hour)}, lost.since(before(time.Hour))},
		{"B20 a pod whose workflow is completed is lost too", on{ending, runs, finished, health(NodeHealth{Gone: true})}, lost},
		{"B20 a captured pod is captured, not lost", on{ending, runs, finishedAgo(0), health(NodeHealth{Gone: true})}, releaseFor(ReasonCaptured).since(judgeNow)},
		{"B46 a young pod on a NotReady node is looked at when its node may count as removed", on{retried, deletedNow, runs, noNode, aged(time.Second), notReady(time.Minute)},
			Decision{Reason: ReasonNodeLost, Since: before(time.Minute)}.until(after(4 * time.Minute)).look(after(29 * time.Second))},
		{"B46 a young pod on a ready node too", on{retried, deletedNow, runs, noNode, aged(time.Second), health(NodeHealth{Ready: true})}, kept.since(judgeNow).look(after(29 * time.Second))},
	})
}

func TestDecideWithMaxHold(t *testing.T) {
	bounded := func(p *Policy) { p.MaxHold = time.Hour }
	since := func(d time.Duration) func(*Evidence) {
		return onPod(func(p *Pod) { p.DeletedAt, p.GraceSeconds = before(d), 30 })
	}
	forced := func(d time.Duration) Decision { return releaseFor(ReasonMaxHold).since(before(d)) }
	held := func(r Reason, d time.Duration) Decision {
		return Decision{Reason: r, Since: before(d + 30*time.Second)}
	}
	runs, ready := onPod(running), health(NodeHealth{Ready: true})
	checkRule(t, []ruleCase{
		{"B16 a pod terminating for max-hold is released", on{since(time.Hour)}, forced(time.Hour)},
		{"B16 just before it is kept until then", on{since(time.Hour - 1)}, held(ReasonNotCaptured, time.Hour-1).until(after(1))},
		{"B16 max-hold counts from the deletionTimestamp, the end of the grace period", on{graceLeft(30 * time.Second)}, kept.since(judgeNow).until(after(time.Hour + 30*time.Second))},
		{"B16 the age of the pod does not count", on{aged(1000 * time.Hour)}, kept.since(before(1000 * time.Hour))},
		{"B16 also when the capture is unknown", on{since(time.Hour), offload}, forced(time.Hour)},
		{"B16 also when the workflow cannot be read", on{since(time.Hour), unreadable}, forced(time.Hour)},
		{"B16 also of a pod without controller", on{since(time.Hour), unowned}, forced(time.Hour)},
		{"B7 not of a pod of another kind", on{since(time.Hour), onPod(func(p *Pod) { p.Owner.Kind = "Job" })}, Decision{Reason: ReasonUnowned}},
		{"B8 not of a pod of another instance", on{since(time.Hour), onPod(func(p *Pod) { p.InstanceID = "other" })}, Decision{Reason: ReasonOtherInstance}},
		{"not before a read of the workflow, which may spare the force", on{since(time.Hour), hint}, held(ReasonNotCaptured, time.Hour).needs(NeedWorkflow)},
		{"not before a read of the status", on{since(time.Hour), noStatus}, held(ReasonNotCaptured, time.Hour).needs(NeedStatus)},
		{"not before a look at the cluster node", on{since(time.Hour), runs}, held(ReasonNotCaptured, time.Hour).needs(NeedHealth)},
		{"after that look it is", on{since(time.Hour), runs, ready}, forced(time.Hour)},
		{"an earlier look at the cluster node comes first, and the release is told", on{since(time.Hour - 2*time.Minute), runs, ready}, held(ReasonNotCaptured, time.Hour-2*time.Minute).until(after(2 * time.Minute)).look(after(time.Minute))},
		{"max-hold comes before a later look", on{since(time.Hour - 30*time.Second), runs, ready}, held(ReasonNotCaptured, time.Hour-30*time.Second).until(after(30 * time.Second))},
		{"a captured pod is captured, not forced", on{since(2 * time.Hour), finishedAgo(time.Minute)}, releaseFor(ReasonCaptured).since(before(time.Minute))},
		{"an orphan is no forced one", on{since(2 * time.Hour), gone}, releaseFor(ReasonOrphaned)},
		{"a pod that never started is no forced one", on{since(2 * time.Hour), onPod(pending)}, releaseFor(ReasonNeverStarted)},
		{"B16 the bound goes before a label that cannot be taken back, which would keep the pod for ever", on{since(2 * time.Hour), labelled, hiddenFor(time.Minute)}, Decision{Action: ActionRelease, Reason: ReasonMaxHold, Since: before(2 * time.Hour)}},
	}, bounded)
	t.Run("B16 forced releases are counted as such, others not", func(t *testing.T) {
		p := DefaultPolicy()
		bounded(&p)
		for _, c := range []struct {
			e    Evidence
			want bool
		}{{ruled(since(time.Hour)), true}, {ruled(since(time.Hour - 1)), false}, {ruled(since(time.Hour), gone), false}} {
			d := p.Decide(c.e)
			if got := d.Action == ActionRelease && (Act{Reason: d.Reason}).Forced(); got != c.want {
				t.Errorf("forced: %v", got)
			}
		}
	})
	t.Run("B15 without max-hold there is no bound", func(t *testing.T) {
		checkRule(t, []ruleCase{{"it is kept", on{since(10000 * time.Hour)}, held(ReasonNotCaptured, 10000*time.Hour)}})
	})
}
