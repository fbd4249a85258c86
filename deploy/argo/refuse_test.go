package argo

import (
	"context"
	"sync"
	"time"

	wfv1 "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	workflows "github.com/argoproj/argo-workflows/v4/pkg/client/clientset/versioned"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const controllerUser = "system:serviceaccount:" + argoNamespace + ":argo"

// refuseStoring has the API server refuse what Argo's controller writes to the workflows of the namespace, so that it dies, as it were,
// before it has stored anything. The pods that it makes are admitted. It returns what lifts the refusal.
func (s *scene) refuseStoring() (lift func()) {
	s.Helper()
	const name = "refuse-storing"
	fail, deny := admissionv1.Fail, admissionv1.Deny
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.ns}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{"argoproj.io"}, APIVersions: []string{"*"}, Resources: []string{"workflows"}},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "request.userInfo.username != \"" + controllerUser + "\""}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{deny}},
	}
	policies := s.admin.AdmissionregistrationV1()
	if _, err := policies.ValidatingAdmissionPolicies().Create(s.ctx, policy, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	if _, err := policies.ValidatingAdmissionPolicyBindings().Create(s.ctx, binding, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	remove := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), time.Minute)
		defer cancel()
		for _, err := range []error{
			policies.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			policies.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				s.Error(err)
			}
		}
	})
	s.Cleanup(remove)
	// A workflow that no controller looks at.
	probe := &wfv1.Workflow{ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: map[string]string{"workflows.argoproj.io/controller-instanceid": "nobody"}}}
	if _, err := s.workflows.ArgoprojV1alpha1().Workflows(s.ns).Create(s.ctx, probe, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.must("the policy is in force", time.Minute, func() bool { return s.storing() != nil })
	return func() {
		remove()
		s.must("the controller may store again", time.Minute, func() bool { return s.storing() == nil })
	}
}

// storing tries a write to the probe in the controller's name.
func (s *scene) storing() error {
	config := rest.CopyConfig(s.config)
	config.Impersonate.UserName = controllerUser
	as, err := workflows.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = as.ArgoprojV1alpha1().Workflows(s.ns).Patch(s.ctx, "probe", mergePatch, []byte(`{"metadata":{"annotations":{"tried":"1"}}}`),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}
