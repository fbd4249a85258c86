package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

const (
	baseDir       = "../base"
	baseNamespace = "finalizerd" // as kustomization.yaml sets it
)

// resourceOf tells where a kind of the base is created. A kind that is missing
// here fails the test.
var resourceOf = map[string]struct {
	schema.GroupVersionResource
	global bool
}{
	"Namespace":          {schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, true},
	"ServiceAccount":     {schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, false},
	"Service":            {schema.GroupVersionResource{Version: "v1", Resource: "services"}, false},
	"Deployment":         {schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, false},
	"NetworkPolicy":      {schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}, false},
	"ClusterRole":        {schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, true},
	"ClusterRoleBinding": {schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}, true},
}

// readBase returns the objects of one file of the kustomize base.
func readBase(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	return readObjects(t, filepath.Join(baseDir, file))
}

// createStrictly creates an object; a field that the API does not know is an
// error. What exists already is left.
func (f *fixture) createStrictly(client dynamic.Interface, object *unstructured.Unstructured) {
	f.t.Helper()
	to, ok := resourceOf[object.GetKind()]
	if !ok {
		f.t.Fatalf("kind %q is not known to this test", object.GetKind())
	}
	resource := dynamic.ResourceInterface(client.Resource(to.GroupVersionResource))
	if !to.global {
		resource = client.Resource(to.GroupVersionResource).Namespace(baseNamespace)
	}
	_, err := resource.Create(f.ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		f.t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

// The base is applied as it is, and finalizerd then runs as its service account,
// with the rights of its ClusterRole and no others, through each call.
func TestTheKustomizeBaseIsValidAndItsRoleIsEnough(t *testing.T) {
	f := newFixture(t)
	client, err := dynamic.NewForConfig(suite.config)
	if err != nil {
		t.Fatal(err)
	}
	files := readBase(t, "kustomization.yaml")[0]
	resources, _, err := unstructured.NestedStringSlice(files.Object, "resources")
	if err != nil || len(resources) == 0 {
		t.Fatalf("kustomization.yaml names no resources: %v", err)
	}
	for _, file := range resources {
		for _, object := range readBase(t, file) {
			f.createStrictly(client, object)
		}
	}
	onDisk, err := os.ReadDir(baseDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range onDisk {
		if name := entry.Name(); name != "kustomization.yaml" && !slices.Contains(resources, name) {
			t.Errorf("%s is not among the resources of kustomization.yaml", name)
		}
	}

	config, err := suite.configOf("finalizerd")
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(t, config)
	refused := g.refusals()
	// Of all namespaces, as the base runs it; here it must leave other tests' pods
	// alone.
	d := f.newDaemon(daemonOptions{name: "base", config: g.config, reconcile: "report"})
	f.waitReadyz(d)
	wf := f.workflow("wf", podNode("captured", "Succeeded"), podNode("other", "Failed"), podNode("runs", "Running"))
	captured, runs := f.pod(wf, "captured", inPhase("Succeeded")), f.pod(wf, "runs")
	f.pod(wf, "other", inPhase("Failed"))
	f.pod(wf, "bare", withFinalizers())
	f.waitPods(d, wf, 4)

	added, err := d.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: "bare"})
	if err != nil || added.GetOutcome() != pb.Outcome_OUTCOME_ADDED {
		t.Errorf("AddFinalizer: %v, %v", added, err)
	}
	_, err = d.ReleasePod(f.ctx, f.verifying("runs"))
	wantError(t, err, codes.FailedPrecondition, "POD_NOT_CAPTURED")
	if _, err = d.ReleasePod(f.ctx, f.verifying(captured.Name)); err != nil {
		t.Errorf("ReleasePod: %v", err)
	}
	got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{
		Namespace: f.ns, Workflow: wf.name, NodeIds: []string{"other", "unknown"}, Wait: true,
	})
	if err != nil || got.GetSummary().GetDeleted() != 1 || got.GetSummary().GetSkipped() != 1 {
		t.Errorf("DeleteWorkflowPods: %v, %v", got, err)
	}
	if _, err = d.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: runs.Name}); err != nil {
		t.Errorf("GetPod: %v", err)
	}
	if ready, text := f.readiness(d); !ready {
		t.Errorf("a right is missing:\n%s", text)
	}
	f.wantHeld(runs)
	if forbidden := refused(); len(forbidden) > 0 {
		t.Errorf("the role is not enough for %v", forbidden)
	}
}

func TestTheRoleOfTheBaseIsEnoughForTheReconciler(t *testing.T) {
	f := newFixture(t)
	client, err := dynamic.NewForConfig(suite.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"namespace.yaml", "rbac.yaml"} {
		for _, object := range readBase(t, file) {
			f.createStrictly(client, object)
		}
	}
	config, err := suite.configOf("finalizerd")
	if err != nil {
		t.Fatal(err)
	}
	s := f.scene()
	s.happens()
	lost := f.pod(f.workflow("lost", podNode("lost", "Running")), "lost", runsOn(f.clusterNode("lost")))
	if err := suite.admin.CoreV1().Nodes().Delete(f.ctx, lost.Spec.NodeName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := suite.admin.CoreV1().Pods(f.ns).Delete(f.ctx, "lost", *metav1.NewDeleteOptions(1)); err != nil {
		t.Fatal(err)
	}
	g := newGate(t, config)
	refused := g.refusals()
	d := f.newReconciler(daemonOptions{name: "base-on", config: g.config, policy: soon})
	s.comesTrue(d)
	f.waitFor("released", released, lost)
	f.wantEvent(lost, "NodeLost")
	f.waitReadyz(d)
	if forbidden := refused(); len(forbidden) > 0 {
		t.Errorf("the role is not enough for %v", forbidden)
	}
}
