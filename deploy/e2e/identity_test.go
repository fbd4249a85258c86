package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// replace gives the pod's name to a new pod.
func (f *fixture) replace(wf workflow, old *corev1.Pod, options ...podOption) *corev1.Pod {
	f.t.Helper()
	f.dropPod(old.Name)
	return f.pod(wf, old.Name, options...)
}

func TestB01_QueuedWorkForAReplacedPodWritesNothing(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf")
	g := newGate(t, suite.config)
	d := f.newDaemon(daemonOptions{name: "replaced", config: g.config})
	var old, successors []*corev1.Pod
	for i := range 4 {
		old = append(old, f.pod(wf, fmt.Sprintf("pod-%d", i), inPhase(corev1.PodSucceeded)))
	}
	f.waitPods(d, wf, 4)
	g.freeze() // the cache goes on to show the old pods
	for _, pod := range old {
		successors = append(successors, f.replace(wf, pod, inPhase(corev1.PodRunning)))
	}

	for i, door := range d.doors() {
		_, err := door.ReleasePod(f.ctx, f.releasing(old[i].Name, string(old[i].UID)))
		info := wantError(t, err, codes.FailedPrecondition, "POD_REPLACED")
		want := map[string]string{"namespace": f.ns, "pod": old[i].Name, "pod_uid": string(old[i].UID)}
		if diff := cmp.Diff(want, info.GetMetadata()); diff != "" {
			t.Errorf("%s: metadata (-want +got):\n%s", door.name, diff)
		}
	}
	refs := []*pb.PodRef{{Name: old[2].Name, Uid: string(old[2].UID)}}
	released, err := d.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Pods: refs, Captured: true})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, released.GetResults()[0], pb.Outcome_OUTCOME_SUPERSEDED, asserted)
	refs = []*pb.PodRef{{Name: old[3].Name, Uid: string(old[3].UID)}}
	deleted, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Pods: refs, Captured: true})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, deleted.GetResults()[0], pb.Outcome_OUTCOME_SUPERSEDED, asserted)

	for _, pod := range successors {
		f.wantUntouched(pod)
	}
	for _, r := range onlyWrites(f.requests(d.userAgent)) {
		if r.code < 400 {
			t.Errorf("%s: the API server took a write", r)
		}
	}
	g.thaw()
	// With the new pods in the cache the answer is the same.
	f.eventually("the cache shows the successors", func() (bool, error) {
		_, err := d.ReleasePod(f.ctx, f.releasing(old[0].Name, string(old[0].UID)))
		return errorInfo(err).GetReason() == "POD_REPLACED", nil
	})
}

func TestB01_ReleasesThatRaceWithAReplacementNeverReachTheSuccessor(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf")
	d := suite.shared
	for i := range 10 {
		pod := f.pod(wf, fmt.Sprintf("pod-%d", i))
		ctx, cancel := context.WithCancel(f.ctx)
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				for ctx.Err() == nil {
					_, err := d.ReleasePod(ctx, f.releasing(pod.Name, string(pod.UID)))
					if err != nil && ctx.Err() == nil && errorInfo(err).GetReason() != "POD_REPLACED" {
						t.Errorf("release: %v", err)
						return
					}
				}
			})
		}
		successor := f.replace(wf, pod)
		// Once the name's new owner is told, the old one's work is over.
		f.eventually("a late release is refused", func() (bool, error) {
			_, err := d.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID)))
			return errorInfo(err).GetReason() == "POD_REPLACED", nil
		})
		cancel()
		calls.Wait()
		f.wantUntouched(successor)
	}
}

func TestB02_ForeignFinalizersStayInOrderAlsoWhenSomeoneAddsAThird(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf")
	const other, another, third = "example.com/other", "example.com/another", "example.com/third"
	d := suite.shared
	for i := range 15 {
		pod := f.pod(wf, fmt.Sprintf("pod-%d", i), withFinalizers(other, fin, another))
		start := make(chan struct{})
		var both sync.WaitGroup
		var released *pb.ReleasePodResponse
		var releaseErr, addErr error
		both.Go(func() {
			<-start
			released, releaseErr = d.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID)))
		})
		both.Go(func() {
			<-start
			addErr = f.addForeign(pod.Name, third)
		})
		close(start)
		both.Wait()
		if releaseErr != nil || addErr != nil {
			t.Fatalf("release: %v, add: %v", releaseErr, addErr)
		}
		left := f.live(pod.Name).Finalizers
		if !slices.Equal(left, []string{other, another, third}) && !slices.Equal(left, []string{other, third, another}) {
			t.Fatalf("%s is left with %v", pod.Name, left)
		}
		if told := released.GetResult().GetForeignFinalizers(); len(told) < 2 || told[0] != other {
			t.Errorf("%s: the answer tells foreign finalizers %v", pod.Name, told)
		}
	}
}

// addForeign does what a careful client does: read, append, update, and again
// after a conflict.
func (f *fixture) addForeign(name, finalizer string) error {
	pods := suite.admin.CoreV1().Pods(f.ns)
	for {
		pod, err := pods.Get(f.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Finalizers = append(pod.Finalizers, finalizer)
		if _, err = pods.Update(f.ctx, pod, metav1.UpdateOptions{}); err == nil || !apierrors.IsConflict(err) {
			return err
		}
	}
}

func TestB03_LabelAndFinalizerChangeInOneWrite(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf", podNode("bulk", "Succeeded"))
	d := suite.shared
	single := f.pod(wf, "single", inPhase(corev1.PodSucceeded))
	bulk := f.pod(wf, "bulk", inPhase(corev1.PodSucceeded))
	f.waitPods(d, wf, 2)
	list, err := suite.admin.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := suite.admin.CoreV1().Pods(f.ns).Watch(f.ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()

	request := f.releasing(single.Name, string(single.UID))
	request.MarkCompleted = true
	if _, err := d.ReleasePod(f.ctx, request); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{
		Namespace: f.ns, Workflow: wf.name, NodeIds: []string{"bulk"}, MarkCompleted: true,
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		event := <-seen.ResultChan()
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || pod.Labels[labelDone] != "true" || slices.Contains(pod.Finalizers, fin) {
			t.Errorf("an event shows a half done release: %+v", event)
		}
	}
	for _, pod := range []*corev1.Pod{single, bulk} {
		if own := onlyWrites(ofPod(f.requests(d.userAgent), pod.Name)); len(own) != 1 {
			t.Errorf("%s: want one write, got %v", pod.Name, own)
		}
	}
}

func TestB04_EveryCallerGetsOKAndTheOutcomeTellsWhich(t *testing.T) {
	t.Run("two callers at once share one write", func(t *testing.T) {
		f := newFixture(t)
		wf := f.workflow("wf")
		d := suite.shared
		pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
		f.waitPods(d, wf, 1)
		var calls sync.WaitGroup
		for i := range 8 {
			calls.Go(func() {
				got, err := d.doors()[i%2].ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID)))
				if o := got.GetResult().GetOutcome(); err != nil || o != pb.Outcome_OUTCOME_RELEASED && o != pb.Outcome_OUTCOME_ALREADY_RELEASED {
					t.Errorf("call %d: %v, %v", i, got, err)
				}
			})
		}
		calls.Wait()
		f.wantCounts("eight releases of one pod", f.requests(d.userAgent), count{Writes: 1})
	})
	t.Run("FIN that somebody else took off", func(t *testing.T) {
		f := newFixture(t)
		wf := f.workflow("wf")
		pod := f.pod(wf, "pod", withFinalizers())
		got, err := suite.shared.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID)))
		if err != nil {
			t.Fatal(err)
		}
		wantResult(t, got.GetResult(), pb.Outcome_OUTCOME_ALREADY_RELEASED, none)
	})
	t.Run("a pod that went behind a stale cache", func(t *testing.T) {
		f := newFixture(t)
		wf := f.workflow("wf")
		g := newGate(t, suite.config)
		d := f.newDaemon(daemonOptions{name: "went", config: g.config})
		one, two := f.pod(wf, "one"), f.pod(wf, "two")
		f.waitPods(d, wf, 2)
		g.freeze()
		f.dropPod("one")
		f.dropPod("two")
		got, err := d.ReleasePod(f.ctx, f.releasing("one", string(one.UID)))
		if err != nil {
			t.Fatal(err)
		}
		wantResult(t, got.GetResult(), pb.Outcome_OUTCOME_GONE, asserted)
		bulk, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{
			Namespace: f.ns, Workflow: wf.name, Pods: []*pb.PodRef{{Name: "two", Uid: string(two.UID)}}, Force: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		wantResult(t, bulk.GetResults()[0], pb.Outcome_OUTCOME_GONE, pb.HoldReason_HOLD_REASON_FORCED)
	})
	t.Run("a pod that never was", func(t *testing.T) {
		f := newFixture(t)
		for _, door := range suite.shared.doors() {
			got, err := door.ReleasePod(f.ctx, f.releasing("nobody", "5d1f9a52-0000-4000-8000-000000000000"))
			if err != nil {
				t.Fatalf("%s: %v", door.name, err)
			}
			wantResult(t, got.GetResult(), pb.Outcome_OUTCOME_GONE, none)
		}
	})
}
