package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

const (
	holdLabel = "finalizerd.dev/hold"
	foreign   = "example.com/keep"
)

// readManifests returns the objects of the files that the kustomization of the
// folder names under that key, and fails if another file lies beside them.
func readManifests(t *testing.T, dir, key string) []*unstructured.Unstructured {
	t.Helper()
	names, _, err := unstructured.NestedStringSlice(readObjects(t, filepath.Join(dir, "kustomization.yaml"))[0].Object, key)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s/kustomization.yaml has no %s: %v", dir, key, err)
	}
	var objects []*unstructured.Unstructured
	for _, name := range names {
		objects = append(objects, readObjects(t, filepath.Join(dir, name))...)
	}
	onDisk, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(onDisk) != len(names)+1 {
		t.Errorf("%s has %d files, its kustomization names %v", dir, len(onDisk), names)
	}
	return objects
}

func readObjects(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(body), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(&object.Object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, object)
	}
}

// holdAtCreation applies deploy/admission, lets the fixture's namespace take
// part, and waits until the API server follows.
func (f *fixture) holdAtCreation(wf workflow) {
	f.t.Helper()
	client, err := dynamic.NewForConfig(f.plane.config)
	if err != nil {
		f.t.Fatal(err)
	}
	resources := map[string]string{
		"MutatingAdmissionPolicy": "mutatingadmissionpolicies", "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
	}
	for _, object := range readManifests(f.t, filepath.Join("..", "admission"), "resources") {
		resource := client.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resources[object.GetKind()]})
		if _, err := resource.Create(f.ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			f.t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
		f.removeLater(func() error { return resource.Delete(context.Background(), object.GetName(), metav1.DeleteOptions{}) })
	}
	f.labelNamespace(map[string]any{holdLabel: "enabled"})
	f.eventually("the policy is in force", func() (bool, error) {
		probe, err := f.tryPod(wf, "probe", withFinalizers(), withGeneratedName)
		return err == nil && len(probe.Finalizers) == 1, err
	})
}

func (f *fixture) labelNamespace(labels map[string]any) {
	f.t.Helper()
	change := mustJSON(map[string]any{"metadata": map[string]any{"labels": labels}})
	if _, err := f.plane.admin.CoreV1().Namespaces().Patch(f.ctx, f.ns, types.MergePatchType, change, metav1.PatchOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func TestThePolicyPutsTheFinalizerOnWorkflowPodsAtCreation(t *testing.T) {
	yes, no := true, false
	owner := func(apiVersion, kind string, controller *bool) podOption {
		return withOwner(metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "wf", UID: "11111111-2222-3333-4444-555555555555", Controller: controller})
	}
	tests := map[string]struct {
		options []podOption
		want    []string
	}{
		"a workflow pod":                           {[]podOption{withFinalizers()}, []string{fin}},
		"beside the finalizers of others":          {[]podOption{withFinalizers(foreign, "example.com/second")}, []string{foreign, "example.com/second", fin}},
		"not twice":                                {[]podOption{withFinalizers(foreign, fin)}, []string{foreign, fin}},
		"a name that the API server generates":     {[]podOption{withFinalizers(), withGeneratedName}, []string{fin}},
		"B7 labels that user metadata overwrote":   {[]podOption{withFinalizers(), withLabel(labelWorkflow, "x"), withLabel(labelDone, "true")}, []string{fin}},
		"a pod that merge tools cannot read":       {[]podOption{withFinalizers(), withEnvTwice}, []string{fin}},
		"another version of the Workflow kind":     {[]podOption{withFinalizers(), owner("argoproj.io/v1", "Workflow", &yes)}, []string{fin}},
		"a second owner that is no controller":     {[]podOption{withFinalizers(), withSecondOwner}, []string{fin}},
		"not a pod without owner":                  {[]podOption{withFinalizers(), withoutOwner}, nil},
		"not an artifact-GC pod":                   {[]podOption{withFinalizers(), owner("argoproj.io/v1alpha1", "WorkflowArtifactGCTask", &yes)}, nil},
		"not a Workflow of another group":          {[]podOption{withFinalizers(foreign), owner("argoproj.io.example.com/v1", "Workflow", &yes)}, []string{foreign}},
		"not a Workflow that is no controller":     {[]podOption{withFinalizers(), owner("argoproj.io/v1alpha1", "Workflow", &no)}, nil},
		"not an owner that does not say":           {[]podOption{withFinalizers(), owner("argoproj.io/v1alpha1", "Workflow", nil)}, nil},
		"not an agent pod, which has no node":      {[]podOption{withFinalizers(), withoutAnnotations}, nil},
		"B8 not a pod of another instance":         {[]podOption{withFinalizers(), withLabel(labelInstance, "other")}, nil},
		"a pod of the default instance, said so":   {[]podOption{withFinalizers(), withLabel(labelInstance, "")}, []string{fin}},
		"a pod without labels and with finalizers": {[]podOption{withFinalizers(foreign), withoutLabels}, []string{foreign, fin}},
	}
	f := newFixture(t)
	wf := f.workflow("wf")
	f.holdAtCreation(wf)
	i := 0
	for name, test := range tests {
		i++
		t.Run(name, func(t *testing.T) {
			pod, err := f.tryPod(wf, fmt.Sprintf("pod-%d", i), test.options...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, pod.Finalizers); diff != "" {
				t.Errorf("finalizers (-want +got):\n%s", diff)
			}
		})
	}

	t.Run("what is created is held, and an update after the release brings nothing back", func(t *testing.T) {
		pod := f.pod(wf, "real", withFinalizers())
		f.wantHeld(pod)
		change := []byte(`{"metadata":{"finalizers":null,"labels":{"x":"y"}}}`)
		for range 2 {
			after, err := f.plane.admin.CoreV1().Pods(f.ns).Patch(f.ctx, pod.Name, types.MergePatchType, change, metav1.PatchOptions{})
			if err != nil || len(after.Finalizers) != 0 {
				t.Fatalf("the update: finalizers %v, %v", after.Finalizers, err)
			}
		}
	})
	t.Run("not in a namespace without the label, or with another value of it", func(t *testing.T) {
		other := f.beside()
		for _, labels := range []map[string]any{nil, {holdLabel: "disabled"}} {
			if labels != nil {
				other.labelNamespace(labels)
			}
			pod, err := other.tryPod(wf, "pod", withFinalizers(), withGeneratedName)
			if err != nil || len(pod.Finalizers) != 0 {
				t.Errorf("with labels %v: finalizers %v, %v", labels, pod.Finalizers, err)
			}
		}
	})
}

func TestThePolicyNeverKeepsAPodFromBeingCreated(t *testing.T) {
	for _, object := range readManifests(t, filepath.Join("..", "admission"), "resources") {
		if object.GetKind() != "MutatingAdmissionPolicy" {
			continue
		}
		if got, _, _ := unstructured.NestedString(object.Object, "spec", "failurePolicy"); got != string(admission.Ignore) {
			t.Errorf("failurePolicy is %q: an expression that fails would keep workflows from starting", got)
		}
		return
	}
	t.Error("deploy/admission has no policy")
}

func withGeneratedName(p *corev1.Pod) { p.Name, p.GenerateName = "", p.Name+"-" }
func withoutOwner(p *corev1.Pod)      { p.OwnerReferences = nil }
func withoutLabels(p *corev1.Pod)     { p.Labels = nil }
func withoutAnnotations(p *corev1.Pod) {
	p.Annotations = nil
}

func withSecondOwner(p *corev1.Pod) {
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "11111111-2222-3333-4444-555555555555"}
	p.OwnerReferences = append([]metav1.OwnerReference{other}, p.OwnerReferences...)
}

func withEnvTwice(p *corev1.Pod) {
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TWICE", Value: "1"}, {Name: "TWICE", Value: "2"}}
}
