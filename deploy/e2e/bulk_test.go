package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// podsNamed creates n pods, prefix-0 and so on, whose nodes are to be stored
// too.
func (f *fixture) podsNamed(wf workflow, prefix string, n int, options ...podOption) []*pb.PodRef {
	f.t.Helper()
	refs := make([]*pb.PodRef, n)
	var creating sync.WaitGroup
	next := make(chan int)
	faults := make([]error, n)
	for range min(n, 16) {
		creating.Go(func() {
			for i := range next {
				pod, err := f.tryPod(wf, fmt.Sprintf("%s-%d", prefix, i), options...)
				if err != nil {
					faults[i] = err
					continue
				}
				refs[i] = &pb.PodRef{Name: pod.Name, Uid: string(pod.UID)}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	creating.Wait()
	if err := errors.Join(faults...); err != nil {
		f.t.Fatal(err)
	}
	return refs
}

func TestB22_WritesOfTwoCallsOnOneWorkflowNeverInterleave(t *testing.T) {
	f := newFixture(t)
	g := newGate(t, suite.config)
	d := f.newDaemon(daemonOptions{name: "order", config: g.config})
	wf, other := f.workflow("wf"), f.workflow("other")
	const n = 40
	a, b, c := f.podsNamed(wf, "a", n), f.podsNamed(wf, "b", n), f.podsNamed(other, "c", n)
	f.waitPods(d, wf, 2*n)
	f.waitPods(d, other, n)
	// One write of each call on wf waits until both calls are under way and the
	// other workflow has been worked on.
	otherDone := make(chan struct{})
	g.intercept(func(r *http.Request) http.Handler {
		if isWriteOf(r, "a-0") || isWriteOf(r, "b-0") {
			<-otherDone
		}
		return nil
	})
	// Two processes: the controller over gRPC, Argo Server over REST.
	var calls sync.WaitGroup
	calls.Go(func() {
		got, err := d.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Pods: a, Captured: true})
		if err != nil || got.GetSummary().GetReleased() != n {
			t.Errorf("release: %v, %v", got.GetSummary(), err)
		}
	})
	calls.Go(func() {
		got, err := d.overREST.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Pods: b, Captured: true})
		if err != nil || got.GetSummary().GetDeleted() != n {
			t.Errorf("delete: %v, %v", got.GetSummary(), err)
		}
	})
	f.eventually("one call holds the lane and one waits", func() (bool, error) { return f.metric(d, "finalizerd_lane_waiters") == "1", nil })
	got, err := d.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: other.name, Pods: c, Captured: true})
	close(otherDone)
	if err != nil || got.GetSummary().GetReleased() != n {
		t.Errorf("the other workflow: %v, %v", got.GetSummary(), err)
	}
	calls.Wait()

	var order []byte
	for _, r := range onlyWrites(f.requests(d.userAgent)) {
		if r.name[0] != 'c' {
			order = append(order, r.name[0])
		}
	}
	if turns := len(slices.Compact(slices.Clone(order))); turns != 2 || len(order) != n+2*n {
		t.Errorf("%d writes in %d turns, want %d in 2: %s", len(order), turns, 3*n, order)
	}
}

func TestB23_ARepeatedRequestIDReturnsTheFirstAnswer(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	f.podsNamed(wf, "pod", 3)
	f.waitPods(d, wf, 3)
	request := &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true, RequestId: "retry-1"}
	first, err := d.DeleteWorkflowPods(f.ctx, request)
	if err != nil || first.GetSummary().GetDeleted() != 3 {
		t.Fatalf("first: %v, %v", first, err)
	}
	next := f.pod(wf, "pod-0") // the retry's own
	f.waitPods(d, wf, 1)
	for _, door := range d.doors() {
		again, err := door.DeleteWorkflowPods(f.ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(first, again) {
			t.Errorf("%s: the repeat answers %v, want %v", door.name, again, first)
		}
	}
	f.wantUntouched(next)
	other := proto.CloneOf(request)
	other.Force = false
	_, err = d.DeleteWorkflowPods(f.ctx, other)
	wantError(t, err, codes.FailedPrecondition, "REQUEST_ID_REUSED")
}

func TestB23_ARepeatAfterATimeoutGoesOnWithTheSamePods(t *testing.T) {
	f := newFixture(t)
	g := newGate(t, suite.config)
	d := f.newDaemon(daemonOptions{name: "cut-off", config: g.config})
	wf := f.workflow("wf")
	f.podsNamed(wf, "pod", 3)
	f.waitPods(d, wf, 3)
	release := make(chan struct{})
	g.intercept(func(r *http.Request) http.Handler {
		if isWriteOf(r, "pod-1") {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-release:
				case <-r.Context().Done():
				}
			})
		}
		return nil
	})
	request := &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true, RequestId: "retry-1"}
	ctx, cancel := context.WithTimeout(f.ctx, 4*time.Second)
	defer cancel()
	first, err := d.DeleteWorkflowPods(ctx, request)
	if err != nil {
		t.Fatalf("the answer must come before the deadline: %v", err)
	}
	if s := first.GetSummary(); s.GetDeleted() != 2 || s.GetNeedsAttention() != 1 {
		t.Errorf("first: %v", first)
	}
	close(release)
	g.intercept(nil)
	created := f.pod(wf, "pod-0")
	f.waitPods(d, wf, 2)
	second, err := d.DeleteWorkflowPods(f.ctx, request)
	if err != nil || second.GetSummary().GetDeleted() != 3 {
		t.Errorf("repeat: %v, %v", second, err)
	}
	f.wantUntouched(created)
}

func TestB24_WaitEndsWhenTheUIDsAreGone(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	refs := f.podsNamed(wf, "pod", 3, runsUntilDeleted(time.Second))
	f.eventually("the pods run", func() (bool, error) {
		return !slices.ContainsFunc(refs, func(r *pb.PodRef) bool { return f.live(r.GetName()).Status.Phase != corev1.PodRunning }), nil
	})
	f.waitPods(d, wf, 3)
	request := &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true, Wait: true, WaitTimeout: durationpb.New(0)}
	at0, err := d.DeleteWorkflowPods(f.ctx, request)
	if err != nil || at0.GetSummary().GetDeleting() != 3 {
		t.Fatalf("without waiting: %v, %v", at0, err)
	}
	request.WaitTimeout = nil
	got, err := d.DeleteWorkflowPods(f.ctx, request)
	if err != nil || got.GetSummary().GetDeleted() != 3 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, r := range refs {
		if f.live(r.GetName()) != nil {
			t.Errorf("%s is still there", r.GetName())
		}
	}
}

func TestB24_WaitSaysWhatHoldsEachPod(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	f.pod(wf, "foreign", inPhase(corev1.PodSucceeded), withFinalizers("example.com/other", fin))
	f.pod(wf, "hanging", inPhase(corev1.PodRunning))
	f.pod(wf, "quick", inPhase(corev1.PodFailed))
	f.waitPods(d, wf, 3)
	got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{
		Namespace: f.ns, Workflow: wf.name, All: true, Force: true, Wait: true, WaitTimeout: durationpb.New(300 * time.Millisecond),
	})
	if err != nil || len(got.GetResults()) != 3 {
		t.Fatalf("got %v, %v", got, err)
	}
	forced := pb.HoldReason_HOLD_REASON_FORCED
	foreign, hanging, quick := got.GetResults()[0], got.GetResults()[1], got.GetResults()[2]
	wantResult(t, foreign, pb.Outcome_OUTCOME_HELD_BY_FOREIGN_FINALIZER, forced)
	if !slices.Equal(foreign.GetForeignFinalizers(), []string{"example.com/other"}) {
		t.Errorf("the foreign finalizers are told as %v", foreign.GetForeignFinalizers())
	}
	wantResult(t, hanging, pb.Outcome_OUTCOME_DELETING, forced)
	if !strings.Contains(hanging.GetMessage(), "grace period 30 s") {
		t.Errorf("the hanging pod's message: %s", hanging.GetMessage())
	}
	wantResult(t, quick, pb.Outcome_OUTCOME_DELETED, forced)
}

func TestB24_WaitGoesOnUntilTheForeignFinalizerIsTakenOff(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	f.pod(wf, "pod", inPhase(corev1.PodSucceeded), withFinalizers("example.com/other", fin))
	f.waitPods(d, wf, 1)
	answers := make(chan *pb.DeleteWorkflowPodsResponse, 1)
	go func() {
		got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true, Wait: true})
		if err != nil {
			t.Error(err)
		}
		answers <- got
	}()
	f.waitSeen(d, wf, "the pod released", func(p *pb.Progress) bool { return p.GetHeld() == 0 && p.GetTerminating() == 1 })
	select {
	case got := <-answers:
		t.Fatalf("answered while the pod was there: %v", got)
	default:
	}
	f.dropPod("pod")
	wantResult(t, (<-answers).GetResults()[0], pb.Outcome_OUTCOME_DELETED, pb.HoldReason_HOLD_REASON_FORCED)
}
