package kubelet

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Exit codes of containers that end by themselves badly, and of those that a deletion ends (128 + SIGTERM).
const (
	exitError      = 1
	exitTerminated = 143
)

// statusPatch is the strategic merge patch of pods/status that carries out an act. It names the pod's UID, so that the API
// server refuses it for a successor of the same name, and no resourceVersion, so that nobody else's write can refuse it.
func statusPatch(pod *corev1.Pod, act act, now time.Time) ([]byte, error) {
	patch := struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Status corev1.PodStatus `json:"status"`
	}{Status: statusAfter(pod, act, metav1.NewTime(now))}
	patch.Metadata.UID = pod.UID
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("patch of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return body, nil
}

// statusAfter is the pod's status once the act is done. It keeps the times and addresses that the pod has already.
func statusAfter(pod *corev1.Pod, act act, now metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{StartTime: pod.Status.StartTime, PodIP: pod.Status.PodIP, HostIP: "127.0.0.1"}
	if status.StartTime == nil {
		status.StartTime = &now
	}
	if status.PodIP == "" {
		status.PodIP = addressOf(pod.UID)
	}
	status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	status.HostIPs = []corev1.HostIP{{IP: status.HostIP}}

	var exitCode int32
	containerReason := "Completed"
	switch act {
	case start:
		status.Phase = corev1.PodRunning
	case succeed:
		status.Phase = corev1.PodSucceeded
	case fail:
		status.Phase, exitCode, containerReason = corev1.PodFailed, exitError, "Error"
	case reject:
		status.Phase, exitCode, containerReason = corev1.PodFailed, exitError, "Error"
		_, err := runFor(pod)
		status.Reason, status.Message = "InvalidRunAnnotation", fmt.Sprint(err)
	case terminate:
		status.Phase, exitCode, containerReason = corev1.PodFailed, exitTerminated, "Error"
	}
	running := act == start
	for _, container := range pod.Spec.InitContainers {
		sidecar := container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if sidecar && running {
			status.InitContainerStatuses = append(status.InitContainerStatuses, runningStatus(pod, container, now))
		} else {
			status.InitContainerStatuses = append(status.InitContainerStatuses, endedStatus(pod, container, now, 0, "Completed"))
		}
	}
	for _, container := range pod.Spec.Containers {
		if running {
			status.ContainerStatuses = append(status.ContainerStatuses, runningStatus(pod, container, now))
		} else {
			status.ContainerStatuses = append(status.ContainerStatuses, endedStatus(pod, container, now, exitCode, containerReason))
		}
	}
	status.Conditions = conditions(running, status.Phase, now)
	return status
}

func runningStatus(pod *corev1.Pod, container corev1.Container, now metav1.Time) corev1.ContainerStatus {
	started := true
	return corev1.ContainerStatus{
		Name: container.Name, Image: container.Image, ImageID: "local://" + container.Image, ContainerID: containerID(pod, container),
		Ready: true, Started: &started,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}
}

func endedStatus(pod *corev1.Pod, container corev1.Container, now metav1.Time, exitCode int32, reason string) corev1.ContainerStatus {
	started := false
	startedAt := now
	if pod.Status.StartTime != nil {
		startedAt = *pod.Status.StartTime
	}
	return corev1.ContainerStatus{
		Name: container.Name, Image: container.Image, ImageID: "local://" + container.Image, ContainerID: containerID(pod, container),
		Started: &started,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: exitCode, Reason: reason, StartedAt: startedAt, FinishedAt: now, ContainerID: containerID(pod, container),
		}},
	}
}

func conditions(ready bool, phase corev1.PodPhase, now metav1.Time) []corev1.PodCondition {
	readiness, reason := corev1.ConditionTrue, ""
	if !ready {
		readiness, reason = corev1.ConditionFalse, "PodCompleted"
		if phase == corev1.PodFailed {
			reason = "PodFailed"
		}
	}
	return []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: readiness, Reason: reason, LastTransitionTime: now},
		{Type: corev1.PodReady, Status: readiness, Reason: reason, LastTransitionTime: now},
	}
}

func containerID(pod *corev1.Pod, container corev1.Container) string {
	return "local://" + string(pod.UID) + "/" + container.Name
}

// addressOf makes a plausible address up. Two pods may share one.
func addressOf(uid types.UID) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid))
	sum := hash.Sum32()
	return fmt.Sprintf("10.%d.%d.%d", 128+sum>>16&0x7f, sum>>8&0xff, sum&0xff)
}
