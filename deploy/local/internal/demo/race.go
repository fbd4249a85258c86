package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"

	"github.com/finalizerd/finalizerd/deploy/local/internal/audit"
	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

const (
	racing  = 200
	besides = 5
)

// writes are the writes of one call, as the API server saw them.
type writes struct {
	pods        sets.Set[string] // whose they are
	count       int
	first, last time.Time // the first request's arrival, the last one's answer
}

func (w *writes) add(request audit.Request) {
	if w.count == 0 || request.Received.Before(w.first) {
		w.first = request.Received
	}
	if request.Answered.After(w.last) {
		w.last = request.Answered
	}
	w.count++
}

// race lets two processes act on one workflow at once, each on half of the pods, so that each write tells whose it is, and
// acts on another workflow meanwhile.
func (s *story) race(ctx context.Context) error {
	s.say("\n4. Two processes on one workflow take turns")
	wf, pods, err := s.castCaptured(ctx, "race", racing)
	if err != nil {
		return err
	}
	other, otherPods, err := s.castCaptured(ctx, "other", besides)
	if err != nil {
		return err
	}
	calls := []BulkCall{
		{Target: s.target, Namespace: namespace, Workflow: wf.Name, Delete: true},
		{Target: s.target, Namespace: namespace, Workflow: wf.Name},
	}
	parties := []*writes{{pods: sets.New[string]()}, {pods: sets.New[string]()}, {pods: sets.New[string]()}}
	for i, pod := range pods {
		calls[i%2].NodeIDs = append(calls[i%2].NodeIDs, pod.Name)
		parties[i%2].pods.Insert(pod.Name)
	}
	for _, pod := range otherPods {
		parties[2].pods.Insert(pod.Name)
	}
	s.say("   Workflow race has %d held pods. One process deletes every other of them, a second one releases the rest, both at once,", racing)
	s.say("   and meanwhile the pods of workflow other are released.")
	begin, err := s.audit.End()
	if err != nil {
		return err
	}
	reports, err := s.runRace(ctx, calls, parties, other)
	if err != nil {
		return err
	}
	log, err := s.audit.Settled(ctx, begin)
	if err != nil {
		return err
	}
	attribute(log, parties)
	return s.judgeRace(reports, parties)
}

func (s *story) castCaptured(ctx context.Context, name string, n int) (scenario.Workflow, []scenario.Pod, error) {
	wf, pods, err := s.cast(ctx, name, scenario.Fails, n)
	if err != nil {
		return wf, nil, err
	}
	return wf, pods, s.controller.StoreNodes(ctx, wf, scenario.Nodes("Failed", pods...))
}

// runRace runs the calls at once, in two processes, and the call on the other workflow once the first write has been seen.
func (s *story) runRace(ctx context.Context, calls []BulkCall, parties []*writes, other scenario.Workflow) ([]CallReport, error) {
	begin, err := s.audit.End()
	if err != nil {
		return nil, err
	}
	callers := make([]*process, len(calls))
	for i, call := range calls {
		if callers[i], err = s.startCaller(ctx, call); err != nil {
			return nil, err
		}
		defer callers[i].kill()
	}
	for _, caller := range callers {
		if err := caller.letGo(); err != nil {
			return nil, err
		}
	}
	if err := s.awaitWrite(ctx, begin, parties[0].pods.Union(parties[1].pods)); err != nil {
		return nil, err
	}
	answer, err := s.service.ReleaseWorkflowPods(ctx, &finalizerv1.ReleaseWorkflowPodsRequest{Namespace: namespace, Workflow: other.Name, All: true})
	if err != nil {
		return nil, fmt.Errorf("release the pods of workflow %s: %w", other.Name, err)
	}
	if got := answer.GetSummary().GetReleased(); got != besides {
		return nil, fmt.Errorf("release the pods of workflow %s: %d of %d released: %s", other.Name, got, besides, answer)
	}
	reports := make([]CallReport, len(callers))
	for i, caller := range callers {
		if reports[i], err = caller.report(); err != nil {
			return nil, err
		}
	}
	return reports, nil
}

// awaitWrite returns once the audit log shows a write to one of the pods.
func (s *story) awaitWrite(ctx context.Context, begin int64, pods sets.Set[string]) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		log, err := s.audit.Since(begin)
		if err != nil {
			return err
		}
		for _, request := range log {
			if written(request) && pods.Has(request.Name) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollPeriod / 10):
		}
	}
	return errors.New("the two processes write nothing")
}

// written reports whether the request is a write to a pod of the story.
func written(request audit.Request) bool {
	return request.Namespace == namespace && request.Resource == "pods" && request.Subresource == "" &&
		(request.Verb == "patch" || request.Verb == "delete")
}

func attribute(log []audit.Request, parties []*writes) {
	for _, request := range log {
		for _, party := range parties {
			if written(request) && party.pods.Has(request.Name) {
				party.add(request)
			}
		}
	}
}

func (s *story) judgeRace(reports []CallReport, parties []*writes) error {
	first, second, other := parties[0], parties[1], parties[2]
	for i, name := range []string{"deleted", "released"} {
		if err := s.check(reports[i].Acted == racing/2 && reports[i].Results == racing/2,
			fmt.Sprintf("process %d has %s its %d pods", reports[i].PID, name, racing/2), fmt.Sprintf("%+v", reports[i])); err != nil {
			return err
		}
	}
	if err := s.check(reports[0].Began.Before(reports[1].Ended) && reports[1].Began.Before(reports[0].Ended) && reports[0].PID != reports[1].PID,
		"both calls were under way at the same time", fmt.Sprintf("%+v", reports)); err != nil {
		return err
	}
	if err := s.check(first.count == racing && second.count == racing/2,
		fmt.Sprintf("the API server's audit log has two writes for each deleted pod and one for each released pod, %d in all", racing+racing/2),
		fmt.Sprintf("%d for the deleted pods, %d for the released pods", first.count, second.count)); err != nil {
		return err
	}
	if second.first.Before(first.first) {
		first, second = second, first
	}
	gap := second.first.Sub(first.last)
	if err := s.check(gap > 0,
		fmt.Sprintf("they do not interleave: the last write of one call was answered %s before the first of the other came", gap.Round(10*time.Microsecond)),
		fmt.Sprintf("the first call wrote from %s to %s, the second from %s to %s", first.first, first.last, second.first, second.last)); err != nil {
		return err
	}
	return s.check(other.count == besides && other.first.After(first.first) && other.last.Before(second.last),
		fmt.Sprintf("the %d writes for workflow other went through meanwhile", besides),
		fmt.Sprintf("%d writes from %s to %s; the race from %s to %s", other.count, other.first, other.last, first.first, second.last))
}
