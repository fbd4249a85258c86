package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

func TestB05_AddingToAPodThatIsBeingDeletedIsAFailedPrecondition(t *testing.T) {
	t.Run("deleted behind a stale cache", func(t *testing.T) {
		f := newFixture(t)
		wf := f.workflow("wf")
		g := newGate(t, suite.config)
		d := f.newDaemon(daemonOptions{name: "terminating", config: g.config})
		pod := f.pod(wf, "pod", withFinalizers("example.com/other"))
		f.waitPods(d, wf, 1)
		g.freeze()
		f.deletePod("pod")
		for _, door := range d.doors() {
			_, err := door.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: "pod", PodUid: string(pod.UID)})
			wantError(t, err, codes.FailedPrecondition, "POD_TERMINATING")
		}
		if left := f.live("pod").Finalizers; slices.Contains(left, fin) {
			t.Errorf("FIN is on the pod: %v", left)
		}
	})
	t.Run("in a race", func(t *testing.T) {
		f := newFixture(t)
		wf := f.workflow("wf")
		for i := range 20 {
			pod := f.pod(wf, fmt.Sprintf("pod-%d", i), withFinalizers("example.com/other"))
			start := make(chan struct{})
			var both sync.WaitGroup
			var err error
			both.Go(func() {
				<-start
				_, err = suite.shared.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: pod.Name})
			})
			close(start)
			f.deletePod(pod.Name)
			both.Wait()
			held := slices.Contains(f.live(pod.Name).Finalizers, fin)
			if err != nil {
				wantError(t, err, codes.FailedPrecondition, "POD_TERMINATING")
			}
			if held == (err != nil) {
				t.Errorf("%s: held %v, error %v", pod.Name, held, err)
			}
		}
	})
}

func TestB07_OwnershipIsDecidedByTheControllerReference(t *testing.T) {
	f := newFixture(t)
	wf, elsewhere := f.workflow("wf", podNode("renamed", "Succeeded")), f.workflow("elsewhere")
	yes := true
	job, err := suite.admin.BatchV1().Jobs(f.ns).Create(f.ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{Suspend: &yes, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "busybox"}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Labelled as the other workflow's, and as completed.
	renamed := f.pod(wf, "renamed", inPhase(corev1.PodSucceeded), withLabel(labelWorkflow, elsewhere.name), withLabel(labelDone, "true"))
	ofJob := f.pod(wf, "of-job", withOwner(metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID, Controller: &yes}))
	// An owner that is no controller is a hint for the garbage collector only.
	notController := f.pod(wf, "not-controller", withOwner(metav1.OwnerReference{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Name: wf.name, UID: wf.uid}))
	d := suite.shared
	f.waitPods(d, wf, 1)

	for _, pod := range []*corev1.Pod{ofJob, notController} {
		_, err := d.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID)))
		wantError(t, err, codes.FailedPrecondition, "NOT_A_WORKFLOW_POD")
		_, err = d.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: pod.Name})
		wantError(t, err, codes.FailedPrecondition, "NOT_A_WORKFLOW_POD")
		named, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{
			Namespace: f.ns, Workflow: wf.name, Pods: []*pb.PodRef{{Name: pod.Name, Uid: string(pod.UID)}}, Force: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r := named.GetResults()[0]; r.GetErrorReason() != pb.ErrorReason_ERROR_REASON_NOT_A_WORKFLOW_POD {
			t.Errorf("%s, named in a bulk call: %v", pod.Name, r)
		}
	}
	// The label sends a search for nodes to these pods too.
	byNode, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{
		Namespace: f.ns, Workflow: wf.name, NodeIds: []string{"of-job", "not-controller"}, Force: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range byNode.GetResults() {
		wantResult(t, r, pb.Outcome_OUTCOME_NOT_FOUND, none)
	}
	other, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: elsewhere.name, All: true, Force: true})
	if err != nil || len(other.GetResults()) != 0 {
		t.Errorf("all of %s: %v, %v", elsewhere.name, other, err)
	}
	f.wantHeld(renamed)
	got, err := d.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetResults()) != 1 {
		t.Fatalf("all of %s: %v", wf.name, got)
	}
	wantResult(t, got.GetResults()[0], pb.Outcome_OUTCOME_RELEASED, captured)
	f.wantUntouched(ofJob)
	f.wantUntouched(notController)
}

func TestB08_OtherNamespacesAndOtherInstancesAreNeverTouched(t *testing.T) {
	t.Run("the same workflow name in two namespaces", func(t *testing.T) {
		f := newFixture(t)
		g := f.beside()
		mine, others := f.workflow("wf", podNode("pod", "Succeeded")), g.workflow("wf", podNode("pod", "Succeeded"))
		f.pod(mine, "pod", inPhase(corev1.PodSucceeded))
		foreign := g.pod(others, "pod", inPhase(corev1.PodSucceeded))
		f.waitPods(suite.shared, mine, 1)
		g.waitPods(suite.shared, others, 1)
		got, err := suite.shared.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: "wf", All: true, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.GetResults()) != 1 || got.GetSummary().GetDeleted() != 1 {
			t.Errorf("got %v", got)
		}
		g.wantUntouched(foreign)
		if w := onlyWrites(g.requests(suite.shared.userAgent)); len(w) > 0 {
			t.Errorf("writes in the other namespace: %v", w)
		}
	})
	t.Run("two controllers with different instance ids", func(t *testing.T) {
		f := newFixture(t)
		wf := f.workflow("wf")
		other := f.newDaemon(daemonOptions{name: "other-instance", instanceID: "other"})
		byInstance := map[string]*corev1.Pod{
			"":      f.pod(wf, "default", inPhase(corev1.PodSucceeded)),
			"other": f.pod(wf, "other", inPhase(corev1.PodSucceeded), withLabel(labelInstance, "other")),
		}
		for _, side := range []struct {
			daemon       *daemon
			own, foreign string
		}{{suite.shared, "", "other"}, {other, "other", ""}} {
			f.waitPods(side.daemon, wf, 2)
			pod := byInstance[side.foreign]
			_, err := side.daemon.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID)))
			if info := wantError(t, err, codes.FailedPrecondition, "OTHER_INSTANCE"); info.GetMetadata()["instance_id"] != side.foreign {
				t.Errorf("metadata %v, want instance_id %q", info.GetMetadata(), side.foreign)
			}
			_, err = side.daemon.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: pod.Name})
			wantError(t, err, codes.FailedPrecondition, "OTHER_INSTANCE")
			got, err := side.daemon.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{
				Namespace: f.ns, Workflow: wf.name, All: true, Force: true, ValidateOnly: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range got.GetResults() {
				if r.GetPod() == pod.Name && r.GetErrorReason() != pb.ErrorReason_ERROR_REASON_OTHER_INSTANCE {
					t.Errorf("all: %v", r)
				}
			}
			f.wantUntouched(pod)
		}
		for _, side := range []*daemon{suite.shared, other} {
			if _, err := side.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true, Wait: true}); err != nil {
				t.Fatal(err)
			}
			f.wantCounts("each writes to its own pod only", onlyWrites(f.requests(side.userAgent)), count{Writes: 2})
		}
	})
}
