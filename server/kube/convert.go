package kube

import (
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// podOf turns object metadata into a Pod without Status. Strings that thousands
// of pods share are interned, since the store keeps them for long.
func podOf(m *metav1.ObjectMeta) finalizer.Pod {
	p := finalizer.Pod{
		PodID:           finalizer.PodID{Namespace: intern(m.Namespace), Name: m.Name, UID: m.UID},
		ResourceVersion: m.ResourceVersion,
		NodeID:          m.Annotations[finalizer.AnnotationNode],
		GCStrategy:      gcStrategy(m.Annotations[finalizer.AnnotationPodGC]),
		InstanceID:      intern(m.Labels[finalizer.LabelInstanceID]),
		Completed:       m.Labels[finalizer.LabelCompleted] == "true",
		CreatedAt:       m.CreationTimestamp.Time,
	}
	if len(m.Finalizers) > 0 {
		p.Finalizers = make([]string, len(m.Finalizers))
		for i, f := range m.Finalizers {
			p.Finalizers[i] = intern(f)
		}
	}
	if ref := metav1.GetControllerOfNoCopy(m); ref != nil {
		// A malformed apiVersion leaves the group empty: not a Workflow.
		gv, _ := schema.ParseGroupVersion(ref.APIVersion)
		p.Owner = finalizer.Owner{Group: intern(gv.Group), Kind: intern(ref.Kind), Name: intern(ref.Name), UID: types.UID(intern(string(ref.UID)))}
	}
	if m.DeletionTimestamp != nil {
		p.DeletedAt = m.DeletionTimestamp.Time
		if m.DeletionGracePeriodSeconds != nil {
			p.GraceSeconds = *m.DeletionGracePeriodSeconds
		}
	}
	return p
}

// gcStrategy reads "OnPodCompletion/48h0m0s", of which the delay may be missing.
func gcStrategy(annotation string) string {
	strategy, _, _ := strings.Cut(annotation, "/")
	return intern(strategy)
}

// livePodOf turns a pod that was read live into a Pod with Status.
func livePodOf(pod *corev1.Pod) finalizer.Pod {
	p := podOf(&pod.ObjectMeta)
	p.Status = &finalizer.PodStatus{
		Phase:    string(pod.Status.Phase),
		Started:  started(&pod.Status),
		NodeName: pod.Spec.NodeName,
	}
	return p
}

func started(s *corev1.PodStatus) bool {
	ran := func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil ||
			c.LastTerminationState.Running != nil || c.LastTerminationState.Terminated != nil ||
			c.RestartCount > 0 || (c.Started != nil && *c.Started)
	}
	return slices.ContainsFunc(s.InitContainerStatuses, ran) ||
		slices.ContainsFunc(s.ContainerStatuses, ran) ||
		slices.ContainsFunc(s.EphemeralContainerStatuses, ran)
}

// slim drops, in place, what podOf and the metadata store never look at. The
// reflector holds a whole first list before it hands it over.
func slim(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	m.ManagedFields = nil
	m.Annotations = keep(m.Annotations, finalizer.AnnotationNode, finalizer.AnnotationPodGC)
	m.Labels = keep(m.Labels, finalizer.LabelWorkflow, finalizer.LabelCompleted, finalizer.LabelInstanceID)
	m.OwnerReferences = slices.DeleteFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Controller == nil || !*r.Controller
	})
	m.GenerateName = ""
	return m, nil
}

func keep(all map[string]string, keys ...string) map[string]string {
	var kept map[string]string
	for _, k := range keys {
		if v, ok := all[k]; ok {
			if kept == nil {
				kept = make(map[string]string, len(keys))
			}
			kept[k] = v
		}
	}
	return kept
}

func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}
