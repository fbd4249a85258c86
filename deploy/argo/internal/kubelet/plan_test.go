package kubelet

import (
	"encoding/json"
	"testing"

	wfv1 "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podWith(t *testing.T, template wfv1.Template, script bool) *corev1.Pod {
	t.Helper()
	body, err := json.Marshal(template)
	if err != nil {
		t.Fatal(err)
	}
	wants := "false"
	if script {
		wants = "true"
	}
	return &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init", Env: []corev1.EnvVar{{Name: "ARGO_TEMPLATE", Value: string(body)}}}},
		Containers: []corev1.Container{
			{Name: "wait", Env: []corev1.EnvVar{{Name: "ARGO_INCLUDE_SCRIPT_OUTPUT", Value: wants}}},
			{Name: "main", Command: []string{"sh", "-c"}, Args: []string{"exit 3"}},
		},
	}}
}

func TestAPodReportsWhatItsTemplateAsksFor(t *testing.T) {
	fromFile := wfv1.Parameter{Name: "file", ValueFrom: &wfv1.ValueFrom{Path: "/tmp/file"}}
	withParameter := wfv1.Template{Outputs: wfv1.Outputs{Parameters: []wfv1.Parameter{fromFile}}}
	for name, test := range map[string]struct {
		pod        *corev1.Pod
		parameters int
		result     bool
	}{
		"nothing":                 {pod: podWith(t, wfv1.Template{}, false)},
		"a parameter from a file": {pod: podWith(t, withParameter, false), parameters: 1},
		"what a script prints":    {pod: podWith(t, wfv1.Template{}, true), result: true},
		"both":                    {pod: podWith(t, withParameter, true), parameters: 1, result: true},
		"no template at all":      {pod: &corev1.Pod{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Plan{Result: "heads"}.outputs(test.pod)
			if got == nil {
				got = &wfv1.Outputs{}
				if test.parameters > 0 || test.result {
					t.Fatal("no outputs")
				}
			}
			if len(got.Parameters) != test.parameters || (got.Result != nil) != test.result {
				t.Fatalf("got %+v", got)
			}
			for _, parameter := range got.Parameters {
				if parameter.Value.String() != "heads" {
					t.Errorf("parameter is %s", parameter.Value)
				}
			}
		})
	}
}

func TestTheCommandIsTheMainContainersWithItsScript(t *testing.T) {
	pod := podWith(t, wfv1.Template{Script: &wfv1.ScriptTemplate{Source: "print(1)"}}, true)
	if got := CommandOf(pod); got != "sh -c exit 3 print(1)" {
		t.Errorf("got %q", got)
	}
}

func TestTheExecutorEndsWellWhateverTheMainContainerDoes(t *testing.T) {
	pod := podWith(t, wfv1.Template{}, false)
	for exit, want := range map[int32]corev1.PodPhase{0: corev1.PodSucceeded, 143: corev1.PodFailed} {
		status := endedStatus(pod, metav1.Now(), metav1.Now(), exit)
		codes := map[string]int32{}
		for _, container := range status.ContainerStatuses {
			codes[container.Name] = container.State.Terminated.ExitCode
		}
		if diff := cmp.Diff(map[string]int32{"wait": 0, "main": exit}, codes); diff != "" || status.Phase != want {
			t.Errorf("exit %d: phase %s, exit codes %s", exit, status.Phase, diff)
		}
	}
}
