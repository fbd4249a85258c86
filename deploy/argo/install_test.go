package argo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const argoNamespace = "argo"

// argoModule is the folder of Argo's Go module, which has its manifests and examples.
func argoModule(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/argoproj/argo-workflows/v4").Output()
	if err != nil {
		return "", fmt.Errorf("find Argo's module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

const argoAccounts = `
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "argo"}}
---
{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "argo"}}
---
{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "argo", "namespace": "argo"}}
---
{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "argo-server", "namespace": "argo"}}
---
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "workflow-controller-configmap", "namespace": "argo"}}
`

// installArgo applies Argo's own kinds and roles, from its module.
func (s *setup) installArgo(ctx context.Context) error {
	if err := s.apply(ctx, []byte(argoAccounts)); err != nil {
		return err
	}
	module, err := argoModule(ctx)
	if err != nil {
		return err
	}
	var files []string
	for _, pattern := range []string{
		"base/crds/minimal/argoproj.io_*.yaml",
		"cluster-install-no-crds/workflow-controller-rbac/workflow-*.yaml",
		"cluster-install-no-crds/argo-server-rbac/argo-server-*.yaml",
	} {
		found, err := filepath.Glob(filepath.Join(module, "manifests", pattern))
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := s.apply(ctx, content); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
	}
	// A kind is served a moment after it is defined.
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	return poll(ctx, func() bool {
		_, err := s.workflows.ArgoprojV1alpha1().WorkflowTaskResults(argoNamespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil
	})
}

// installFinalizerd gives the service the rights that its manifests give it.
func (s *setup) installFinalizerd(ctx context.Context) error {
	for _, name := range []string{"namespace.yaml", "rbac.yaml"} {
		content, err := os.ReadFile(filepath.Join("..", "base", name))
		if err != nil {
			return err
		}
		if err := s.apply(ctx, content, "finalizerd"); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// apply applies each object of a file; its namespace is the given one, else its own, else Argo's, as the kustomizations have it.
func (s *setup) apply(ctx context.Context, file []byte, namespaces ...string) error {
	discovery := memory.NewMemCacheClient(s.admin.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(discovery)
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		return err
	}
	namespace := argoNamespace
	for _, given := range namespaces {
		namespace = given
	}
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file), 1<<20); ; {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(&object.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
		if err != nil {
			return err
		}
		placeSubjects(object, namespace)
		resource := dynamic.ResourceInterface(client.Resource(mapping.Resource))
		if mapping.Scope.Name() == "namespace" {
			if object.GetNamespace() == "" {
				object.SetNamespace(namespace)
			}
			resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
		}
		body, err := json.Marshal(object)
		if err != nil {
			return err
		}
		force := true
		if _, err := resource.Patch(ctx, object.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "argo-stories", Force: &force}); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

// placeSubjects does what kustomize does to the service accounts of a binding.
func placeSubjects(object *unstructured.Unstructured, namespace string) {
	subjects, _, _ := unstructured.NestedSlice(object.Object, "subjects")
	for _, subject := range subjects {
		if fields, ok := subject.(map[string]any); ok && fields["kind"] == "ServiceAccount" && fields["namespace"] == nil {
			fields["namespace"] = namespace
		}
	}
	if len(subjects) > 0 {
		_ = unstructured.SetNestedSlice(object.Object, subjects, "subjects")
	}
}

// argoKubeconfigs makes files for controller and server, each with the token of its own service account.
func (s *setup) argoKubeconfigs(ctx context.Context) (argoConfigs, error) {
	controller, err := s.kubeconfigFor(ctx, "argo")
	if err != nil {
		return argoConfigs{}, err
	}
	server, err := s.kubeconfigFor(ctx, "argo-server")
	return argoConfigs{controller: controller, server: server}, err
}

func (s *setup) kubeconfigFor(ctx context.Context, account string) (string, error) {
	lifetime := int64((4 * time.Hour).Seconds())
	request, err := s.admin.CoreV1().ServiceAccounts(argoNamespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of %s: %w", account, err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["local"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthorityData: s.config.CAData}
	config.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	config.Contexts["local"] = &clientcmdapi.Context{Cluster: "local", AuthInfo: account, Namespace: argoNamespace}
	config.CurrentContext = "local"
	path := filepath.Join(s.dir, account+".argo.kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}
