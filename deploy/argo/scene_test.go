package argo

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	workflowpkg "github.com/argoproj/argo-workflows/v4/pkg/apiclient/workflow"
	wfv1 "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/finalizerd/finalizerd/deploy/argo/internal/kubelet"
)

const (
	fin = "workflows.argoproj.io/status"

	// Annotations of pods, set by the stories' templates, for planOf.
	runAnnotation      = "argo.finalizerd.dev/run"     // a duration, or "forever"
	failAnnotation     = "argo.finalizerd.dev/fail"    // so many attempts of each pod name fail
	unboundAnnotation  = "argo.finalizerd.dev/unbound" // so many attempts of each pod name stay Pending
	defaultPodDuration = 200 * time.Millisecond
)

// planOf says how a pod lives: as its annotations say or, for Argo's examples, which have none, as its command says.
func planOf(pod *corev1.Pod, attempt int) kubelet.Plan {
	p := kubelet.Plan{Run: defaultPodDuration, Result: "1"}
	switch run := pod.Annotations[runAnnotation]; run {
	case "":
	case "forever":
		p.Forever = true
	default:
		p.Run, _ = time.ParseDuration(run)
	}
	if n, _ := strconv.Atoi(pod.Annotations[failAnnotation]); attempt <= n {
		p.ExitCode = 1
	}
	if n, _ := strconv.Atoi(pod.Annotations[unboundAnnotation]); attempt <= n {
		p.Unbound = true
	}
	return byCommand(p, kubelet.CommandOf(pod), pod.Annotations["workflows.argoproj.io/node-name"])
}

// scene is a story at one level.
type scene struct {
	*testing.T
	*setup
	ctx       context.Context
	story, ns string
}

// shape is a workflow of one step that fans out.
type shape struct {
	name  string
	pods  int
	pod   map[string]string // annotations
	podGC wfv1.PodGCStrategy
}

func (w shape) workflow() *wfv1.Workflow {
	wf := &wfv1.Workflow{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: wfv1.WorkflowSpec{
			Entrypoint: "fan", ServiceAccountName: "default",
			Templates: []wfv1.Template{
				{Name: "fan", Steps: []wfv1.ParallelSteps{{Steps: []wfv1.WorkflowStep{{
					Name: "pod", Template: "pod",
					WithSequence: &wfv1.Sequence{Count: &intOrString{Type: 0, IntVal: int32(w.pods)}},
				}}}}},
				{Name: "pod", Metadata: wfv1.Metadata{Annotations: w.pod}, Container: &corev1.Container{Image: "pretended", Command: []string{"true"}}},
			},
		},
	}
	if w.podGC != "" {
		wf.Spec.PodGC = &wfv1.PodGC{Strategy: w.podGC}
	}
	return wf
}

// submit sends a workflow through Argo Server.
func (s *scene) submit(w shape) *wfv1.Workflow {
	s.Helper()
	wf, err := s.server.CreateWorkflow(s.ctx, &workflowpkg.WorkflowCreateRequest{Namespace: s.ns, Workflow: w.workflow()})
	if err != nil {
		s.Fatalf("submit %s: %v", w.name, err)
	}
	return wf
}

// phase reads the label that Argo's controller keeps, which is cheaper than the workflow; "" before it has one, "gone" after its end.
func (s *scene) phase(workflow string) string {
	meta, err := s.metaOf(workflow)
	switch {
	case apierrors.IsNotFound(err):
		return "gone"
	case err != nil:
		return "unknown: " + err.Error()
	}
	return meta.Labels["workflows.argoproj.io/phase"]
}

func (s *scene) metaOf(workflow string) (*metav1.PartialObjectMetadata, error) {
	body, err := s.admin.CoreV1().RESTClient().Get().
		AbsPath("/apis/argoproj.io/v1alpha1/namespaces", s.ns, "workflows", workflow).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(s.ctx).Raw()
	if err != nil {
		return nil, err
	}
	meta := &metav1.PartialObjectMetadata{}
	return meta, json.Unmarshal(body, meta)
}

// workflow reads it whole.
func (s *scene) workflow(name string) *wfv1.Workflow {
	s.Helper()
	wf, err := s.server.GetWorkflow(s.ctx, &workflowpkg.WorkflowGetRequest{Namespace: s.ns, Name: name})
	if err != nil {
		s.Fatalf("get %s: %v", name, err)
	}
	return wf
}

// held counts the pods of the scene that carry FIN.
func (s *scene) held() int {
	n := 0
	for _, pod := range s.podsOf(s.ns) {
		if slices.Contains(pod.Finalizers, fin) {
			n++
		}
	}
	return n
}

func (s *scene) noneHeld() bool { return s.held() == 0 }
func (s *scene) noPods() bool   { return len(s.podsOf(s.ns)) == 0 }

// until waits for done, at most for bound, and says how long it took since the given time.
func (s *scene) until(since time.Time, bound time.Duration, done func() bool) (time.Duration, bool) {
	s.Helper()
	ctx, cancel := context.WithDeadline(s.ctx, since.Add(bound))
	defer cancel()
	err := poll(ctx, done)
	if s.ctx.Err() != nil {
		s.Fatalf("the story took too long: %v", s.ctx.Err())
	}
	return time.Since(since), err == nil
}

// must is until for what Argo does alone: the story ends if it does not come.
func (s *scene) must(what string, bound time.Duration, done func() bool) time.Time {
	s.Helper()
	if _, ok := s.until(time.Now(), bound, done); !ok {
		s.Fatalf("%s: not within %s; %s", what, bound, s.state())
	}
	return time.Now()
}

func (s *scene) inPhase(workflow string, want wfv1.WorkflowPhase) func() bool {
	return func() bool { return s.phase(workflow) == string(want) }
}

// measure notes how long it takes until done, counted from since. Alone, Argo may take for ever; with finalizerd it must not.
func (s *scene) measure(what string, since time.Time, bound time.Duration, done func() bool, note func() string) bool {
	s.Helper()
	took, ok := s.until(since, bound, done)
	f := figure{Level: s.level.String(), Story: s.story, What: what, Seconds: took.Seconds(), Hangs: !ok}
	if note != nil {
		f.Note = note()
	}
	suite.report.add(f)
	if !ok && s.level > stock {
		s.Errorf("%s: not within %s; %s", what, bound, s.state())
	}
	return ok
}

// state says for a failure what there is.
func (s *scene) state() string {
	var b strings.Builder
	terminating := 0
	for _, pod := range s.podsOf(s.ns) {
		if pod.DeletionTimestamp != nil {
			terminating++
		}
	}
	fmt.Fprintf(&b, "%d pods, %d held, %d terminating", len(s.podsOf(s.ns)), s.held(), terminating)
	list, err := s.workflows.ArgoprojV1alpha1().Workflows(s.ns).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return b.String()
	}
	for _, wf := range list.Items {
		fmt.Fprintf(&b, "; %s is %s, its pod nodes are %s", wf.Name, cmp.Or(wf.Status.Phase, "not begun"), nodesOf(&wf))
	}
	return b.String()
}

func podNodes(wf *wfv1.Workflow) int {
	n := 0
	for _, node := range wf.Status.Nodes {
		if node.Type == wfv1.NodeTypePod {
			n++
		}
	}
	return n
}

// nodesOf counts the pod nodes of a workflow by phase.
func nodesOf(wf *wfv1.Workflow) string {
	counts := map[string]int{}
	for _, node := range wf.Status.Nodes {
		if node.Type == wfv1.NodeTypePod {
			counts[string(node.Phase)]++
		}
	}
	var words []string
	for phase, n := range counts {
		words = append(words, fmt.Sprintf("%d %s", n, phase))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// unhidden counts how often the reconciler, as it logs, took a label back that hid pods of the workflow from the controller.
func (s *scene) unhidden(workflow string) int {
	if s.level < reconciler {
		return 0
	}
	log, err := os.ReadFile(filepath.Join(s.dir, "finalizerd.log"))
	if err != nil {
		s.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(log)) {
		var said struct{ Msg, Namespace, Workflow, Pods string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Namespace == s.ns && said.Workflow == workflow && strings.Contains(said.Pods, "HIDDEN") {
			n++
		}
	}
	return n
}

// clear ends what a story leaves behind where Argo hangs, so that it costs the next ones nothing.
func (s *scene) clear() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 2*time.Minute)
	defer cancel()
	background := metav1.DeletePropagationBackground
	_ = s.workflows.ArgoprojV1alpha1().Workflows(s.ns).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{})
	_ = poll(ctx, func() bool {
		for _, pod := range s.podsOf(s.ns) {
			if pod.DeletionTimestamp != nil && len(pod.Finalizers) > 0 {
				_, _ = s.admin.CoreV1().Pods(s.ns).Patch(ctx, pod.Name, mergePatch, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			}
		}
		return s.noPods()
	})
}
