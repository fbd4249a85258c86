package e2e

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const sidecarDir = "../sidecar"

// stockDeployment has what a patch of the component can meet in the Deployments
// of Argo Workflows v4.0.5.
func stockDeployment(name string) *appsv1.Deployment {
	no, yes := false, true
	labels := map[string]string{"app": name}
	main := corev1.Container{
		Name: name, Image: "quay.io/argoproj/" + name + ":v4.0.5",
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	spec := corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes}}
	switch name {
	case "workflow-controller":
		main.Command = []string{name}
		main.Env = []corev1.EnvVar{{Name: "LEADER_ELECTION_IDENTITY", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"},
		}}}
		main.Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9090}, {ContainerPort: 6060}}
	case "argo-server":
		main.Args = []string{"server"}
		main.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 2746}}
		main.VolumeMounts = []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}}
		spec.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	spec.Containers = []corev1.Container{main}
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

// component is deploy/sidecar.
type component struct {
	kubeconfig *api.Config
	configMap  *unstructured.Unstructured
	patches    map[string]*unstructured.Unstructured // by the Deployment's name
}

func readComponent(t *testing.T) component {
	t.Helper()
	kustomization := readObjects(t, filepath.Join(sidecarDir, "kustomization.yaml"))[0]
	c := component{patches: map[string]*unstructured.Unstructured{}}
	files := map[string]bool{"kustomization.yaml": true}
	resources, _, _ := unstructured.NestedStringSlice(kustomization.Object, "resources")
	if len(resources) != 1 {
		t.Fatalf("the component's resources are %v", resources)
	}
	files[resources[0]] = true
	c.configMap = readObjects(t, filepath.Join(sidecarDir, resources[0]))[0]
	text, _, _ := unstructured.NestedString(c.configMap.Object, "data", "kubeconfig")
	var err error
	if c.kubeconfig, err = clientcmd.Load([]byte(text)); err != nil {
		t.Fatal(err)
	}
	patches, _, _ := unstructured.NestedSlice(kustomization.Object, "patches")
	for _, p := range patches {
		file := p.(map[string]any)["path"].(string)
		files[file] = true
		object := readObjects(t, filepath.Join(sidecarDir, file))[0]
		c.patches[object.GetName()] = object
	}
	onDisk, err := os.ReadDir(sidecarDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range onDisk {
		if !files[entry.Name()] {
			t.Errorf("%s is not named in kustomization.yaml", entry.Name())
		}
	}
	return c
}

// apply patches the stock Deployment as kustomize does.
func (c component) apply(t *testing.T, name string) *appsv1.Deployment {
	t.Helper()
	patch, ok := c.patches[name]
	if !ok {
		t.Fatalf("the component has no patch of %s", name)
	}
	body, err := strategicpatch.StrategicMergePatch(mustJSON(stockDeployment(name)), mustJSON(patch.Object), appsv1.Deployment{})
	if err != nil {
		t.Fatal(err)
	}
	patched := &appsv1.Deployment{}
	if err := json.Unmarshal(body, patched); err != nil {
		t.Fatal(err)
	}
	return patched
}

var sidecarOf = map[string][]corev1.EnvVar{
	"workflow-controller": {{Name: "ARGO_POD_STATUS_CAPTURE_FINALIZER", Value: "true"}},
	"argo-server":         nil,
}

func TestTheSidecarComponentChangesOnlyWhereTheProgramFindsItsAPIServer(t *testing.T) {
	c := readComponent(t)
	if len(c.patches) != len(sidecarOf) {
		t.Errorf("there are %d patches, want those of %d Deployments", len(c.patches), len(sidecarOf))
	}
	for name, env := range sidecarOf {
		t.Run(name, func(t *testing.T) {
			got := c.apply(t, name)
			spec := &got.Spec.Template.Spec
			if len(spec.InitContainers) != 1 || spec.InitContainers[0].RestartPolicy == nil || *spec.InitContainers[0].RestartPolicy != corev1.ContainerRestartPolicyAlways {
				t.Fatalf("no container that starts before the others and stays: %+v", spec.InitContainers)
			}
			want := stockDeployment(name)
			wantSpec := &want.Spec.Template.Spec
			main := &wantSpec.Containers[0]
			main.Env = append(append([]corev1.EnvVar{{Name: "KUBECONFIG", Value: "/etc/finalizerd-proxy/kubeconfig"}}, env...), main.Env...)
			main.VolumeMounts = append([]corev1.VolumeMount{{Name: "finalizerd-proxy", MountPath: "/etc/finalizerd-proxy", ReadOnly: true}}, main.VolumeMounts...)
			wantSpec.Volumes = append([]corev1.Volume{{Name: "finalizerd-proxy", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: c.configMap.GetName()}},
			}}}, wantSpec.Volumes...)
			wantSpec.InitContainers = spec.InitContainers
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("beside the sidecar, the Deployment differs from the stock one (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheSidecarsKubeconfigLeadsToTheProxyAsThePodAndLeavesTheNamespaceToIt(t *testing.T) {
	c := readComponent(t)
	current := c.kubeconfig.Contexts[c.kubeconfig.CurrentContext]
	if current == nil || c.kubeconfig.Clusters[current.Cluster] == nil {
		t.Fatalf("the current context is not whole: %+v", c.kubeconfig)
	}
	if current.Namespace != "" {
		t.Errorf("the namespace is %q: a controller that is installed elsewhere would work there", current.Namespace)
	}
	want := &api.AuthInfo{TokenFile: "/var/run/secrets/kubernetes.io/serviceaccount/token"}
	if diff := cmp.Diff(want, c.kubeconfig.AuthInfos[current.AuthInfo], cmpopts.IgnoreFields(api.AuthInfo{}, "Extensions")); diff != "" {
		t.Errorf("the user is not the pod's account, as it is without the sidecar (-want +got):\n%s", diff)
	}
	server, err := url.Parse(c.kubeconfig.Clusters[current.Cluster].Server)
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(server.Host)
	if err != nil || server.Scheme != "https" || !net.ParseIP(host).IsLoopback() {
		t.Errorf("the server is %s, %v; client-go sends credentials to https alone", server, err)
	}
	for name := range sidecarOf {
		args := c.apply(t, name).Spec.Template.Spec.InitContainers[0].Args
		if !slices.Contains(args, "--listen="+server.Host) {
			t.Errorf("%s: the kubeconfig says %s, the proxy gets %v", name, server.Host, args)
		}
	}
}

// The API server takes them strictly, and pods of them in a namespace of the
// restricted standard, for which the stock pods lack a seccomp profile alone.
func TestTheSidecarComponentIsValidAndMayRunWherePodsAreRestricted(t *testing.T) {
	f := newFixture(t)
	c := readComponent(t)
	f.labelNamespace(map[string]any{"pod-security.kubernetes.io/enforce": "restricted"})
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	for name := range sidecarOf {
		// As JSON of the file: the API server judges each field.
		patch := c.patches[name].DeepCopy()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(patch.Object, &appsv1.Deployment{}, true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		deployment := c.apply(t, name)
		deployment.Spec.Template.Spec.Containers[0].SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
		if _, err := f.plane.admin.AppsV1().Deployments(f.ns).Create(f.ctx, deployment, strict); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: deployment.Spec.Template.Spec}
		if _, err := f.plane.admin.CoreV1().Pods(f.ns).Create(f.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("a pod of %s: %v", name, err)
		}
	}
	var configMap corev1.ConfigMap
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(c.configMap.Object, &configMap, true); err != nil {
		t.Fatal(err)
	}
	if _, err := f.plane.admin.CoreV1().ConfigMaps(f.ns).Create(f.ctx, &configMap, strict); err != nil {
		t.Error(err)
	}
}
