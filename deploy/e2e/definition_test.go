package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

var definitionResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func TestB34_WithoutTheWorkflowKindPodsAreKeptAndItsComingIsSeen(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, newControlPlane(t))
	client, err := dynamic.NewForConfig(f.plane.config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(definitionResource)
	definition, err := definitions.Get(f.ctx, "workflows.argoproj.io", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := definitions.Delete(f.ctx, definition.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the kind is not served any more", func() (bool, error) {
		_, gone := definitions.Get(f.ctx, definition.GetName(), metav1.GetOptions{})
		_, err := f.plane.workflows.Namespace(f.ns).List(f.ctx, metav1.ListOptions{})
		return apierrors.IsNotFound(gone) && apierrors.IsNotFound(err), nil
	})
	wf := workflow{"wf", "5d1f9a52-0000-4000-8000-000000000000"}
	finished, deleted := f.pod(wf, "finished", inPhase(corev1.PodSucceeded)), f.pod(wf, "deleted", inPhase(corev1.PodSucceeded))
	f.deletePod("deleted")
	f.waitAge(3*time.Second, deleted)

	d := f.newReconciler(daemonOptions{name: "no-kind", policy: soon})
	f.waitReadyz(d)
	f.eventually("readiness tells of the missing kind, and stays", func() (bool, error) {
		ready, text := f.readiness(d)
		return ready && strings.Contains(text, "workflows"), nil
	})
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_CAPTURE_UNKNOWN, 2)
	f.stays("held", held, 5*time.Second, finished, deleted)
	if w := onlyWrites(f.requests(d.userAgent)); len(w) > 0 {
		t.Errorf("it wrote %v", w)
	}

	definition.SetResourceVersion("")
	definition.SetUID("")
	delete(definition.Object, "status")
	if _, err := definitions.Create(f.ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the kind is served again", func() (bool, error) {
		_, err := f.plane.workflows.Namespace(f.ns).List(f.ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	// Now that a Workflow can be proven absent, these are orphans.
	f.waitFor("gone", gone, deleted)
	// And what comes with its Workflow is held as ever, and released.
	later := f.workflow("later", podNode("stored", "Succeeded"), podNode("kept", "Running"))
	stored, kept := f.pod(later, "stored", inPhase(corev1.PodSucceeded)), f.pod(later, "kept", inPhase(corev1.PodSucceeded))
	f.deletePod("stored")
	f.deletePod("kept")
	f.waitFor("gone", gone, stored)
	f.waitFor("released", released, finished)
	f.wantHeld(kept)
	f.eventually("readiness tells of no missing kind any more", func() (bool, error) {
		ready, text := f.readiness(d)
		return ready && !strings.Contains(text, "CustomResourceDefinition"), nil
	})
}
