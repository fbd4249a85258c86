package argo

import (
	"fmt"
	"time"

	workflowpkg "github.com/argoproj/argo-workflows/v4/pkg/apiclient/workflow"
	wfv1 "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

type intOrString = intstr.IntOrString

const mergePatch = types.MergePatchType

// story is told at each level. It fails for what Argo does alone at every level, and for what finalizerd promises where that is.
type story struct {
	name   string
	atMost time.Duration
	tell   func(*scene)
}

func stories() []story {
	return []story{
		{"story1_B17_a_workflow_of_600_pods_succeeds", 6 * time.Minute, releaseAfterSuccess},
		{"story2_B43_B44_B46_retry_while_the_failed_pods_are_held", 8 * time.Minute, retryAtOnce},
		{"story3_B32_controller_killed_and_workflow_deleted", 4 * time.Minute, deleteWithoutController},
		{"story4_B9_feature_switched_off_with_pods_held", 5 * time.Minute, featureOff},
		{"story5_B18_pending_pod_deleted_by_hand", 5 * time.Minute, deletePending},
		{"story5_B15_uncaptured_pod_deleted_by_hand", 5 * time.Minute, deleteUncaptured},
		{"story5_B15_deleted_before_its_node_was_stored", 6 * time.Minute, deleteUnstored},
		{"story6_B26_podGC_OnPodCompletion_with_1000_pods", 10 * time.Minute, podGC},
		{"story7_terminate", 4 * time.Minute, terminate},
		{"story7_stop", 4 * time.Minute, stop},
		{"story7_B32_delete_while_running", 4 * time.Minute, deleteRunning},
		{"story7_B33_again_under_the_same_name", 4 * time.Minute, sameNameAgain},
	}
}

// releaseAfterSuccess: the time from Succeeded until no pod holds FIN.
func releaseAfterSuccess(s *scene) {
	defer s.clear()
	s.submit(shape{name: "wide", pods: 600})
	succeeded := s.must("wide succeeds", 4*time.Minute, s.inPhase("wide", wfv1.WorkflowSucceeded))
	s.measure("from Succeeded until no pod is held", succeeded, 2*time.Minute, s.noneHeld, nil)
}

// retryAtOnce: 200 pods fail, Argo Server retries within two seconds of Failed, and the second attempt of each succeeds.
func retryAtOnce(s *scene) {
	defer s.clear()
	s.submit(shape{name: "retried", pods: 200, pod: map[string]string{failAnnotation: "1"}})
	failed := s.must("retried fails", 3*time.Minute, s.inPhase("retried", wfv1.WorkflowFailed))
	held := s.held()
	if _, err := s.server.RetryWorkflow(s.ctx, &workflowpkg.WorkflowRetryRequest{Namespace: s.ns, Name: "retried"}); err != nil {
		s.Fatalf("retry with %d pods held: %v", held, err)
	}
	s.Logf("%d of 200 pods held at the retry; Argo Server answered after %s", held, time.Since(failed))
	bound := 3 * time.Minute
	if s.level == stock {
		bound = 100 * time.Second
	}
	done := s.inPhase("retried", wfv1.WorkflowSucceeded)
	went := s.measure("from the retry until Succeeded", failed, bound, done, func() string {
		if done() {
			return ""
		}
		return "pod nodes: " + nodesOf(s.workflow("retried"))
	})
	if went {
		s.measure("and until no pod is held", failed, bound+time.Minute, s.noneHeld, nil)
	}
	if n := s.unhidden("retried"); s.level == sidecar && n > 0 {
		s.Errorf("%d times clean-ups for old pods reached new ones: by way of the sidecar they must be refused", n)
	} else if s.level > stock {
		s.Logf("hidden pods were found %d times", n)
	}
}

// deleteWithoutController: pods that have ended, that run and that wait, when the controller is killed and the workflow deleted.
func deleteWithoutController(s *scene) {
	defer s.clear()
	s.submit(shape{name: "ended", pods: 30})
	s.submit(shape{name: "runs", pods: 20, pod: map[string]string{runAnnotation: "forever"}})
	s.submit(shape{name: "waits", pods: 10, pod: map[string]string{unboundAnnotation: "9"}})
	s.must("the pods are there", time.Minute, func() bool {
		return len(s.podsOf(s.ns)) == 60 && s.phase("ended") == string(wfv1.WorkflowSucceeded)
	})
	s.controller.kill()
	begin := time.Now()
	for _, name := range []string{"ended", "runs", "waits"} {
		if _, err := s.server.DeleteWorkflow(s.ctx, &workflowpkg.WorkflowDeleteRequest{Namespace: s.ns, Name: name}); err != nil {
			s.Fatal(err)
		}
	}
	s.measure("from the deletion until the pods are gone", begin, time.Minute, s.noPods, s.leftNote)
}

func (s *scene) heldNote() string {
	if n := s.held(); n > 0 {
		return fmt.Sprintf("%d pods held", n)
	}
	return ""
}

func (s *scene) leftNote() string {
	if n := len(s.podsOf(s.ns)); n > 0 {
		return fmt.Sprintf("%d pods left, %d held", n, s.held())
	}
	return ""
}

// featureOff: the controller comes back without the feature while pods of a finished workflow are held.
func featureOff(s *scene) {
	defer s.clear()
	s.submit(shape{name: "before", pods: 200})
	s.must("before succeeds", 2*time.Minute, s.inPhase("before", wfv1.WorkflowSucceeded))
	s.controller.kill()
	held := s.held()
	begin := time.Now()
	s.startController(s.ctx, s.T, controllerOptions{featureOff: true})
	s.Logf("%d pods held when the controller stopped", held)
	s.measure("until no pod is held", begin, 90*time.Second, s.noneHeld, s.heldNote)
}

// deletePending: the first attempt of one of the pods never starts, and is deleted by hand.
func deletePending(s *scene) {
	defer s.clear()
	s.submit(shape{name: "pending", pods: 3, pod: map[string]string{unboundAnnotation: "1"}})
	s.must("the pods are pending", time.Minute, func() bool { return len(s.podsOf(s.ns)) == 3 })
	begin := time.Now()
	for _, pod := range s.podsOf(s.ns) {
		if err := s.admin.CoreV1().Pods(s.ns).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			s.Fatal(err)
		}
	}
	s.measure("from the deletion until Succeeded", begin, 150*time.Second, s.inPhase("pending", wfv1.WorkflowSucceeded), nil)
}

// deleteUncaptured: pods end and are deleted by hand while the controller is stopped; their results must survive.
func deleteUncaptured(s *scene) {
	defer s.clear()
	s.submit(shape{name: "uncaptured", pods: 5, pod: map[string]string{runAnnotation: "4s"}})
	s.must("the pods are there, and their nodes are stored", time.Minute, func() bool {
		return len(s.podsOf(s.ns)) == 5 && podNodes(s.workflow("uncaptured")) == 5
	})
	s.controller.kill()
	// Longer than the reconciler's graces: what is not captured stays.
	s.keepsDeleted("uncaptured", 10*time.Second)
}

// deleteUnstored: the controller dies between the creation of the pods and the storing of their nodes. Back again, it stores nodes that
// are younger than their pods, which are no new attempt's: a rerun would lose the results.
func deleteUnstored(s *scene) {
	defer s.clear()
	admit := s.refuseStoring()
	s.submit(shape{name: "unstored", pods: 5, pod: map[string]string{runAnnotation: "4s"}})
	s.must("the pods are there", time.Minute, func() bool { return len(s.podsOf(s.ns)) == 5 })
	s.controller.kill()
	admit()
	if n := podNodes(s.workflow("unstored")); n > 0 {
		s.Fatalf("%d nodes are stored already", n)
	}
	// Longer than the reconciler's minimum age.
	s.keepsDeleted("unstored", 40*time.Second)
}

// keepsDeleted deletes the five pods of the workflow by hand once they have ended, sees that they stay for that long, and starts the
// controller, which must get their results: a pod that ran again would not be terminating, and stay.
func (s *scene) keepsDeleted(workflow string, stay time.Duration) {
	s.Helper()
	s.must("the pods have ended", time.Minute, func() bool {
		list, err := s.admin.CoreV1().Pods(s.ns).List(s.ctx, metav1.ListOptions{FieldSelector: "status.phase=Succeeded"})
		return err == nil && len(list.Items) == 5
	})
	for _, pod := range s.podsOf(s.ns) {
		if err := s.admin.CoreV1().Pods(s.ns).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			s.Fatal(err)
		}
	}
	if took, gone := s.until(time.Now(), stay, func() bool { return s.held() < 5 }); gone {
		s.Fatalf("a pod that was not captured was released after %s", took)
	}
	begin := time.Now()
	s.startController(s.ctx, s.T, controllerOptions{})
	s.measure("from the start of the controller until Succeeded", begin, time.Minute, s.inPhase(workflow, wfv1.WorkflowSucceeded), nil)
	s.measure("and until the pods are gone", begin, 150*time.Second, s.noPods, s.leftNote)
}

// podGC: a thousand pods that are each deleted when they have ended.
func podGC(s *scene) {
	defer s.clear()
	s.submit(shape{name: "collected", pods: 1000, podGC: wfv1.PodGCOnPodCompletion})
	succeeded := s.must("collected succeeds", 6*time.Minute, s.inPhase("collected", wfv1.WorkflowSucceeded))
	s.measure("from Succeeded until the pods are gone", succeeded, 150*time.Second, s.noPods, s.leftNote)
}

func (s *scene) twentyRunning(name string) {
	s.Helper()
	s.submit(shape{name: name, pods: 20, pod: map[string]string{runAnnotation: "forever"}})
	s.must("the pods run", time.Minute, func() bool {
		list, err := s.admin.CoreV1().Pods(s.ns).List(s.ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		return err == nil && len(list.Items) == 20
	})
}

func terminate(s *scene) {
	s.endsRunning("terminated", func(name string) error {
		_, err := s.server.TerminateWorkflow(s.ctx, &workflowpkg.WorkflowTerminateRequest{Namespace: s.ns, Name: name})
		return err
	})
}

func stop(s *scene) {
	s.endsRunning("stopped", func(name string) error {
		_, err := s.server.StopWorkflow(s.ctx, &workflowpkg.WorkflowStopRequest{Namespace: s.ns, Name: name})
		return err
	})
}

// endsRunning ends a workflow whose pods run.
func (s *scene) endsRunning(name string, end func(name string) error) {
	defer s.clear()
	s.twentyRunning(name)
	begin := time.Now()
	if err := end(name); err != nil {
		s.Fatal(err)
	}
	s.measure("until Failed", begin, time.Minute, s.inPhase(name, wfv1.WorkflowFailed), nil)
	s.measure("until no pod is held", begin, 150*time.Second, s.noneHeld, s.heldNote)
}

func deleteRunning(s *scene) {
	defer s.clear()
	s.twentyRunning("deleted")
	begin := time.Now()
	if _, err := s.server.DeleteWorkflow(s.ctx, &workflowpkg.WorkflowDeleteRequest{Namespace: s.ns, Name: "deleted"}); err != nil {
		s.Fatal(err)
	}
	s.measure("until the pods are gone", begin, 150*time.Second, s.noPods, s.leftNote)
}

// sameNameAgain deletes a workflow and at once submits another one of that name, whose pods have the same names.
func sameNameAgain(s *scene) {
	defer s.clear()
	s.submit(shape{name: "again", pods: 50})
	s.must("the first succeeds", time.Minute, s.inPhase("again", wfv1.WorkflowSucceeded))
	begin := time.Now()
	if _, err := s.server.DeleteWorkflow(s.ctx, &workflowpkg.WorkflowDeleteRequest{Namespace: s.ns, Name: "again"}); err != nil {
		s.Fatal(err)
	}
	s.must("the first is gone", time.Minute, func() bool { return s.phase("again") == "gone" })
	second := s.submit(shape{name: "again", pods: 50})
	s.measure("until the second Succeeded", begin, 150*time.Second, func() bool {
		meta, err := s.metaOf("again")
		return err == nil && meta.UID == second.UID && meta.Labels["workflows.argoproj.io/phase"] == string(wfv1.WorkflowSucceeded)
	}, nil)
	s.measure("and until no pod is held", begin, 3*time.Minute, s.noneHeld, s.heldNote)
}
