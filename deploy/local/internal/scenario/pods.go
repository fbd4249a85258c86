package scenario

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/finalizerd/finalizerd/deploy/local/internal/kubelet"
)

// Life is how a pod lives.
type Life string

// Succeeds and Fails are for pods of the pretended kubelet, which ends them at once. A Waits pod is never scheduled and
// stays Pending, so that nothing but its creator and its deleter costs the API server anything. An Ended pod has succeeded
// on the pretended kubelet's node by the time that CreatePods returns; the node has to be there, its kubelet does not.
const (
	Succeeds Life = "Succeeded"
	Fails    Life = "Failed"
	Waits    Life = "Pending"
	Ended    Life = "Ended"
)

// CreatePods makes one pod a name, held by the finalizer, several at a time. The answer is in the order of the names. On
// error some may have been made.
func (c *Cluster) CreatePods(ctx context.Context, wf Workflow, life Life, names ...string) ([]Pod, error) {
	pods := make([]Pod, len(names))
	err := each(ctx, len(names), func(ctx context.Context, i int) error {
		created, err := c.core.CoreV1().Pods(wf.Namespace).Create(ctx, podOf(wf, life, names[i]), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create pod %s/%s: %w", wf.Namespace, names[i], err)
		}
		pods[i] = Pod{Name: created.Name, UID: created.UID, Created: created.CreationTimestamp.Time}
		if life == Ended {
			return c.end(ctx, created)
		}
		return nil
	})
	return pods, err
}

// end writes what a kubelet writes when a pod has succeeded.
func (c *Cluster) end(ctx context.Context, pod *corev1.Pod) error {
	now := metav1.Now()
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: now, FinishedAt: now, Reason: "Completed"}},
	}}
	if _, err := c.core.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("end pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func podOf(wf Workflow, life Life, name string) *corev1.Pod {
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: wf.Namespace, Finalizers: []string{Finalizer},
			Labels:      map[string]string{LabelWorkflow: wf.Name, LabelCompleted: "false"},
			Annotations: map[string]string{AnnotationNode: name, AnnotationName: name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Name: wf.Name, UID: wf.UID,
				Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "argoproj/argosay:v2"}},
		},
	}
	switch life {
	case Waits:
	case Ended:
		pod.Spec.NodeName = kubelet.NodeName
	default:
		pod.Spec.NodeName = kubelet.NodeName
		pod.Annotations[kubelet.RunAnnotation] = "0s"
		pod.Annotations[kubelet.OutcomeAnnotation] = string(life)
	}
	return pod
}

// GetPod returns the pod of that name.
func (c *Cluster) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return c.core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// DeletePods deletes as kubectl and Argo Server do: by name, without precondition, with the pod's own grace period.
func (c *Cluster) DeletePods(ctx context.Context, wf Workflow, pods ...Pod) error {
	return each(ctx, len(pods), func(ctx context.Context, i int) error {
		if err := c.core.CoreV1().Pods(wf.Namespace).Delete(ctx, pods[i].Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete pod %s/%s: %w", wf.Namespace, pods[i].Name, err)
		}
		return nil
	})
}

// RemovePods deletes pods that nothing holds at once. Those that are gone are left out.
func (c *Cluster) RemovePods(ctx context.Context, wf Workflow, pods ...Pod) error {
	return each(ctx, len(pods), func(ctx context.Context, i int) error {
		err := c.core.CoreV1().Pods(wf.Namespace).Delete(ctx, pods[i].Name, *metav1.NewDeleteOptions(0))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s/%s: %w", wf.Namespace, pods[i].Name, err)
		}
		return nil
	})
}

// WaitEnded returns when every pod of the workflow has succeeded or failed. It fails after a minute.
func (c *Cluster) WaitEnded(ctx context.Context, wf Workflow) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		list, err := c.core.CoreV1().Pods(wf.Namespace).List(ctx, metav1.ListOptions{LabelSelector: LabelWorkflow + "=" + wf.Name})
		if err != nil {
			return fmt.Errorf("list the pods of workflow %s/%s: %w", wf.Namespace, wf.Name, err)
		}
		running := 0
		for i := range list.Items {
			if phase := list.Items[i].Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
				running++
			}
		}
		if running == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pods of workflow %s/%s do not end: %w", running, wf.Namespace, wf.Name, ctx.Err())
		case <-ticker.C:
		}
	}
}

// Names returns prefix-1 to prefix-n.
func Names(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i+1)
	}
	return names
}

// Nodes returns a node in the phase for each pod.
func Nodes(phase string, pods ...Pod) []Node {
	nodes := make([]Node, len(pods))
	for i, pod := range pods {
		nodes[i] = Node{Pod: pod, Phase: phase}
	}
	return nodes
}
