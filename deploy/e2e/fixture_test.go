package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	fin           = "workflows.argoproj.io/status"
	labelWorkflow = "workflows.argoproj.io/workflow"
	labelDone     = "workflows.argoproj.io/completed"
	labelInstance = "workflows.argoproj.io/controller-instanceid"
	nodeID        = "workflows.argoproj.io/node-id"
	localNode     = "local-node"
	runFor        = "local.finalizerd.dev/run"
	endAfter      = "local.finalizerd.dev/terminate-after"

	patience = time.Minute // for what takes a second on an idle machine
)

// fixture is one test's namespace. Nothing in it is removed at the end: the
// control plane goes as a whole.
type fixture struct {
	t     *testing.T
	ctx   context.Context
	plane *controlPlane
	ns    string
}

// newFixture lets the test run beside others, in a namespace of its own.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	return newSerialFixture(t)
}

// newSerialFixture is for tests that cannot run beside others.
func newSerialFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, suite.controlPlane)
}

func newFixtureOn(t *testing.T, plane *controlPlane) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	ns, err := plane.admin.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t: t, ctx: ctx, plane: plane, ns: ns.Name}
}

// beside is a second namespace of the same test.
func (f *fixture) beside() *fixture {
	f.t.Helper()
	return newFixtureOn(f.t, f.plane)
}

// eventually waits for the condition; an error of it ends the test.
func (f *fixture) eventually(what string, condition func() (bool, error)) {
	f.t.Helper()
	f.eventuallyWithin(patience, what, condition)
}

func (f *fixture) eventuallyWithin(limit time.Duration, what string, condition func() (bool, error)) {
	f.t.Helper()
	f.poll(20*time.Millisecond, limit, what, condition)
}

// eventuallySlowly is for conditions that cost the API server a list of many.
func (f *fixture) eventuallySlowly(what string, condition func() (bool, error)) {
	f.t.Helper()
	f.poll(500*time.Millisecond, 2*patience, what, condition)
}

func (f *fixture) poll(each, limit time.Duration, what string, condition func() (bool, error)) {
	f.t.Helper()
	err := wait.PollUntilContextTimeout(f.ctx, each, limit, true,
		func(context.Context) (bool, error) { return condition() })
	if err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
}

// workflow is a stored Workflow.
type workflow struct {
	name string
	uid  types.UID
}

// node is one entry of status.nodes.
type node map[string]any

func podNode(id, phase string) node { return node{"id": id, "type": "Pod", "phase": phase} }

func (n node) with(key string, value any) node {
	n[key] = value
	return n
}

func nodesOf(nodes []node) map[string]any {
	m := make(map[string]any, len(nodes))
	for _, n := range nodes {
		m[n["id"].(string)] = map[string]any(n)
	}
	return m
}

// workflow stores a running Workflow with these nodes.
func (f *fixture) workflow(name string, nodes ...node) workflow {
	f.t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{},
		"status":   map[string]any{"phase": "Running", "startedAt": now(), "nodes": nodesOf(nodes)},
	}}
	stored, err := f.plane.workflows.Namespace(f.ns).Create(f.ctx, object, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return workflow{name, stored.GetUID()}
}

// patchStatus merges into the Workflow's status; nil takes a field away.
func (f *fixture) patchStatus(wf workflow, status map[string]any) {
	f.t.Helper()
	f.patchWorkflow(wf, map[string]any{"status": status})
}

func (f *fixture) patchWorkflow(wf workflow, change map[string]any) {
	f.t.Helper()
	_, err := f.plane.workflows.Namespace(f.ns).Patch(f.ctx, wf.name, types.MergePatchType, mustJSON(change), metav1.PatchOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) setNodes(wf workflow, nodes ...node) {
	f.t.Helper()
	f.patchStatus(wf, map[string]any{"nodes": nodesOf(nodes)})
}

// podOption changes what pod creates.
type podOption func(*corev1.Pod)

func withFinalizers(finalizers ...string) podOption {
	return func(p *corev1.Pod) { p.Finalizers = finalizers }
}

func withLabel(key, value string) podOption {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func withAnnotation(key, value string) podOption {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func withNodeID(id string) podOption { return withAnnotation(nodeID, id) }

func withOwner(owner metav1.OwnerReference) podOption {
	return func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{owner} }
}

// onNode binds the pod to the pretended kubelet, which leaves its status to the
// test unless the pod's annotations say otherwise.
func onNode(p *corev1.Pod) {
	p.Spec.NodeName = localNode
	if _, ok := p.Annotations[runFor]; !ok {
		p.Annotations[runFor] = "manual"
	}
}

// inPhase binds the pod and gives it that phase.
func inPhase(phase corev1.PodPhase) podOption {
	return func(p *corev1.Pod) {
		onNode(p)
		p.Status.Phase = phase
	}
}

// runsUntilDeleted lets the kubelet run the pod, and end it so long after its
// deletion.
func runsUntilDeleted(ends time.Duration) podOption {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = localNode
		p.Annotations[endAfter] = ends.String()
	}
}

// pod creates a pod of the workflow: held by FIN, its node ID its name, not
// scheduled, unless the options say otherwise.
func (f *fixture) pod(wf workflow, name string, options ...podOption) *corev1.Pod {
	f.t.Helper()
	pod, err := f.tryPod(wf, name, options...)
	if err != nil {
		f.t.Fatal(err)
	}
	return pod
}

func (f *fixture) tryPod(wf workflow, name string, options ...podOption) (*corev1.Pod, error) {
	yes := true
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: f.ns,
			Labels:      map[string]string{labelWorkflow: wf.name, labelDone: "false"},
			Annotations: map[string]string{nodeID: name},
			Finalizers:  []string{fin},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Name: wf.name, UID: wf.uid,
				Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: corev1.PodSpec{
			Containers:    []corev1.Container{{Name: "main", Image: "busybox"}},
			RestartPolicy: corev1.RestartPolicyNever,
		},
	}
	for _, o := range options {
		o(object)
	}
	pods := f.plane.admin.CoreV1().Pods(f.ns)
	pod, err := pods.Create(f.ctx, object, metav1.CreateOptions{})
	if err != nil || object.Status.Phase == "" {
		return pod, err
	}
	return pods.Patch(f.ctx, name, types.MergePatchType, mustJSON(statusOf(object.Status.Phase)), metav1.PatchOptions{}, "status")
}

// statusOf is the status that a kubelet gives a pod in that phase.
func statusOf(phase corev1.PodPhase) map[string]any {
	now := metav1.Now()
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	switch phase {
	case corev1.PodPending:
		state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	case corev1.PodSucceeded, corev1.PodFailed:
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: now, FinishedAt: now}}
	}
	return map[string]any{"status": corev1.PodStatus{
		Phase:             phase,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: "busybox", State: state}},
	}}
}

// live reads the pod, nil when there is none.
func (f *fixture) live(name string) *corev1.Pod {
	f.t.Helper()
	pod, err := f.plane.admin.CoreV1().Pods(f.ns).Get(f.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return pod
}

// wantHeld fails unless this very pod is there with FIN on it.
func (f *fixture) wantHeld(pod *corev1.Pod) *corev1.Pod {
	f.t.Helper()
	now := f.live(pod.Name)
	if now == nil || now.UID != pod.UID || !slices.Contains(now.Finalizers, fin) {
		f.t.Fatalf("pod %s (UID %s) is not held any more: %+v", pod.Name, pod.UID, now)
	}
	return now
}

// wantUntouched is wantHeld, and no deletion and no completed label either.
func (f *fixture) wantUntouched(pod *corev1.Pod) {
	f.t.Helper()
	now := f.wantHeld(pod)
	if now.DeletionTimestamp != nil || now.Labels[labelDone] == "true" {
		f.t.Errorf("pod %s was touched: deletionTimestamp %v, labels %v", pod.Name, now.DeletionTimestamp, now.Labels)
	}
}

// deletePod deletes as kubectl does.
func (f *fixture) deletePod(name string) {
	f.t.Helper()
	if err := f.plane.admin.CoreV1().Pods(f.ns).Delete(f.ctx, name, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// dropPod takes all finalizers off and deletes at once, so that the name is
// free.
func (f *fixture) dropPod(name string) {
	f.t.Helper()
	pods := f.plane.admin.CoreV1().Pods(f.ns)
	if _, err := pods.Patch(f.ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		f.t.Fatal(err)
	}
	if err := pods.Delete(f.ctx, name, *metav1.NewDeleteOptions(0)); err != nil && !apierrors.IsNotFound(err) {
		f.t.Fatal(err)
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshal a test's own value: %v", err))
	}
	return b
}
