package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	wfv1 "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	sigterm int32 = 15
	// killed is added to a signal's number to make an exit code.
	killed = 128
)

// live moves one pod object through its life. It returns early when ctx ends, which is when the object is gone.
func (k *Kubelet) live(ctx context.Context, pod *corev1.Pod, known *life, plan Plan) {
	if terminal(pod) {
		return
	}
	if pod.Spec.NodeName == "" {
		if plan.Unbound || pod.DeletionTimestamp != nil {
			return // its deletion needs no kubelet
		}
		if !k.bind(ctx, pod) {
			return
		}
	}
	exit := plan.ExitCode
	running := metav1.Now()
	select {
	case number := <-known.signals: // deleted before it ran
		exit = killed + number
	default:
		k.patchStatus(ctx, pod, runningStatus(pod, running))
		var over <-chan time.Time
		if !plan.Forever {
			timer := time.NewTimer(plan.Run)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-over:
		case number := <-known.signals:
			exit = killed + number
		case <-ctx.Done():
			return
		}
	}
	if !k.report(ctx, pod, plan) {
		return
	}
	k.patchStatus(ctx, pod, endedStatus(pod, running, metav1.Now(), exit))
	k.confirmDeletion(ctx, pod)
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (k *Kubelet) bind(ctx context.Context, pod *corev1.Pod) bool {
	return k.persist(ctx, func() error {
		return k.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: NodeName},
		}, metav1.CreateOptions{})
	})
}

// report does what Argo's executor does before the pod ends. A result that is there already, of an earlier attempt, is replaced.
func (k *Kubelet) report(ctx context.Context, pod *corev1.Pod, plan Plan) bool {
	node := pod.Annotations["workflows.argoproj.io/node-id"]
	if node == "" {
		return true // an agent pod
	}
	result := &wfv1.WorkflowTaskResult{
		ObjectMeta: metav1.ObjectMeta{
			Name: node, Namespace: pod.Namespace,
			Labels: map[string]string{
				workflowLabel: pod.Labels[workflowLabel],
				"workflows.argoproj.io/report-outputs-completed": "true",
			},
		},
		NodeResult: wfv1.NodeResult{Outputs: plan.outputs(pod)},
	}
	for _, owner := range pod.OwnerReferences {
		owner.BlockOwnerDeletion, owner.Controller = nil, nil
		result.OwnerReferences = append(result.OwnerReferences, owner)
	}
	client := k.workflows.ArgoprojV1alpha1().WorkflowTaskResults(pod.Namespace)
	k.persist(ctx, func() error {
		_, err := client.Create(ctx, result, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			var body []byte
			if body, err = json.Marshal(result); err == nil {
				_, err = client.Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{})
			}
		}
		return err
	})
	return ctx.Err() == nil
}

// confirmDeletion removes a pod that has ended while its deletion waited for that. A deletion that comes after the end needs no
// kubelet: the API server grants it no grace.
func (k *Kubelet) confirmDeletion(ctx context.Context, pod *corev1.Pod) {
	var current *corev1.Pod
	if !k.persist(ctx, func() (err error) {
		current, err = k.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err
	}) || current.UID != pod.UID || current.DeletionTimestamp == nil {
		return
	}
	k.persist(ctx, func() error {
		options := metav1.NewDeleteOptions(0)
		options.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
		return k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *options)
	})
}

func (k *Kubelet) patchStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) bool {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return false
	}
	return k.persist(ctx, func() error {
		_, err := k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	})
}

func runningStatus(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
		Conditions: conditions(corev1.ConditionTrue, "", now),
	}
	started := true
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: &started, ContainerID: containerID(pod, container.Name),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

func endedStatus(pod *corev1.Pod, started, now metav1.Time, exit int32) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodSucceeded, StartTime: &started, Conditions: conditions(corev1.ConditionFalse, "PodCompleted", now)}
	if exit != 0 {
		status.Phase = corev1.PodFailed
	}
	for _, container := range pod.Spec.Containers {
		ended := &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: now, ContainerID: containerID(pod, container.Name)}
		if exit != 0 && container.Name != "wait" { // Argo's executor outlives the signal, and ends well
			ended.ExitCode, ended.Reason = exit, "Error"
		}
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, ContainerID: ended.ContainerID, State: corev1.ContainerState{Terminated: ended},
		})
	}
	return status
}

func containerID(pod *corev1.Pod, name string) string {
	return fmt.Sprintf("pretended://%s/%s", pod.UID, name)
}

// conditions matter: Argo counts its delays from the last transition.
func conditions(ready corev1.ConditionStatus, reason string, now metav1.Time) []corev1.PodCondition {
	return []corev1.PodCondition{
		{Type: corev1.PodReady, Status: ready, Reason: reason, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: ready, Reason: reason, LastTransitionTime: now},
	}
}
