package controlplane

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

//go:embed workflow-crd.yaml
var workflowCRD []byte

// workflowDefinition reads the embedded definition strictly: a misspelt field is an error.
func workflowDefinition() (*apiextensionsv1.CustomResourceDefinition, error) {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(workflowCRD, definition); err != nil {
		return nil, fmt.Errorf("read the Workflow kind: %w", err)
	}
	return definition, nil
}

// install defines the Workflow kind, and waits until it is served and until namespace default, which kube-apiserver makes
// by itself, is there.
func install(ctx context.Context, config *rest.Config) error {
	definition, err := workflowDefinition()
	if err != nil {
		return err
	}
	extensions, err := apiextensions.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of kube-apiserver: %w", err)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of kube-apiserver: %w", err)
	}
	definitions := extensions.CustomResourceDefinitions()
	if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("install the Workflow kind: %w", err)
	}
	if err := poll(ctx, func(ctx context.Context) error {
		current, err := definitions.Get(ctx, definition.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range current.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				// Established is said before the handler is up.
				return core.RESTClient().Get().AbsPath("/apis/argoproj.io/v1alpha1/workflows").Param("limit", "1").Do(ctx).Error()
			}
		}
		return errors.New("not established")
	}); err != nil {
		return fmt.Errorf("wait for the Workflow kind: %w", err)
	}
	if err := poll(ctx, func(ctx context.Context) error {
		_, err := core.CoreV1().Namespaces().Get(ctx, corev1.NamespaceDefault, metav1.GetOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("wait for namespace default: %w", err)
	}
	return nil
}
