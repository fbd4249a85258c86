package finalizer

import (
	"testing"
	"time"
)

// hiddenFor is for how long the pod has been found labelled before its capture.
func hiddenFor(d time.Duration) func(*Evidence) {
	return func(e *Evidence) { e.HiddenSince = e.Now.Add(-d) }
}

func TestDecideOnAPrematureCompletedLabel(t *testing.T) {
	const wait = 15 * time.Second
	hidden := Decision{Reason: ReasonHidden}
	unhide := func(d time.Duration) Decision {
		return Decision{Action: ActionUnhide, Reason: ReasonHidden, Since: before(d)}
	}
	nothing := Decision{}
	checkRule(t, []ruleCase{
		{"B44 a held pod labelled before its capture is hidden", on{labelled}, hidden.since(judgeNow).look(after(wait))},
		{"B44 it is unhidden after the time", on{labelled, hiddenFor(wait)}, unhide(wait)},
		{"B44 not just before", on{labelled, hiddenFor(wait - 1)}, hidden.since(before(wait - 1)).look(after(1))},
		{"B44 not on a read from before that time: the controller may have stored the result since", on{labelled, hiddenFor(wait), readAgo(1)}, hidden.since(before(wait)).needs(NeedWorkflow)},
		{"B44 one found hidden in the future is waited for", on{labelled, hiddenFor(-time.Second)}, hidden.since(after(time.Second)).look(after(wait + time.Second))},
		{"B44 a held one is read at once", on{labelled, hint}, kept.needs(NeedWorkflow)},
		{"B44 a terminating held one is unhidden", on{labelled, ending, hiddenFor(wait)}, unhide(wait)},
		{"B44 a terminating held one of unknown status is asked for it", on{labelled, ending, noStatus, hiddenFor(wait)}, kept.since(deleted).needs(NeedStatus)},
		{"B18 one that never started is released instead", on{labelled, ending, onPod(pending), hiddenFor(wait)}, releaseFor(ReasonNeverStarted)},
		{"B20 one on a lost node is released instead", on{labelled, ending, onPod(running), health(NodeHealth{Gone: true}), hiddenFor(wait)}, releaseFor(ReasonNodeLost)},
		{"B44 one on a ready node is unhidden", on{labelled, ending, onPod(running), health(NodeHealth{Ready: true}), hiddenFor(wait)}, unhide(wait)},

		{"B44 a pod that is not held is read after the time, when one read answers for many", on{labelled, unheld, hint}, nothing.look(after(wait))},
		{"B44 not just before", on{labelled, unheld, hint, hiddenFor(wait - 1)}, nothing.look(after(1))},
		{"B44 then it is, at leisure: each finished pod of a running workflow comes by here", on{labelled, unheld, hint, hiddenFor(wait)}, nothing.needs(NeedGlance)},
		{"B44 and unhidden", on{labelled, unheld, hiddenFor(wait)}, unhide(wait)},
		{"B44 also while it is terminating", on{labelled, unheld, ending, noStatus, hiddenFor(wait)}, unhide(wait)},
		{"B44 also a daemon that runs", on{labelled, unheld, onPod(running), hiddenFor(wait)}, unhide(wait)},
		{"B44 also with its containers captured but one", on{labelled, unheld, finishedAgo(0), child("Running"), hiddenFor(wait)}, unhide(wait)},
		{"B44 also when taskResultSynced is false", on{labelled, unheld, stored(Node{Phase: "Succeeded", Synced: no()}), hiddenFor(wait)}, unhide(wait)},
		{"B44 also when its node is pending", on{labelled, unheld, stored(Node{Phase: "Pending"}), hiddenFor(wait)}, unhide(wait)},
		{"a captured one is not hidden", on{labelled, unheld, finishedAgo(0), hiddenFor(wait)}, nothing},
		{"one remembered as captured is not hidden, and costs no read", on{labelled, unheld, hint, known, hiddenFor(wait)}, nothing},
		{"one whose workflow has completed is not, and costs no read", on{labelled, unheld, hint, finished, hiddenFor(wait)}, nothing},
		{"nor one whose live workflow has", on{labelled, unheld, finished, hiddenFor(wait)}, nothing},
		{"one whose workflow is being deleted is not", on{labelled, unheld, onFlow(func(w *Workflow) { w.Deleting = true }), hiddenFor(wait)}, nothing},
		{"and costs no read", on{labelled, unheld, hint, onFlow(func(w *Workflow) { w.Deleting = true }), hiddenFor(wait)}, nothing},
		{"one whose workflow is gone is not", on{labelled, unheld, gone, hiddenFor(wait)}, nothing},
		{"and costs no read", on{labelled, unheld, gone, hint, hiddenFor(wait)}, nothing},
		{"B33 one of another UID's workflow is not", on{labelled, unheld, onFlow(func(w *Workflow) { w.UID = "another" }), hiddenFor(wait)}, nothing},
		{"and costs no read", on{labelled, unheld, hint, onFlow(func(w *Workflow) { w.UID = "another" }), hiddenFor(wait)}, nothing},
		{"B35 one in a terminating namespace is not", on{labelled, unheld, onFlow(func(w *Workflow) { w.NamespaceTerminating = true }), hiddenFor(wait)}, nothing},
		{"B34 an offloaded node status hides nothing", on{labelled, unheld, offload, hiddenFor(wait)}, nothing},
		{"B34 nor does a workflow that cannot be read", on{labelled, unheld, unreadable, hiddenFor(wait)}, nothing},
		{"one whose node is not stored waits for nobody", on{labelled, unheld, noNode, hiddenFor(wait)}, nothing},
		{"one without node ID waits for nobody", on{labelled, unheld, onPod(func(p *Pod) { p.NodeID = "" }), hiddenFor(wait)}, nothing},
		{"a newer attempt's node does not wait for this pod", on{retried, labelled, unheld, ending, noStatus, startedAfterPod(5*time.Second + 1), hiddenFor(wait)}, nothing},
		{"nor does the node of a failed pod that is made anew", on{labelled, unheld, restarting, hiddenFor(wait)}, nothing},
		{"nor a container set that failed before its containers had a status", on{labelled, unheld, stored(Node{Type: "Pod", Phase: "Failed"}), child("Pending"), hiddenFor(wait)}, nothing},
		{"B44 a node that was stored late, without a retry, does", on{labelled, unheld, startedAfterPod(5*time.Second + 1), hiddenFor(wait)}, unhide(wait)},
		{"an earlier attempt's node that has ended does not", on{labelled, unheld, finishedBeforePod(5*time.Second + 1), hiddenFor(wait)}, nothing},
		{"a node that started as the pod did does", on{labelled, unheld, startedAfterPod(5 * time.Second), hiddenFor(wait)}, unhide(wait)},
		{"one held whose node is not stored is kept", on{labelled, noNode, hiddenFor(wait)}, kept},
		{"one held of an unknown workflow is kept", on{labelled, offload, hiddenFor(wait)}, unknown},
		{"a pod that is not labelled is not hidden", on{hiddenFor(wait)}, kept},
	})
}
