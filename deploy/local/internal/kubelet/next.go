package kubelet

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The annotations by which a pod says how it wants to live.
const (
	// RunAnnotation is the time from Running to the end, as Go writes durations. "0s" ends the pod at once, without a time
	// in Running. Absent, the pod runs for ever. Manual leaves the pod's status to others. Anything else fails the pod
	// with reason InvalidRunAnnotation.
	RunAnnotation = "local.finalizerd.dev/run"
	// OutcomeAnnotation is the phase at that end: Succeeded, also when absent or misspelt, or Failed.
	OutcomeAnnotation = "local.finalizerd.dev/outcome"
	// TerminateAfterAnnotation is how long the containers take to end after a graceful deletion, as Go writes durations. It
	// is capped by the grace period; absent or unreadable, it is 200ms.
	TerminateAfterAnnotation = "local.finalizerd.dev/terminate-after"
	// Manual is the value of RunAnnotation for a pod whose status a test writes. Like a pod on a node that hangs, it is not
	// terminated by a deletion; once its phase is terminal the kubelet confirms the deletion.
	Manual = "manual"
)

const defaultTerminateAfter = 200 * time.Millisecond

// act is what the kubelet does to a pod.
type act int

const (
	wait      act = iota // nothing, or nothing yet
	start                // Pending to Running
	succeed              // to Succeeded
	fail                 // to Failed, by its own will
	reject               // to Failed: its annotation cannot be read
	terminate            // to Failed, because it is being deleted
	remove               // confirm the deletion: DELETE with grace 0
)

// seen is when the kubelet first saw a pod in a state. The pod's own timestamps are cut to seconds, too coarse for the
// durations that tests ask for. Zero times mean that it has not seen that yet, which next reads as "just now".
type seen struct{ running, deleting time.Time }

// next decides what to do to a pod of this node now. With wait it also says in how long to ask again; zero means only when
// the pod changes.
func next(pod *corev1.Pod, seen seen, now time.Time) (act, time.Duration) {
	terminal := isTerminal(pod)
	run, told := pod.Annotations[RunAnnotation]
	switch {
	case pod.DeletionTimestamp != nil && terminal && !confirmed(pod):
		return remove, 0
	case terminal, run == Manual:
		return wait, 0
	case pod.DeletionTimestamp != nil:
		return after(terminate, seen.deleting, terminateAfter(pod), now)
	}
	duration, err := runFor(pod)
	switch {
	case err != nil:
		return reject, 0
	case told && duration <= 0:
		return outcome(pod), 0
	case pod.Status.Phase != corev1.PodRunning:
		return start, 0
	case !told:
		return wait, 0
	default:
		return after(outcome(pod), seen.running, duration, now)
	}
}

// after is due when the duration since then has passed, and until then the rest of it.
func after(due act, then time.Time, duration time.Duration, now time.Time) (act, time.Duration) {
	if then.IsZero() {
		then = now
	}
	if rest := then.Add(duration).Sub(now); rest > 0 {
		return wait, rest
	}
	return due, 0
}

// confirmed is true when the API server waits for finalizers alone: the grace period has been cut to zero.
func confirmed(pod *corev1.Pod) bool {
	return pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds == 0
}

func isTerminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// runFor is the pod's RunAnnotation; zero and no error if it is absent.
func runFor(pod *corev1.Pod) (time.Duration, error) {
	text, told := pod.Annotations[RunAnnotation]
	if !told {
		return 0, nil
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("annotation %s: %w", RunAnnotation, err)
	}
	return duration, nil
}

func outcome(pod *corev1.Pod) act {
	if pod.Annotations[OutcomeAnnotation] == string(corev1.PodFailed) {
		return fail
	}
	return succeed
}

func terminateAfter(pod *corev1.Pod) time.Duration {
	duration := defaultTerminateAfter
	if told, err := time.ParseDuration(pod.Annotations[TerminateAfterAnnotation]); err == nil {
		duration = told
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		duration = min(duration, time.Duration(*grace)*time.Second)
	}
	return duration
}
