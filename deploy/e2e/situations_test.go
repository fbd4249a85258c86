package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// situation is one pod that nobody asks about, with a workflow of its own.
type situation struct {
	// before makes the pod, while nothing is to be done about it.
	before func(f *fixture, wf workflow) *corev1.Pod
	// happens is what then leaves it held. Nil: nothing.
	happens func(f *fixture, wf workflow, pod *corev1.Pod)
	reason  pb.HoldReason
	becomes string
	is      end
	writes  []string // of the reconciler
}

func (s situation) kept() bool { return len(s.writes) == 0 }

// makes is the usual pod, called as its workflow and its node.
func makes(options ...podOption) func(*fixture, workflow) *corev1.Pod {
	return func(f *fixture, wf workflow) *corev1.Pod { return f.pod(wf, wf.name, options...) }
}

func deleted(f *fixture, _ workflow, pod *corev1.Pod) { f.deletePod(pod.Name) }

// then is one thing after another.
func then(steps ...func(*fixture, workflow, *corev1.Pod)) func(*fixture, workflow, *corev1.Pod) {
	return func(f *fixture, wf workflow, pod *corev1.Pod) {
		f.t.Helper()
		for _, step := range steps {
			step(f, wf, pod)
		}
	}
}

func statusIs(s map[string]any) func(*fixture, workflow, *corev1.Pod) {
	return func(f *fixture, wf workflow, _ *corev1.Pod) { f.patchStatus(wf, s) }
}

// nodeIs changes the pod's node, which is stored as Running at first.
func nodeIs(phase string, more map[string]any) func(*fixture, workflow, *corev1.Pod) {
	return func(f *fixture, wf workflow, pod *corev1.Pod) {
		n := podNode(pod.Name, phase)
		maps.Copy(n, more)
		f.setNodes(wf, n)
	}
}

// retried is what Argo Server leaves of a completed workflow that it sets to run
// again, with these nodes changed.
func retried(nodes map[string]any) func(*fixture, workflow, *corev1.Pod) {
	status := retryStatus()
	if nodes != nil {
		status["nodes"] = nodes
	}
	return statusIs(status)
}

// retryStatus is a status of a workflow that completed and was retried just now.
func retryStatus() map[string]any {
	return map[string]any{
		"startedAt": now(), "finishedAt": nil,
		"conditions": []map[string]any{{"type": "Completed", "status": "False"}},
	}
}

// now is the time as Argo stores it.
func now() string { return metav1.Now().UTC().Format(time.RFC3339) }

func labelled(f *fixture, _ workflow, pod *corev1.Pod) {
	f.patchPod(pod, map[string]any{"metadata": map[string]any{"labels": map[string]any{labelDone: "true"}}})
}

func (f *fixture) patchPod(pod *corev1.Pod, change map[string]any, subresources ...string) {
	f.t.Helper()
	if _, err := f.plane.admin.CoreV1().Pods(f.ns).Patch(f.ctx, pod.Name, types.MergePatchType, mustJSON(change), metav1.PatchOptions{}, subresources...); err != nil {
		f.t.Fatal(err)
	}
}

func workflowGone(f *fixture, wf workflow, pod *corev1.Pod) {
	f.deleteWorkflow(wf)
	f.waitTerminating(pod) // by the garbage collector
}

// Every row of the rule, but for those that need more than a pod and its workflow.
func situations() map[string]situation {
	const gate = "example.com/gate"
	finished := makes(inPhase(corev1.PodSucceeded))
	later := metav1.NewTime(time.Now().Add(10 * time.Minute)).UTC().Format(time.RFC3339)
	return map[string]situation{
		"B09 captured, and nobody takes FIN off": {
			finished, nodeIs("Succeeded", nil),
			captured, "released", leftReleased, []string{"patch"},
		},
		"B10 labelled completed with FIN left over": {
			finished, then(nodeIs("Succeeded", nil), labelled),
			pb.HoldReason_HOLD_REASON_COMPLETED, "released", labelledAndReleased, []string{"patch"},
		},
		"B15 finished, not captured, deleted": {
			finished, deleted,
			pb.HoldReason_HOLD_REASON_NOT_CAPTURED, "held", held, nil,
		},
		"B15 captured after its deletion": {
			finished, then(deleted, nodeIs("Succeeded", nil)),
			captured, "gone", gone, []string{"patch"},
		},
		"B17 captured, to be deleted in 48 h": {
			makes(inPhase(corev1.PodSucceeded), withAnnotation("workflows.argoproj.io/pod-gc-strategy", "OnPodSuccess/48h0m0s")), nodeIs("Succeeded", nil),
			captured, "released", leftReleased, []string{"patch"},
		},
		"B18 unscheduled, deleted": {
			makes(), deleted,
			pb.HoldReason_HOLD_REASON_NEVER_STARTED, "gone", gone, []string{"patch"},
		},
		"B18 gated, deleted": {
			makes(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gate}} }), deleted,
			pb.HoldReason_HOLD_REASON_NEVER_STARTED, "gone", gone, []string{"patch"},
		},
		"B18 unscheduled, deleted, and marked Failed by pod GC": {
			makes(), then(deleted, failed),
			pb.HoldReason_HOLD_REASON_NEVER_STARTED, "gone", gone, []string{"patch"},
		},
		"B18 scheduled, Pending, deleted": {
			makes(inPhase(corev1.PodPending)), deleted,
			pb.HoldReason_HOLD_REASON_NEVER_STARTED, "released", released, []string{"patch"},
		},
		"B19 Failed with containers that still run": {
			makes(inPhase(corev1.PodRunning)), then(failed, statusIs(map[string]any{"phase": "Failed"})),
			pb.HoldReason_HOLD_REASON_WORKFLOW_COMPLETED, "labelled and released", labelledAndReleased, []string{"patch"},
		},
		"B19 Failed without a container status": {
			makes(onNode), then(failed, statusIs(map[string]any{"phase": "Failed"})),
			pb.HoldReason_HOLD_REASON_WORKFLOW_COMPLETED, "labelled and released", labelledAndReleased, []string{"patch"},
		},
		"B21 Running": {
			makes(inPhase(corev1.PodRunning)), nil,
			pb.HoldReason_HOLD_REASON_NOT_CAPTURED, "held", shown, nil,
		},
		"B32 orphaned": {
			finished, workflowGone,
			pb.HoldReason_HOLD_REASON_ORPHANED, "gone", gone, []string{"patch"},
		},
		"B33 of a workflow whose name another has": {
			finished, then(workflowGone, func(f *fixture, wf workflow, pod *corev1.Pod) { f.workflow(wf.name, podNode(pod.Name, "Running")) }),
			pb.HoldReason_HOLD_REASON_ORPHANED, "gone", gone, []string{"patch"},
		},
		"B34 offloaded nodes": {
			finished, then(statusIs(map[string]any{"nodes": nil, "offloadNodeStatusVersion": "fnv:1"}), deleted),
			pb.HoldReason_HOLD_REASON_CAPTURE_UNKNOWN, "held", held, nil,
		},
		"B34 nodes that cannot be parsed": {
			finished, then(statusIs(map[string]any{"nodes": nil, "compressedNodes": "bm90IGd6aXA="}), deleted),
			pb.HoldReason_HOLD_REASON_CAPTURE_UNKNOWN, "held", held, nil,
		},
		"B34 compressed nodes": {
			finished, then(func(f *fixture, wf workflow, pod *corev1.Pod) {
				f.patchStatus(wf, map[string]any{"nodes": nil, "compressedNodes": pack(podNode(pod.Name, "Succeeded"))})
			}, deleted),
			captured, "gone", gone, []string{"patch"},
		},
		"B36 finished, in a completed workflow that forgot it": {
			finished, statusIs(map[string]any{"phase": "Succeeded"}),
			pb.HoldReason_HOLD_REASON_WORKFLOW_COMPLETED, "labelled and released", labelledAndReleased, []string{"patch"},
		},
		"a workflow that is being deleted": {
			makes(inPhase(corev1.PodRunning)), func(f *fixture, wf workflow, _ *corev1.Pod) {
				f.patchWorkflow(wf, map[string]any{"metadata": map[string]any{"finalizers": []string{"example.com/keep"}}})
				f.deleteWorkflow(wf)
			},
			pb.HoldReason_HOLD_REASON_WORKFLOW_DELETING, "released", leftReleased, []string{"patch"},
		},
		"B44 labelled completed before its time": {
			finished, labelled,
			pb.HoldReason_HOLD_REASON_HIDDEN, "shown again", shown, []string{"patch"},
		},
		"B44 labelled completed before its time, and released": {
			finished, func(f *fixture, _ workflow, pod *corev1.Pod) {
				f.patchPod(pod, map[string]any{"metadata": map[string]any{"finalizers": nil, "labels": map[string]any{labelDone: "true"}}})
			},
			none, "shown again", shown, []string{"patch"},
		},
		"B44 labelled completed before its time, and deleted": {
			finished, then(labelled, deleted),
			pb.HoldReason_HOLD_REASON_HIDDEN, "shown again", shown, []string{"patch"},
		},
		"B46 deleted, and its node removed by a retry": {
			finished, then(deleted, func(f *fixture, wf workflow, pod *corev1.Pod) {
				retried(map[string]any{pod.Name: nil})(f, wf, pod)
			}),
			pb.HoldReason_HOLD_REASON_NODE_REMOVED, "gone", gone, []string{"patch"},
		},
		"B46 deleted, and its node a newer attempt's": {
			finished, then(deleted, nodeIs("Pending", map[string]any{"startedAt": later}), retried(nil)),
			pb.HoldReason_HOLD_REASON_ATTEMPT_SUPERSEDED, "gone", gone, []string{"patch"},
		},
		"failed before it ran, and made anew by its controller": {
			makes(onNode), then(failed, func(f *fixture, wf workflow, pod *corev1.Pod) {
				nodeIs("Pending", map[string]any{"restartingPodUID": string(pod.UID)})(f, wf, pod)
			}),
			pb.HoldReason_HOLD_REASON_ATTEMPT_SUPERSEDED, "released", leftReleased, []string{"patch"},
		},
		"B15 deleted, and its controller died before it stored a node": {
			finished, then(statusIs(map[string]any{"phase": nil, "startedAt": nil, "nodes": nil}), deleted),
			pb.HoldReason_HOLD_REASON_NOT_CAPTURED, "held", held, nil,
		},
		"B15 deleted, and its node stored late by a controller that came back": {
			finished, then(deleted, nodeIs("Pending", map[string]any{"startedAt": later})),
			pb.HoldReason_HOLD_REASON_NOT_CAPTURED, "held", held, nil,
		},
		"B07 owned by another kind": {
			makes(inPhase(corev1.PodSucceeded), withOwner(metav1.OwnerReference{
				APIVersion: "v1", Kind: "Node", Name: localNode, UID: "5d1f9a52-0000-4000-8000-000000000000", Controller: new(true),
			})), nil,
			pb.HoldReason_HOLD_REASON_UNOWNED, "held", shown, nil,
		},
		"B08 of another controller": {
			makes(inPhase(corev1.PodSucceeded), withLabel(labelInstance, "other")), then(nodeIs("Succeeded", nil), deleted),
			pb.HoldReason_HOLD_REASON_OTHER_INSTANCE, "held", held, nil,
		},
		"B11 without an owner": {
			makes(inPhase(corev1.PodSucceeded), withoutOwner), deleted,
			pb.HoldReason_HOLD_REASON_UNOWNED, "held", held, nil,
		},
	}
}

// failed is also what pod GC does, each 20 s, to pods that are deleted and were never
// scheduled.
func failed(f *fixture, _ workflow, pod *corev1.Pod) {
	f.patchPod(pod, map[string]any{"status": map[string]any{"phase": "Failed"}}, "status")
}

// scene is all situations in one namespace.
type scene struct {
	*fixture
	names     []string
	all       map[string]situation
	workflows map[string]workflow
	pods      map[string]*corev1.Pod
}

func (f *fixture) scene() *scene {
	f.t.Helper()
	s := &scene{fixture: f, all: situations(), workflows: map[string]workflow{}, pods: map[string]*corev1.Pod{}}
	s.names = slices.Sorted(maps.Keys(s.all))
	for i, name := range s.names {
		id := fmt.Sprintf("s%02d", i)
		s.workflows[name] = f.workflow(id, podNode(id, "Running"))
		s.pods[name] = s.all[name].before(f, s.workflows[name])
	}
	return s
}

func (s *scene) happens() {
	s.t.Helper()
	for _, name := range s.names {
		if happens := s.all[name].happens; happens != nil {
			happens(s.fixture, s.workflows[name], s.pods[name])
		}
	}
}

// finally is the reason for which the pod is held in the end; none when it is not.
func (s situation) finally() pb.HoldReason {
	switch {
	case s.kept():
		return s.reason
	case s.becomes == "shown again":
		return pb.HoldReason_HOLD_REASON_NOT_CAPTURED
	}
	return none
}

// by groups the names of the pods that have such a reason.
func (s *scene) by(reason func(situation) pb.HoldReason) map[pb.HoldReason][]string {
	groups := map[pb.HoldReason][]string{}
	for _, name := range s.names {
		if r := reason(s.all[name]); r != none {
			groups[r] = append(groups[r], s.pods[name].Name)
		}
	}
	return groups
}

// wantListed fails unless metrics and lists, over both doors, give the reasons.
func (s *scene) wantListed(d *daemon, want map[pb.HoldReason][]string) {
	s.t.Helper()
	for reason, pods := range want {
		s.waitNoted(d, reason, len(pods))
		for _, door := range d.doors() {
			if diff := cmp.Diff(pods, s.listed(door, reason)); diff != "" {
				s.t.Errorf("%s: listed for %s (-want +got):\n%s", door.name, reason, diff)
			}
		}
	}
}

// comesTrue fails, each situation in a subtest, unless all end as they should
// with no write but those.
func (s *scene) comesTrue(d *daemon) {
	for _, name := range s.names {
		one, pod := s.all[name], s.pods[name]
		s.t.Run(name, func(t *testing.T) {
			in := *s.fixture
			in.t = t
			in.waitFor(one.becomes, one.is, pod)
		})
	}
	s.wantListed(d, s.by(situation.finally))
	requests := s.requests(d.userAgent)
	wantNoConflict(s.t, requests)
	for _, name := range s.names {
		one, pod := s.all[name], s.pods[name]
		if now := s.liveOf(pod); !one.is(now) {
			s.t.Errorf("%s: pod %s is not %s any more: %s", name, pod.Name, one.becomes, brief(now))
		}
		wantWritesOf(s.t, requests, pod.Name, one.writes...)
	}
}

func TestB32_WhatHappenedBeforeTheStartIsFoundFromTheFirstList(t *testing.T) {
	f := newFixture(t)
	s := f.scene()
	s.happens()
	d := f.newReconciler(daemonOptions{name: "first-list", policy: soon})
	s.comesTrue(d)
	wantFewReads(t, f.requests(d.userAgent), s)
}

func TestB18_WhatHappensAfterTheStartIsSeenByAddAndUpdate(t *testing.T) {
	f := newFixture(t)
	d := f.newReconciler(daemonOptions{name: "events", policy: soon})
	f.waitReadyz(d)
	s := f.scene()
	s.happens()
	s.comesTrue(d)
}

// wantFewReads bounds what a start may read: what fills the caches does not count.
func wantFewReads(t *testing.T, requests []request, s *scene) {
	t.Helper()
	pods, workflows := ownReads(requests)
	// A pod's status is read only where it matters, and again when the pod has
	// become old enough.
	if n := len(s.names); pods > 2*n || workflows > 3*n {
		t.Errorf("%d reads of pods and %d of workflows for %d of each", pods, workflows, n)
	}
}
