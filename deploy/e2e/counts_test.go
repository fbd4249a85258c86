package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

const (
	none     = pb.HoldReason_HOLD_REASON_UNSPECIFIED
	asserted = pb.HoldReason_HOLD_REASON_ASSERTED
	captured = pb.HoldReason_HOLD_REASON_CAPTURED
)

// disturb has another client bump the pods' resourceVersions every 5 ms each,
// until the returned function is called.
func (f *fixture) disturb(pods ...*corev1.Pod) (stop func()) {
	ctx, cancel := context.WithCancel(f.ctx)
	var writing sync.WaitGroup
	for _, pod := range pods {
		begun := make(chan struct{})
		writing.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				body := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/bump":"%d"}}}`, i)
				// Fails once the pod is gone, which is as good.
				_, _ = suite.admin.CoreV1().Pods(f.ns).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{})
				if i == 3 {
					close(begun)
				}
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
		<-begun
	}
	return func() {
		cancel()
		writing.Wait()
	}
}

func (f *fixture) wantCounts(what string, requests []request, want count) {
	f.t.Helper()
	wantNoConflict(f.t, requests)
	if diff := cmp.Diff(want, countOf(requests)); diff != "" {
		f.t.Errorf("%s: requests at the API server (-want +got):\n%s%v", what, diff, requests)
	}
}

func TestB12_ReleaseIsOneWriteAndNoReadBesideABusyWriter(t *testing.T) {
	for _, door := range []string{"gRPC", "REST"} {
		t.Run(door, func(t *testing.T) {
			f := newFixture(t)
			wf := f.workflow("wf")
			d := suite.shared
			client := map[string]pb.FinalizerServiceClient{"gRPC": d, "REST": d.overREST}[door]
			var pods []*corev1.Pod
			for i := range 5 {
				pods = append(pods, f.pod(wf, fmt.Sprintf("pod-%d", i), inPhase(corev1.PodSucceeded)))
			}
			f.waitPods(d, wf, int32(len(pods)))
			stop := f.disturb(pods...)
			defer stop()
			for i, pod := range pods {
				request := f.releasing(pod.Name, string(pod.UID))
				request.MarkCompleted = i%2 == 0
				got, err := client.ReleasePod(f.ctx, request)
				if err != nil {
					t.Fatalf("release %s: %v", pod.Name, err)
				}
				wantResult(t, got.GetResult(), pb.Outcome_OUTCOME_RELEASED, asserted)
			}
			requests := f.requests(d.userAgent)
			f.wantCounts("five releases", requests, count{Writes: len(pods)})
			for _, pod := range pods {
				f.wantCounts(pod.Name, ofPod(requests, pod.Name), count{Writes: 1})
			}
		})
	}
}

func TestB12_RepeatedReleaseWritesNothing(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf")
	d := suite.shared
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	f.waitPods(d, wf, 1)
	stop := f.disturb(pod)
	defer stop()
	for i, want := range []struct {
		outcome pb.Outcome
		reason  pb.HoldReason
	}{
		{pb.Outcome_OUTCOME_RELEASED, asserted},
		{pb.Outcome_OUTCOME_ALREADY_RELEASED, none},
		{pb.Outcome_OUTCOME_ALREADY_RELEASED, none},
	} {
		got, err := d.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID)))
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		wantResult(t, got.GetResult(), want.outcome, want.reason)
	}
	f.wantCounts("a release and two repeats", f.requests(d.userAgent), count{Writes: 1})
}

func TestB12_ReleaseOfAPodThatAStaleCacheShowsHeldIsOneWriteAtMost(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf")
	g := newGate(t, suite.config)
	d := f.newDaemon(daemonOptions{name: "stale-repeat", config: g.config})
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	f.waitPods(d, wf, 1)
	g.freeze()
	// Another client has released it, which the cache will not hear of.
	if _, err := suite.shared.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := d.ReleasePod(f.ctx, f.releasing(pod.Name, string(pod.UID))); err != nil {
			t.Fatal(err)
		}
	}
	f.wantCounts("two releases from a stale cache", f.requests(d.userAgent), count{Writes: 1})
}

func TestB12_DeleteAndReleaseAreTwoWritesAndNoReadAPod(t *testing.T) {
	tests := map[string]struct {
		request func(*pb.DeleteWorkflowPodsRequest, []*corev1.Pod)
		// workflowReads is what the whole call may read of the workflow.
		workflowReads int
	}{
		"when the caller asserts the capture": {func(r *pb.DeleteWorkflowPodsRequest, pods []*corev1.Pod) {
			r.Captured = true
			for _, p := range pods {
				r.Pods = append(r.Pods, &pb.PodRef{Name: p.Name, Uid: string(p.UID)})
			}
		}, 0},
		"when forced":                           {func(r *pb.DeleteWorkflowPodsRequest, _ []*corev1.Pod) { r.All, r.Force = true, true }, 0},
		"when the service verifies the capture": {func(r *pb.DeleteWorkflowPodsRequest, _ []*corev1.Pod) { r.All = true }, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			var nodes []node
			for i := range 5 {
				nodes = append(nodes, podNode(fmt.Sprintf("pod-%d", i), "Succeeded"))
			}
			wf := f.workflow("wf", nodes...)
			var pods []*corev1.Pod
			for _, n := range nodes {
				pods = append(pods, f.pod(wf, n["id"].(string), inPhase(corev1.PodSucceeded)))
			}
			d := suite.shared
			f.waitPods(d, wf, int32(len(pods)))
			stop := f.disturb(pods...)
			defer stop()
			r := &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Wait: true}
			test.request(r, pods)
			got, err := d.DeleteWorkflowPods(f.ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			for _, result := range got.GetResults() {
				if result.GetOutcome() != pb.Outcome_OUTCOME_DELETED {
					t.Errorf("pod %s: %s (%s)", result.GetPod(), result.GetOutcome(), result.GetMessage())
				}
			}
			requests := f.requests(d.userAgent)
			f.wantCounts("the call", requests, count{Writes: 2 * len(pods), WorkflowReads: test.workflowReads})
			for _, pod := range pods {
				own := ofPod(requests, pod.Name)
				f.wantCounts(pod.Name, own, count{Writes: 2})
				if len(own) == 2 && (own[0].verb != "delete" || own[1].verb != "patch") {
					t.Errorf("%s: want the DELETE before the release, got %v", pod.Name, own)
				}
				if f.live(pod.Name) != nil {
					t.Errorf("pod %s is still there", pod.Name)
				}
			}
		})
	}
}

func TestB12_AddIsOneWriteAndNoRead(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf")
	d := suite.shared
	pod := f.pod(wf, "pod", inPhase(corev1.PodRunning), withFinalizers())
	f.waitPods(d, wf, 1)
	stop := f.disturb(pod)
	defer stop()
	for _, want := range []pb.Outcome{pb.Outcome_OUTCOME_ADDED, pb.Outcome_OUTCOME_ALREADY_HELD} {
		got, err := d.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: pod.Name, PodUid: string(pod.UID)})
		if err != nil {
			t.Fatal(err)
		}
		if got.GetOutcome() != want || got.GetPodUid() != string(pod.UID) {
			t.Errorf("got %v, want %s", got, want)
		}
	}
	f.wantHeld(pod)
	f.wantCounts("an add and its repeat", f.requests(d.userAgent), count{Writes: 1})
}
