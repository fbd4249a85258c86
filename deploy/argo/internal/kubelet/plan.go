package kubelet

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	wfv1 "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	corev1 "k8s.io/api/core/v1"
)

// Plan says how a pod lives. The zero value binds it, runs it for no time and lets it succeed.
type Plan struct {
	Unbound  bool          // it stays Pending, without a node, for ever
	Forever  bool          // it runs until a signal or a deletion ends it
	Run      time.Duration // it runs for so long
	ExitCode int32         // of container main; 0 is success
	// Result is the value of each output that the pod's template declares: its parameters with a path, and what a script prints.
	Result string
}

// outputs makes up what Argo's executor would report for the pod's template. It is nil if nothing is asked for, or if the
// template cannot be read: Argo moves large ones elsewhere.
func (p Plan) outputs(pod *corev1.Pod) *wfv1.Outputs {
	var template wfv1.Template
	wantsResult := false
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, variable := range container.Env {
			switch variable.Name {
			case "ARGO_TEMPLATE":
				_ = json.Unmarshal([]byte(variable.Value), &template)
			case "ARGO_INCLUDE_SCRIPT_OUTPUT":
				wantsResult = wantsResult || variable.Value == "true"
			}
		}
	}
	outputs := &wfv1.Outputs{}
	for _, parameter := range template.Outputs.Parameters {
		if parameter.ValueFrom == nil || parameter.ValueFrom.Path == "" {
			continue
		}
		parameter.Value = wfv1.AnyStringPtr(p.Result)
		outputs.Parameters = append(outputs.Parameters, parameter)
	}
	if wantsResult {
		outputs.Result = &p.Result
	}
	if !outputs.HasOutputs() {
		return nil
	}
	return outputs
}

// CommandOf returns what the main container runs, arguments and script included, for plans that go by it.
func CommandOf(pod *corev1.Pod) string {
	var words []string
	for _, container := range pod.Spec.Containers {
		if container.Name == "main" {
			words = slices.Concat(words, container.Command, container.Args)
		}
		for _, variable := range container.Env {
			if container.Name == "main" && variable.Name == "ARGO_TEMPLATE" {
				words = append(words, sourceOf(variable.Value))
			}
		}
	}
	for _, container := range pod.Spec.InitContainers {
		for _, variable := range container.Env {
			if variable.Name == "ARGO_TEMPLATE" {
				words = append(words, sourceOf(variable.Value))
			}
		}
	}
	return strings.Join(words, " ")
}

func sourceOf(template string) string {
	var read wfv1.Template
	if json.Unmarshal([]byte(template), &read) != nil || read.Script == nil {
		return ""
	}
	return read.Script.Source
}
