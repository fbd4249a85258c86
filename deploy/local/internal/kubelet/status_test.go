package kubelet

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestStatusAfter(t *testing.T) {
	begun, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	ended := func(exitCode int32, reason string) *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{ExitCode: exitCode, Reason: reason, StartedAt: begun, FinishedAt: now, ContainerID: "local://uid-1/main"}
	}
	tests := map[string]struct {
		act        act
		wantPhase  corev1.PodPhase
		wantReason string
		wantState  corev1.ContainerState
		wantReady  corev1.ConditionStatus
	}{
		"a started pod has a running container":        {start, corev1.PodRunning, "", corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}, corev1.ConditionTrue},
		"a pod that succeeded has exit code 0":         {succeed, corev1.PodSucceeded, "", corev1.ContainerState{Terminated: ended(0, "Completed")}, corev1.ConditionFalse},
		"a pod that failed has exit code 1":            {fail, corev1.PodFailed, "", corev1.ContainerState{Terminated: ended(1, "Error")}, corev1.ConditionFalse},
		"a rejected pod says why":                      {reject, corev1.PodFailed, "InvalidRunAnnotation", corev1.ContainerState{Terminated: ended(1, "Error")}, corev1.ConditionFalse},
		"a terminated pod has the exit code of a kill": {terminate, corev1.PodFailed, "", corev1.ContainerState{Terminated: ended(143, "Error")}, corev1.ConditionFalse},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := newPod(corev1.PodRunning, annotated(RunAnnotation, "soon"))
			pod.Status.StartTime, pod.Status.PodIP = &begun, "10.1.2.3"
			got := statusAfter(pod, test.act, now)
			if got.Phase != test.wantPhase || got.Reason != test.wantReason {
				t.Errorf("phase, reason = %q, %q; want %q, %q", got.Phase, got.Reason, test.wantPhase, test.wantReason)
			}
			if diff := cmp.Diff(test.wantState, got.ContainerStatuses[0].State); diff != "" {
				t.Errorf("container state (-want +got):\n%s", diff)
			}
			if ready := got.Conditions[len(got.Conditions)-1]; ready.Type != corev1.PodReady || ready.Status != test.wantReady {
				t.Errorf("last condition = %s %s, want Ready %s", ready.Type, ready.Status, test.wantReady)
			}
			if !got.StartTime.Equal(&begun) || got.PodIP != "10.1.2.3" {
				t.Errorf("start time and address changed: %v, %s", got.StartTime, got.PodIP)
			}
		})
	}
}

func TestStatusPatchNamesTheUIDAndNoVersion(t *testing.T) {
	body, err := statusPatch(newPod(corev1.PodPending), start, time.Unix(2000, 0))
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Metadata map[string]any }
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"uid": "uid-1"}, got.Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
}

func TestReplaced(t *testing.T) {
	invalid := func(path ...string) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{field.Invalid(field.NewPath(path[0], path[1:]...), "x", "no")})
	}
	tests := map[string]struct {
		err  error
		want bool
	}{
		"a refusal of the UID is":              {invalid("metadata", "uid"), true},
		"a refusal of another field is not":    {invalid("spec", "nodeName"), false},
		"an error that is no API error is not": {errors.New("connection refused"), false},
		"no error is not":                      {nil, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := replaced(test.err); got != test.want {
				t.Errorf("replaced(%v) = %v, want %v", test.err, got, test.want)
			}
		})
	}
}
