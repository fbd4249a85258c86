package kubelet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type podOption func(*corev1.Pod)

func newPod(phase corev1.PodPhase, options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-1", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: NodeName, Containers: []corev1.Container{{Name: "main", Image: "i"}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

func annotated(key, value string) podOption {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

func deleted(grace int64) podOption {
	return func(pod *corev1.Pod) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(1000, 0)}, &grace
	}
}

func held(pod *corev1.Pod) { pod.Finalizers = []string{"workflows.argoproj.io/status"} }

func TestNext(t *testing.T) {
	now := time.Unix(2000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	tests := map[string]struct {
		pod     *corev1.Pod
		seen    seen
		want    act
		wantFor time.Duration
	}{
		"a pending pod starts":                                  {pod: newPod(corev1.PodPending), want: start},
		"a pod without a phase starts":                          {pod: newPod(""), want: start},
		"a pending pod with a duration starts":                  {pod: newPod(corev1.PodPending, annotated(RunAnnotation, "1m")), want: start},
		"a running pod without a duration runs for ever":        {pod: newPod(corev1.PodRunning), seen: seen{running: ago(time.Hour)}, want: wait},
		"a running pod waits for the rest of its duration":      {pod: newPod(corev1.PodRunning, annotated(RunAnnotation, "1m")), seen: seen{running: ago(20 * time.Second)}, want: wait, wantFor: 40 * time.Second},
		"a running pod just seen waits for its whole duration":  {pod: newPod(corev1.PodRunning, annotated(RunAnnotation, "1m")), want: wait, wantFor: time.Minute},
		"a running pod succeeds when its duration is over":      {pod: newPod(corev1.PodRunning, annotated(RunAnnotation, "1m")), seen: seen{running: ago(time.Minute)}, want: succeed},
		"a running pod fails when it wants to":                  {pod: newPod(corev1.PodRunning, annotated(RunAnnotation, "1m"), annotated(OutcomeAnnotation, "Failed")), seen: seen{running: ago(time.Minute)}, want: fail},
		"a misspelt outcome is success":                         {pod: newPod(corev1.PodRunning, annotated(RunAnnotation, "1m"), annotated(OutcomeAnnotation, "failed")), seen: seen{running: ago(time.Minute)}, want: succeed},
		"a duration of zero ends a pending pod at once":         {pod: newPod(corev1.PodPending, annotated(RunAnnotation, "0s")), want: succeed},
		"a duration of zero fails a pending pod that wants to":  {pod: newPod(corev1.PodPending, annotated(RunAnnotation, "0s"), annotated(OutcomeAnnotation, "Failed")), want: fail},
		"a negative duration is zero":                           {pod: newPod(corev1.PodPending, annotated(RunAnnotation, "-1s")), want: succeed},
		"an unreadable duration rejects the pod":                {pod: newPod(corev1.PodPending, annotated(RunAnnotation, "soon")), want: reject},
		"an empty duration rejects the pod":                     {pod: newPod(corev1.PodPending, annotated(RunAnnotation, "")), want: reject},
		"a terminal pod is left alone":                          {pod: newPod(corev1.PodSucceeded), want: wait},
		"a manual pod is left alone":                            {pod: newPod(corev1.PodPending, annotated(RunAnnotation, Manual)), want: wait},
		"a manual pod that is deleted is left alone":            {pod: newPod(corev1.PodRunning, annotated(RunAnnotation, Manual), deleted(30)), seen: seen{deleting: ago(time.Hour)}, want: wait},
		"a manual pod that is deleted and terminal goes":        {pod: newPod(corev1.PodFailed, annotated(RunAnnotation, Manual), deleted(30)), want: remove},
		"a deleted running pod just seen takes its time":        {pod: newPod(corev1.PodRunning, deleted(30)), want: wait, wantFor: defaultTerminateAfter},
		"a deleted running pod takes the rest of its time":      {pod: newPod(corev1.PodRunning, deleted(30), annotated(TerminateAfterAnnotation, "3s")), seen: seen{deleting: ago(time.Second)}, want: wait, wantFor: 2 * time.Second},
		"a deleted running pod terminates when that is over":    {pod: newPod(corev1.PodRunning, deleted(30)), seen: seen{deleting: ago(time.Second)}, want: terminate},
		"the time to terminate is capped by the grace period":   {pod: newPod(corev1.PodRunning, deleted(2), annotated(TerminateAfterAnnotation, "1h")), seen: seen{deleting: ago(time.Second)}, want: wait, wantFor: time.Second},
		"an unreadable time to terminate is the default":        {pod: newPod(corev1.PodRunning, deleted(30), annotated(TerminateAfterAnnotation, "x")), want: wait, wantFor: defaultTerminateAfter},
		"deletion wins over the end of the duration":            {pod: newPod(corev1.PodRunning, deleted(30), annotated(RunAnnotation, "1s")), seen: seen{running: ago(time.Hour), deleting: ago(time.Hour)}, want: terminate},
		"deletion wins over an unreadable duration":             {pod: newPod(corev1.PodPending, deleted(30), annotated(RunAnnotation, "soon")), seen: seen{deleting: ago(time.Hour)}, want: terminate},
		"a deleted pending pod never starts":                    {pod: newPod(corev1.PodPending, deleted(30)), seen: seen{deleting: ago(time.Hour)}, want: terminate},
		"a force-deleted running pod that is held terminates":   {pod: newPod(corev1.PodRunning, deleted(0), held), want: terminate},
		"a deleted terminal pod goes":                           {pod: newPod(corev1.PodFailed, deleted(30)), want: remove},
		"a deleted terminal pod goes, held or not":              {pod: newPod(corev1.PodSucceeded, deleted(30), held), want: remove},
		"a confirmed deletion that is held is not asked again":  {pod: newPod(corev1.PodFailed, deleted(0), held), want: wait},
		"a deleted terminal pod goes whatever its run says now": {pod: newPod(corev1.PodFailed, deleted(30), annotated(RunAnnotation, "soon")), want: remove},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, gotFor := next(test.pod, test.seen, now)
			if got != test.want || gotFor != test.wantFor {
				t.Errorf("next() = %v, %v; want %v, %v", got, gotFor, test.want, test.wantFor)
			}
		})
	}
}
