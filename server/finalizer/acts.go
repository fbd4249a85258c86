package finalizer

import (
	"fmt"
	"strings"
)

// Act is one attempt to release or unhide a pod, for metrics.
type Act struct {
	Pod        PodID
	Reason     Reason
	Background bool
	Err        *Error // nil: it is done
}

// Forced reports whether the act gives up a result that may not be stored.
func (a Act) Forced() bool { return a.Reason == ReasonForced || a.Reason == ReasonMaxHold }

// acts tells operators what was done, at the object and in metrics.
type acts struct {
	events  Events
	observe func(Act)
}

func (a *acts) record(e Event) {
	if a.events != nil {
		a.events.Record(e)
	}
}

// done tells of an attempt, with an Event where it is one that operators would
// ask about.
func (a *acts) done(act Act) {
	if a.observe != nil {
		a.observe(act)
	}
	if act.Err != nil {
		a.tellBlocked(act.Pod, act.Err)
		return
	}
	e := Event{Pod: act.Pod, Warning: true, Action: "Release"}
	switch act.Reason {
	case ReasonForced:
		e.Reason, e.Note = "ForcedRelease", "released although its result may not be stored: a caller forced it"
	case ReasonMaxHold:
		e.Reason, e.Note = "ForcedRelease", "released although its result may not be stored: "+ReasonMaxHold.sentence()
	case ReasonNodeLost:
		e.Reason, e.Note = "NodeLost", "released: "+ReasonNodeLost.sentence()
	case ReasonHidden:
		e.Reason, e.Action, e.Note = "Hidden", "Unhide", "label "+LabelCompleted+" set back to false: the result is not stored yet, and the controller could not see the pod"
	default:
		return
	}
	a.record(e)
}

// blocked counts and tells of a DELETE that admission refused.
func (a *acts) blocked(pod PodID, err *Error) {
	if err == nil || err.Kind != KindBlocked {
		return
	}
	if a.observe != nil {
		a.observe(Act{Pod: pod, Err: err})
	}
	a.tellBlocked(pod, err)
}

func (a *acts) tellBlocked(pod PodID, err *Error) {
	if err.Kind != KindBlocked {
		return
	}
	note := err.Message
	if err.Field != "" {
		note += " (field " + err.Field + ")"
	}
	a.record(Event{Pod: pod, Warning: true, Reason: "BlockedByAdmission", Action: "Release",
		Note: note + "; find the webhook or policy and exempt updates of metadata"})
}

// bulk tells at the Workflow what a bulk call did to the pods it worked on.
func (a *acts) bulk(r BulkRequest, worked []*item) {
	if len(worked) == 0 {
		return
	}
	e := Event{Workflow: r.Workflow, WorkflowUID: worked[0].pod.Owner.UID, Reason: "PodsReleased", Action: "ReleasePods"}
	if r.Delete {
		e.Reason, e.Action = "PodsDeleted", "DeletePods"
	}
	var done, open, failed int
	for _, it := range worked {
		switch it.result.Outcome {
		case OutcomeDeleting, OutcomeHeldByForeign:
			open++
		case OutcomeFailed, OutcomeBlocked, OutcomeUnknown:
			failed++
		default:
			done++
		}
	}
	parts := []string{fmt.Sprintf("%d pods done", done)}
	if open > 0 {
		parts = append(parts, fmt.Sprintf("%d still terminating", open))
	}
	if failed > 0 {
		e.Warning = true
		parts = append(parts, fmt.Sprintf("%d failed", failed))
	}
	if r.Force {
		parts = append(parts, "forced")
	}
	e.Note = strings.Join(parts, ", ")
	a.record(e)
}
