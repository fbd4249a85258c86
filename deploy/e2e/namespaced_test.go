package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// grantNamespaced creates the roles of deploy/namespaced for the fixture's
// namespace in place of argo, and for a service account of it.
func (f *fixture) grantNamespaced() {
	f.t.Helper()
	client, err := dynamic.NewForConfig(f.plane.config)
	if err != nil {
		f.t.Fatal(err)
	}
	resources := map[string]string{"Role": "roles", "RoleBinding": "rolebindings", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}
	here := strings.NewReplacer(`"argo"`, `"`+f.ns+`"`, `"namespace":"finalizerd"`, `"namespace":"`+f.ns+`"`)
	for _, object := range readBase(f.t, "../namespaced/rbac.yaml") {
		raw, err := json.Marshal(object.Object)
		if err != nil {
			f.t.Fatal(err)
		}
		var mine unstructured.Unstructured
		if err := json.Unmarshal([]byte(here.Replace(string(raw))), &mine.Object); err != nil {
			f.t.Fatal(err)
		}
		to := client.Resource(schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: resources[mine.GetKind()]})
		create := dynamic.ResourceInterface(to)
		if ns := mine.GetNamespace(); ns != "" {
			create = to.Namespace(ns)
		}
		if _, err := create.Create(f.ctx, &mine, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			f.t.Fatalf("%s %s: %v", mine.GetKind(), mine.GetName(), err)
		}
	}
}

// The roles are those of deploy/namespaced and no others, and they are enough for
// calls, for the reconciler with its looks at cluster nodes, and for Events.
func TestTheRolesForOneNamespaceAreEnoughThereAndNowhereElse(t *testing.T) {
	f := newFixture(t)
	config := f.serviceAccount()
	f.grantNamespaced()
	other := f.beside()
	wf := f.workflow("wf", podNode("stored", "Succeeded"), podNode("lost", "Running"), podNode("hidden", "Running"), podNode("bulk", "Succeeded"))
	d := f.newReconciler(daemonOptions{name: "namespaced", config: config, policy: soon})
	f.waitReadyz(d)
	stored := f.pod(wf, "stored", inPhase(corev1.PodSucceeded))
	lost := f.pod(wf, "lost", inPhase(corev1.PodRunning), func(p *corev1.Pod) { p.Spec.NodeName = "gone-" + f.ns })
	hidden := f.pod(wf, "hidden", inPhase(corev1.PodSucceeded), withLabel(labelDone, "true"))
	f.waitFor("released", leftReleased, stored)
	f.waitFor("shown again", shown, hidden)
	f.wantEvent(hidden, "Hidden")
	f.deletePod("lost")
	f.waitFor("given up with its cluster node", released, lost)
	f.wantEvent(lost, "NodeLost")
	got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, NodeIds: []string{"stored", "unknown"}})
	if err != nil || got.GetSummary().GetSkipped() != 1 || got.GetSummary().GetNeedsAttention() != 0 {
		t.Errorf("DeleteWorkflowPods: %v, %v", got, err)
	}
	_, err = d.GetPod(f.ctx, &pb.GetPodRequest{Namespace: other.ns, Pod: "p"})
	wantError(t, err, codes.FailedPrecondition, "NAMESPACE_NOT_SERVED")
	if ready, text := f.readiness(d); !ready || strings.Contains(text, "but") {
		t.Errorf("a right is missing:\n%s", text)
	}
	for _, r := range f.requests(d.userAgent) {
		if r.code == 403 {
			t.Errorf("forbidden: %s", r)
		}
	}
}
