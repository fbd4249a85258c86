package finalizer

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ruled is evidence whose workflow was read live just now.
func ruled(change ...func(*Evidence)) Evidence {
	return evidence(append([]func(*Evidence){func(e *Evidence) { e.Workflow.ReadAt = e.Now }}, change...)...)
}

func hint(e *Evidence) {
	e.Workflow.ReadAt, e.Workflow.Nodes, e.Workflow.containers = time.Time{}, nil, nil
}
func gone(e *Evidence)       { e.Workflow = Workflow{Key: flowA, ReadAt: e.Workflow.ReadAt} }
func unreadable(e *Evidence) { e.Workflow = Unreadable(&e.Pod, e.Workflow.ReadAt, "it fails") }
func offload(e *Evidence) {
	e.Workflow.SetNodes(nil)
	e.Workflow.Unknown = "offloaded"
}
func collected(strategy string) func(*Evidence) {
	return func(e *Evidence) { e.Pod.GCStrategy = strategy }
}

func finished(e *Evidence) { e.Workflow.Completed = true }
func labelled(e *Evidence) { e.Pod.Completed = true }
func unheld(e *Evidence)   { e.Pod.Finalizers = []string{"other"} }
func known(e *Evidence)    { e.Remembered = true }
func noStatus(e *Evidence) { e.Pod.Status = nil }
func unowned(e *Evidence)  { e.Pod.Owner = Owner{} }

func readAgo(d time.Duration) func(*Evidence) {
	return func(e *Evidence) { e.Workflow.ReadAt = e.Now.Add(-d) }
}

func finishedAgo(d time.Duration) func(*Evidence) {
	return stored(Node{Type: "Pod", Phase: "Succeeded", FinishedAt: judgeNow.Add(-d)})
}

// after and before are moments around that of the decision.
func after(d time.Duration) time.Time  { return judgeNow.Add(d) }
func before(d time.Duration) time.Time { return judgeNow.Add(-d) }

// The pod of ruled is ten minutes old; one that is ending was deleted 90 s ago.
var (
	created = before(10 * time.Minute)
	deleted = before(90 * time.Second)
	kept    = Decision{Reason: ReasonNotCaptured, Since: created}
	unknown = Decision{Reason: ReasonCaptureUnknown, Since: created}
)

func (d Decision) since(t time.Time) Decision { d.Since = t; return d }
func (d Decision) needs(n Need) Decision      { d.Need = n; return d }
func (d Decision) look(at time.Time) Decision { d.At = at; return d }
func (d Decision) until(at time.Time) Decision {
	d.At, d.ReleaseAt = at, at
	return d
}
func (d Decision) marked() Decision { d.MarkCompleted = true; return d }

type ruleCase struct {
	name   string
	change []func(*Evidence)
	want   Decision
}

type on = []func(*Evidence)

func checkRule(t *testing.T, cases []ruleCase, policy ...func(*Policy)) {
	t.Helper()
	p := DefaultPolicy()
	for _, f := range policy {
		f(&p)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, p.Decide(ruled(c.change...))); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecideWhosePodItIs(t *testing.T) {
	job := onPod(func(p *Pod) { p.Owner.Kind = "Job" })
	other := onPod(func(p *Pod) { p.InstanceID = "other" })
	ns := onFlow(func(w *Workflow) { w.NamespaceTerminating = true })
	foreign := Decision{Reason: ReasonUnowned}
	checkRule(t, []ruleCase{
		{"a pod that is neither held nor labelled is nobody's business", on{unheld}, Decision{}},
		{"nor is such a one of a workflow that is gone", on{unheld, ending, gone}, Decision{}},
		{"B7 a pod of another kind is kept", on{job, finishedAgo(time.Minute)}, foreign},
		{"B7 a pod of another kind is kept in a terminating namespace too", on{job, ns, ending}, foreign},
		{"B7 a Workflow of another group is another kind", on{onPod(func(p *Pod) { p.Owner.Group = "example.com" }), gone}, foreign},
		{"B7 another kind's pod that is labelled completed and not held is kept", on{job, unheld, labelled}, foreign},
		{"B8 a pod of another instance is kept", on{other, finishedAgo(time.Minute)}, Decision{Reason: ReasonOtherInstance}},
		{"B8 a pod of another instance is kept in a terminating namespace", on{other, ns, ending}, Decision{Reason: ReasonOtherInstance}},
		{"B8 a hidden pod of another instance is kept", on{other, unheld, labelled, readAgo(0), func(e *Evidence) { e.HiddenSince = before(time.Hour) }}, Decision{Reason: ReasonOtherInstance}},
		{"B8 an unowned pod of another instance is kept", on{other, unowned}, Decision{Reason: ReasonOtherInstance}},
		{"B11 a pod without controller is reported", on{unowned}, foreign},
		{"B11 also when terminating", on{unowned, ending}, foreign},
		{"B35 a pod without controller goes with its namespace", on{unowned, ns}, releaseFor(ReasonNamespaceTerminating)},
		{"an unowned pod that is labelled and not held is nobody's business", on{unowned, unheld, labelled}, Decision{}},
	})
	t.Run("with --unowned=release", func(t *testing.T) {
		checkRule(t, []ruleCase{
			{"B11 a pod without controller is released", on{unowned}, releaseFor(ReasonUnowned)},
			{"B7 one of another kind is kept", on{job}, foreign},
			{"B8 one of another instance is kept", on{unowned, other}, Decision{Reason: ReasonOtherInstance}},
		}, func(p *Policy) { p.ReleaseUnowned = true })
	})
	t.Run("of instance other", func(t *testing.T) {
		checkRule(t, []ruleCase{
			{"B8 its own pod is released", on{other, ns}, releaseFor(ReasonNamespaceTerminating)},
			{"B8 the default instance's pod is kept", on{ns}, Decision{Reason: ReasonOtherInstance}},
		}, func(p *Policy) { p.InstanceID = "other" })
	})
}

func TestDecideOnAWorkflowThatIsGoneOrGoing(t *testing.T) {
	ns := onFlow(func(w *Workflow) { w.NamespaceTerminating = true })
	deleting := onFlow(func(w *Workflow) { w.Deleting = true })
	another := onFlow(func(w *Workflow) { w.UID = "another" })
	orphaned := releaseFor(ReasonOrphaned)
	young := Decision{Reason: ReasonOrphaned}
	checkRule(t, []ruleCase{
		{"an orphan is released", on{gone}, orphaned},
		{"an orphan that still runs is released", on{gone, onPod(running)}, orphaned},
		{"B33 a workflow of the same name with another UID makes orphans", on{another, finishedAgo(time.Minute)}, orphaned},
		{"B33 its deletion is not that of the pod's workflow", on{another, deleting, aged(time.Second)}, young.until(after(29 * time.Second))},
		{"an orphan as old as the minimum age is released", on{gone, aged(30 * time.Second)}, orphaned},
		{"an orphan just younger is kept until then", on{gone, aged(30*time.Second - 1)}, young.until(after(1))},
		{"an orphan whose creation is in the future is kept until the minimum age", on{gone, aged(-time.Minute)}, young.until(after(90 * time.Second))},
		{"an orphan without a creation time is old", on{gone, onPod(func(p *Pod) { p.CreatedAt = time.Time{} })}, orphaned},
		{"B37 a young terminating orphan needs its status", on{gone, aged(time.Second), ending, noStatus}, young.until(after(29 * time.Second)).needs(NeedStatus)},
		{"B18 a young terminating orphan that never started is released at once", on{gone, aged(time.Second), ending, onPod(pending)}, releaseFor(ReasonNeverStarted)},
		{"B37 a young terminating orphan that started is kept until the minimum age", on{gone, aged(time.Second), ending, onPod(running)}, young.until(after(29 * time.Second))},
		{"a pod labelled completed whose workflow is gone is an orphan", on{gone, labelled}, orphaned},

		{"a workflow being deleted gives leave", on{deleting, onPod(running)}, releaseFor(ReasonWorkflowDeleting)},
		{"a hint of its deletion is believed: it is never taken back", on{hint, deleting, onPod(running)}, releaseFor(ReasonWorkflowDeleting)},
		{"B34 a workflow being deleted needs no node status", on{deleting, offload}, releaseFor(ReasonWorkflowDeleting)},
		{"B35 a terminating namespace gives leave without further conditions", on{ns, onPod(running), aged(0)}, releaseFor(ReasonNamespaceTerminating)},
		{"B35 a hint of it is believed, whatever is known of the workflow", on{gone, hint, ns, aged(0)}, releaseFor(ReasonNamespaceTerminating)},

		{"B37 a young pod whose workflow is not in the cache yet is left alone", on{gone, hint, aged(time.Second)}, kept.since(before(time.Second)).look(after(29 * time.Second))},
		{"B37 also when the cache has an earlier workflow of the name", on{hint, another, aged(time.Second)}, kept.since(before(time.Second)).look(after(29 * time.Second))},
		{"B37 also when that one is completed", on{hint, another, finished, aged(time.Second)}, kept.since(before(time.Second)).look(after(29 * time.Second))},
		{"B37 a terminating one waits, so its workflow is read", on{gone, hint, aged(time.Second), ending}, kept.since(deleted).needs(NeedWorkflow)},
		{"B6 absence in the cache is never proof: the workflow of an older one is read", on{gone, hint, aged(30 * time.Second)}, kept.since(before(30 * time.Second)).needs(NeedWorkflow)},
		{"B6 another UID in the cache is no proof", on{hint, another}, kept.needs(NeedWorkflow)},
		{"B34 a workflow that cannot be read makes no orphans", on{unreadable}, unknown},
		{"B34 nor orphans of terminating pods", on{unreadable, ending}, unknown.since(deleted)},
	})
}

func TestDecideOnAPodThatNobodyDeletes(t *testing.T) {
	captured := Decision{Reason: ReasonCaptured}
	free := releaseFor(ReasonCaptured)
	complete := releaseFor(ReasonWorkflowCompleted).marked()
	late := Decision{Reason: ReasonWorkflowCompleted}
	checkRule(t, []ruleCase{
		{"B15 a finished pod whose node runs is kept", nil, kept},
		{"B15 however old it is", on{aged(1000 * time.Hour)}, kept.since(before(1000 * time.Hour))},
		{"B46 one whose node is not stored is kept", on{noNode}, kept},
		{"one that waits for its node is kept", on{onPod(pending)}, kept},
		{"one of an attempt that has been replaced is kept while nobody deletes it", on{startedAfterPod(time.Minute)}, kept},
		{"B34 an offloaded node status is unknown", on{offload}, unknown},
		{"a workflow known from the watch is read at leisure", on{hint}, kept.needs(NeedGlance)},
		{"B36 one that has completed is read", on{hint, finished}, kept.needs(NeedWorkflow)},
		{"a remembered capture does not spare the read: the label may have to go with it", on{hint, known}, kept.needs(NeedGlance)},

		{"B17 a captured pod is released after the grace", on{finishedAgo(time.Minute)}, free.since(before(time.Minute))},
		{"a captured pod is left to its controller for the grace", on{finishedAgo(10*time.Second - 1)}, captured.since(before(10*time.Second - 1)).until(after(1))},
		{"and released at its end", on{finishedAgo(10 * time.Second)}, free.since(before(10 * time.Second))},
		{"a node that finished in the future, within the clocks' tolerance, is left for the grace", on{finishedAgo(-5 * time.Second)}, captured.since(after(5 * time.Second)).until(after(15 * time.Second))},
		{"a node that finished further in the future tells nothing, and no grace is given", on{finishedAgo(-5*time.Second - 1)}, free},
		{"a captured node without a finish tells nothing, and no grace is given", on{stored(Node{Phase: "Skipped"})}, free},
		{"a container set was captured when its last container was", on{finishedAgo(9 * time.Minute), func(e *Evidence) {
			nodes := map[string]Node{"c": {Type: "Container", Phase: "Succeeded", BoundaryID: "node-p", FinishedAt: before(time.Second)}}
			nodes["node-p"] = e.Workflow.Nodes["node-p"]
			e.Workflow.SetNodes(nodes)
		}}, captured.since(before(time.Second)).until(after(9 * time.Second))},
		{"a container set with a container that runs is kept", on{finishedAgo(time.Minute), child("Running")}, kept},
		{"B43 a node that finished before the pod was created is an earlier attempt's", on{finishedBeforePod(5*time.Second + 1)}, kept},
		{"one that finished so within the clocks' tolerance is its own", on{finishedBeforePod(5 * time.Second)}, free.since(created.Add(-5 * time.Second))},
		{"a remembered capture outlives a node that a retry reset", on{known, stored(Node{Phase: "Pending"})}, free},
		{"a remembered capture outlives an offloaded node status", on{known, offload}, free},
		{"a remembered capture outlives a workflow that cannot be read", on{known, unreadable}, free},

		{"B36 the pod of a completed workflow is labelled with its release", on{finished, finishedAgo(time.Minute)}, free.since(before(time.Minute)).marked()},
		{"B36 also a young one: without the finalizer nobody looks at it again", on{finished, aged(20 * time.Second), finishedAgo(10 * time.Second)}, free.since(before(10 * time.Second)).marked()},
		{"B36 a finished pod of a completed workflow is labelled and released", on{finished}, complete},
		{"B36 one as old as the minimum age is", on{finished, aged(30 * time.Second)}, complete},
		{"B36 one just younger is kept until then", on{finished, aged(30*time.Second - 1)}, late.since(before(30*time.Second - 1)).until(after(1))},
		{"B36 one known from metadata only needs its status", on{finished, noStatus, aged(30 * time.Second)}, kept.since(before(30 * time.Second)).needs(NeedStatus)},
		{"B36 a younger one not yet", on{finished, noStatus, aged(30*time.Second - 1)}, kept.since(before(30*time.Second - 1)).look(after(1))},
		{"B17 one that podGC is to delete keeps its label, which would hide it from podGC", on{finished, finishedAgo(time.Minute), collected("OnPodCompletion")}, free.since(before(time.Minute))},
		{"B17 so does one that is not captured", on{finished, collected("OnWorkflowSuccess")}, releaseFor(ReasonWorkflowCompleted)},
		{"B36 podGC that deletes nothing is none", on{finished, collected("OnPodNone")}, complete},
		{"B36 a completed workflow with offloaded nodes gives leave", on{finished, offload}, complete},
		{"a workflow that ended in error may be retried and take the result then: no label hides the pod", on{finished, begunBy("Error", created)}, releaseFor(ReasonWorkflowCompleted)},
		{"also where its nodes cannot be learnt", on{finished, offload, begunBy("Error", created)}, releaseFor(ReasonWorkflowCompleted)},
		{"B36 a pod without a node there is nobody's", on{finished, noNode, begunBy("Error", created)}, complete},
		{"a failed pod that is made anew is released, so that its controller can delete it", on{restarting}, releaseFor(ReasonAttemptSuperseded)},
		{"B19 a failed pod with containers that seem to run is finished", on{finished, onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Failed", Started: true} })}, complete},
		{"B19 a failed pod without container statuses is finished", on{finished, onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Failed"} })}, complete},
		{"B21 a pod of a completed workflow that runs is kept", on{finished, onPod(running)}, kept},
		{"one of unknown phase is kept", on{finished, onPod(func(p *Pod) { p.Status = &PodStatus{Phase: "Unknown", Started: true} })}, kept},
		{"one that never started is kept while nobody deletes it", on{finished, onPod(pending)}, kept},

		{"B10 a captured pod that is labelled completed is released, without the grace", on{labelled, finishedAgo(time.Second)}, releaseFor(ReasonCompleted)},
		{"B10 one of a completed workflow is released", on{labelled, finished, aged(0), onPod(running)}, releaseFor(ReasonCompleted)},
		{"B10 also with offloaded nodes", on{labelled, finished, offload}, releaseFor(ReasonCompleted)},
		{"B10 one remembered as captured is released", on{labelled, known, stored(Node{Phase: "Pending"})}, releaseFor(ReasonCompleted)},
		{"B10 its workflow is read first", on{labelled, hint, finished}, kept.needs(NeedWorkflow)},
		{"B34 one whose workflow cannot be read is kept", on{labelled, unreadable}, unknown},
	})
}
