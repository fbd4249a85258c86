package argo

import (
	"fmt"
	"slices"
	"strings"
	"time"

	workflowpkg "github.com/argoproj/argo-workflows/v4/pkg/apiclient/workflow"
	wfv1 "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
)

// serviceUser writes for finalizerd.
const serviceUser = "system:serviceaccount:finalizerd:finalizerd"

// writesDoNotInterleave lets controller and server work on one workflow at once: the controller cleans up after the first attempt
// while the server deletes its pods. The audit log must show all releases and deletions in the name of finalizerd, and none of its
// writes during a deletion of another pod of the workflow.
func writesDoNotInterleave(s *scene) {
	defer s.clear()
	s.submit(shape{name: "both", pods: 100, pod: map[string]string{failAnnotation: "1"}})
	s.must("both fails", 2*time.Minute, s.inPhase("both", wfv1.WorkflowFailed))
	if _, err := s.server.RetryWorkflow(s.ctx, &workflowpkg.WorkflowRetryRequest{Namespace: s.ns, Name: "both"}); err != nil {
		s.Fatal(err)
	}
	s.must("both succeeds", 3*time.Minute, s.inPhase("both", wfv1.WorkflowSucceeded))
	s.must("no pod is held", time.Minute, s.noneHeld)
	writes, err := s.podWrites(s.ns)
	if err != nil {
		s.Fatal(err)
	}
	var ours []write
	created := map[string][]time.Time{}
	past := map[string]int{}
	for _, w := range writes {
		switch {
		case w.user == serviceUser:
			ours = append(ours, w)
		case w.verb == "create" && w.subresource == "":
			created[w.pod] = append(created[w.pod], w.answered)
		case w.subresource != "", strings.HasPrefix(w.agent, "argo-kubelet"), strings.HasPrefix(w.agent, "argo-stories"):
		default:
			past[w.verb+" by "+w.user]++
		}
	}
	if len(past) > 0 {
		s.Errorf("writes on pods that went past finalizerd: %v", past)
	}
	deletions, releases := deletionsOf(ours, created)
	if deletions == nil || releases == 0 {
		s.Fatalf("%d deletions and %d releases by finalizerd: nothing to compare", len(deletions), releases)
	}
	for _, d := range deletions {
		for _, w := range ours {
			if w.pod != d.pod && w.overlaps(d) {
				s.Errorf("%s of %s at %s fell into the deletion of %s, %s to %s", w.verb, w.pod, stamp(w.received), d.pod, stamp(d.received), stamp(d.answered))
			}
		}
	}
	s.Logf("%d writes by finalizerd: %d deletions, %d releases without", len(ours), len(deletions), releases)
}

func stamp(t time.Time) string { return fmt.Sprint(t.Format("05.000000")) }

// deletionsOf joins each DELETE with the release of the same pod that follows it, if there is one before the name has a successor, and
// counts the releases that are left. A pod that was released before needs none.
func deletionsOf(ours []write, created map[string][]time.Time) (deletions []write, releases int) {
	joined := map[int]bool{}
	for i, w := range ours {
		if w.verb != "delete" {
			continue
		}
		for j := i + 1; j < len(ours); j++ {
			if ours[j].pod == w.pod && ours[j].verb == "patch" {
				if slices.ContainsFunc(created[w.pod], func(at time.Time) bool { return at.After(w.received) && at.Before(ours[j].received) }) {
					break
				}
				w.answered = ours[j].answered
				joined[j] = true
				break
			}
		}
		deletions = append(deletions, w)
	}
	for i, w := range ours {
		if w.verb == "patch" && !joined[i] {
			releases++
		}
	}
	return deletions, releases
}
