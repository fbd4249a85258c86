package server

import (
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// rights is about what an operator has to grant. Other faults pass by
// themselves, and a service that cannot write now still tells what it knows.
//
// Events are not among it: pods are released all the same, and readiness that
// fails for want of a courtesy would take the releases away with it.
func rights(faults []*finalizer.Error) error {
	return lacking(faults, func(resource string) bool { return resource != eventsResource })
}

const (
	eventsResource    = "events"
	workflowsResource = "workflows"
)

// events tells of a missing right to record Events.
func events(faults []*finalizer.Error) error {
	if err := lacking(faults, func(resource string) bool { return resource == eventsResource }); err != nil {
		return Notice("Events are lost: " + err.Error())
	}
	return nil
}

func lacking(faults []*finalizer.Error, counts func(resource string) bool) error {
	var sentences []string
	for _, f := range faults {
		if f.Kind == finalizer.KindForbidden && counts(f.Resource) && !slices.Contains(sentences, f.Message) {
			sentences = append(sentences, f.Message)
		}
	}
	if sentences == nil {
		return nil
	}
	return errors.New(strings.Join(sentences, "; ") + "; grant it in the role of the service's account")
}

// definition tells that workflows are not served at all. Then no Workflow is
// gone for certain, so what is held for one stays held, as CAPTURE_UNKNOWN; the
// rest works, and all does once the definition is there.
func definition(faults []*finalizer.Error) error {
	for _, f := range faults {
		if f.Resource == workflowsResource && (f.Verb == "list" || f.Verb == "watch") && apierrors.IsNotFound(f.Err) {
			return Notice(f.Message + " Until it is, pods whose Workflow would have to be read are kept.")
		}
	}
	return nil
}
