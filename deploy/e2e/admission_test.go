package e2e

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// podUpdatesHere matches updates of pods in the fixture's namespace.
func (f *fixture) podUpdatesHere() *admission.MatchResources {
	return &admission.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.ns}},
		ResourceRules: []admission.NamedRuleWithOperations{{RuleWithOperations: admission.RuleWithOperations{
			Operations: []admission.OperationType{admission.Update},
			Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
	}
}

// removeLater takes away what is not in the fixture's namespace: left there, it
// would cost each later request.
func (f *fixture) removeLater(remove ...func() error) {
	f.t.Cleanup(func() {
		for _, r := range remove {
			if err := r(); err != nil {
				f.t.Error(err)
			}
		}
	})
}

// refuseUpdates makes a policy, and returns its name, that refuses updates of
// pods with the label blocked.
func (f *fixture) refuseUpdates(probe *corev1.Pod) string {
	f.t.Helper()
	name := "refuse." + f.ns + ".example.com"
	fail := admission.Fail
	policies := suite.admin.AdmissionregistrationV1()
	if _, err := policies.ValidatingAdmissionPolicies().Create(f.ctx, &admission.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admission.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail, MatchConstraints: f.podUpdatesHere(),
			Validations: []admission.Validation{{Expression: "!('blocked' in object.metadata.labels)", Message: "pods stay as they are"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	if _, err := policies.ValidatingAdmissionPolicyBindings().Create(f.ctx, &admission.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admission.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admission.ValidationAction{admission.Deny},
		},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.removeLater(
		func() error {
			return policies.ValidatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
		},
		func() error {
			return policies.ValidatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	f.waitRefused(probe)
	return name
}

// meddle makes a policy, and returns its name, that changes a field of updated
// pods that may not change.
func (f *fixture) meddle(probe *corev1.Pod) string {
	f.t.Helper()
	name := "meddle." + f.ns + ".example.com"
	fail := admission.Fail
	policies := suite.admin.AdmissionregistrationV1()
	if _, err := policies.MutatingAdmissionPolicies().Create(f.ctx, &admission.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admission.MutatingAdmissionPolicySpec{
			FailurePolicy: &fail, MatchConstraints: f.podUpdatesHere(), ReinvocationPolicy: admission.NeverReinvocationPolicy,
			Mutations: []admission.Mutation{{
				PatchType: admission.PatchTypeJSONPatch,
				JSONPatch: &admission.JSONPatch{Expression: `[JSONPatch{op: "add", path: "/spec/hostname", value: "meddled"}]`},
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	if _, err := policies.MutatingAdmissionPolicyBindings().Create(f.ctx, &admission.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admission.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.removeLater(
		func() error {
			return policies.MutatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
		},
		func() error {
			return policies.MutatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	f.waitRefused(probe)
	return name
}

// waitRefused waits until the API server knows the policy: that takes a moment.
func (f *fixture) waitRefused(probe *corev1.Pod) {
	f.t.Helper()
	f.eventually("the policy is in force", func() (bool, error) {
		_, err := suite.admin.CoreV1().Pods(f.ns).Patch(f.ctx, probe.Name, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"example.com/try":"1"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil, nil
	})
}

func TestB13_BlockedByAPolicyThatRefusesUpdates(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	blocked := f.pod(wf, "blocked", inPhase(corev1.PodSucceeded), withLabel("blocked", "true"))
	unheld := f.pod(wf, "unheld", inPhase(corev1.PodRunning), withLabel("blocked", "true"), withFinalizers())
	policy := f.refuseUpdates(blocked)
	f.waitPods(d, wf, 2)
	for _, door := range d.doors() {
		_, err := door.ReleasePod(f.ctx, f.releasing(blocked.Name, string(blocked.UID)))
		info := wantError(t, err, codes.FailedPrecondition, "BLOCKED_BY_ADMISSION")
		if got := info.GetMetadata()["webhook"]; got != policy {
			t.Errorf("%s: the policy is told as %q, want %q", door.name, got, policy)
		}
		_, err = door.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: unheld.Name})
		wantError(t, err, codes.FailedPrecondition, "BLOCKED_BY_ADMISSION")
	}
	f.wantUntouched(blocked)
}

func TestB13_BlockedByAPolicyThatChangesTheSpec(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	f.meddle(pod)
	f.waitPods(d, wf, 1)
	for _, door := range d.doors() {
		_, err := door.ReleasePod(f.ctx, f.releasing("pod", string(pod.UID)))
		info := wantError(t, err, codes.FailedPrecondition, "BLOCKED_BY_ADMISSION")
		if field := info.GetMetadata()["field"]; !strings.HasPrefix(field, "spec") {
			t.Errorf("%s: the field is told as %q", door.name, field)
		}
		got, err := door.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true})
		if err != nil {
			t.Fatal(err)
		}
		r := got.GetResults()[0]
		wantResult(t, r, pb.Outcome_OUTCOME_BLOCKED_BY_ADMISSION, pb.HoldReason_HOLD_REASON_FORCED)
		if !strings.HasPrefix(r.GetField(), "spec") || got.GetSummary().GetNeedsAttention() != 1 {
			t.Errorf("%s: %v", door.name, got)
		}
	}
	f.wantUntouched(pod)
}

func TestB25_OnePodThatAdmissionRefusesStopsNoOther(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	f.podsNamed(wf, "pod", 5, inPhase(corev1.PodSucceeded))
	blocked := f.pod(wf, "blocked", inPhase(corev1.PodSucceeded), withLabel("blocked", "true"))
	policy := f.refuseUpdates(blocked)
	f.waitPods(d, wf, 6)
	got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true, Wait: true})
	if err != nil || len(got.GetResults()) != 6 {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, r := range got.GetResults() {
		want := pb.Outcome_OUTCOME_DELETED
		if r.GetPod() == "blocked" {
			want = pb.Outcome_OUTCOME_BLOCKED_BY_ADMISSION
			if r.GetWebhook() != policy {
				t.Errorf("the policy is told as %q", r.GetWebhook())
			}
		}
		wantResult(t, r, want, pb.HoldReason_HOLD_REASON_FORCED)
	}
	f.wantHeld(blocked)
	// Two writes a pod, of which the refused release is one: no quick retries.
	f.wantCounts("the call", f.requests(d.userAgent), count{Writes: 12})
}
