package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// fakeService holds pods, and lets them go when it is asked to unless refuse has
// something against it.
type fakeService struct {
	finalizerv1.UnimplementedFinalizerServiceServer

	mu   sync.Mutex
	pods []*finalizerv1.Pod
	// refuse answers for a pod; nil, or the outcome 0: it is released.
	refuse func(*finalizerv1.Pod) *finalizerv1.PodResult
	// released is called after each release, with the lock.
	released func(*finalizerv1.Pod)
	batches  []int
	singles  []*finalizerv1.ReleasePodRequest
	writes   int
	unforced int
}

func (f *fakeService) ListPods(_ context.Context, r *finalizerv1.ListPodsRequest) (*finalizerv1.ListPodsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &finalizerv1.ListPodsResponse{}
	for _, p := range f.pods {
		at := p.GetNamespace() + "/" + p.GetName()
		switch {
		case at <= r.GetPageToken(),
			r.GetNamespace() != "" && r.GetNamespace() != p.GetNamespace(),
			r.GetWorkflow() != "" && r.GetWorkflow() != p.GetWorkflow(),
			r.GetReason() != 0 && r.GetReason() != p.GetHoldReason():
			continue
		case len(resp.Pods) == int(r.GetPageSize()):
			last := resp.Pods[len(resp.Pods)-1]
			resp.NextPageToken = last.GetNamespace() + "/" + last.GetName()
			return resp, nil
		}
		resp.Pods = append(resp.Pods, p)
	}
	return resp, nil
}

// release is called with the lock.
func (f *fakeService) release(uid string, dry bool) *finalizerv1.PodResult {
	i := slices.IndexFunc(f.pods, func(p *finalizerv1.Pod) bool { return p.GetUid() == uid })
	if i < 0 {
		return &finalizerv1.PodResult{PodUid: uid, Outcome: finalizerv1.Outcome_OUTCOME_GONE}
	}
	p := f.pods[i]
	if f.refuse != nil {
		if res := f.refuse(p); res.GetOutcome() != 0 {
			res.PodUid = uid
			return res
		}
	}
	if !dry {
		f.writes++
		f.pods = slices.Delete(f.pods, i, i+1)
		if f.released != nil {
			f.released(p)
		}
	}
	return &finalizerv1.PodResult{PodUid: uid, Outcome: finalizerv1.Outcome_OUTCOME_RELEASED}
}

func (f *fakeService) ReleaseWorkflowPods(_ context.Context, r *finalizerv1.ReleaseWorkflowPodsRequest) (*finalizerv1.ReleaseWorkflowPodsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, len(r.GetPods()))
	if !r.GetForce() {
		f.unforced++
	}
	resp := &finalizerv1.ReleaseWorkflowPodsResponse{}
	for _, ref := range r.GetPods() {
		resp.Results = append(resp.Results, f.release(ref.GetUid(), r.GetValidateOnly()))
	}
	return resp, nil
}

func (f *fakeService) ReleasePod(_ context.Context, r *finalizerv1.ReleasePodRequest) (*finalizerv1.ReleasePodResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.singles = append(f.singles, r)
	if !r.GetForce() {
		f.unforced++
	}
	res := f.release(r.GetPodUid(), r.GetValidateOnly())
	if reason := res.GetErrorReason(); reason != 0 {
		st, err := status.New(codes.Code(res.GetCode()), res.GetMessage()).WithDetails(
			&errdetails.ErrorInfo{Reason: reasonName(reason), Domain: "finalizerd.dev"})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	return &finalizerv1.ReleasePodResponse{Result: res}, nil
}

// target serves f and returns where.
func (f *fakeService) target(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	finalizerv1.RegisterFinalizerServiceServer(s, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(lis) // Stop ends it
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return lis.Addr().String()
}

// hold adds n pods of a workflow, or without owner if that is empty.
func (f *fakeService) hold(namespace, workflow string, n int, reason finalizerv1.HoldReason) {
	for i := range n {
		name := fmt.Sprintf("%s-%05d", orDash(workflow), i)
		f.pods = append(f.pods, &finalizerv1.Pod{
			Namespace: namespace, Name: name, Uid: namespace + "." + name, Workflow: workflow, Held: true,
			HoldReason: reason, Explanation: "because of " + holdName(reason),
			SinceTime: timestamppb.New(time.Now().Add(-90 * time.Second)), ReleaseTime: timestamppb.New(time.Now().Add(time.Hour)),
		})
	}
	slices.SortFunc(f.pods, func(a, b *finalizerv1.Pod) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
}

const (
	notCaptured = finalizerv1.HoldReason_HOLD_REASON_NOT_CAPTURED
	unowned     = finalizerv1.HoldReason_HOLD_REASON_UNOWNED
)

func filled() *fakeService {
	f := &fakeService{}
	f.hold("a", "big", 2500, notCaptured)
	f.hold("a", "small", 2, finalizerv1.HoldReason_HOLD_REASON_CAPTURED)
	f.hold("b", "big", 3, notCaptured)
	f.hold("b", "", 4, unowned)
	return f
}

func TestB41ReleaseAllIsADryRunByDefault(t *testing.T) {
	f := filled()
	code, stdout, stderr := run(t, t.Context(), nil, "release-all", "--target", f.target(t))
	if code != 0 || f.writes != 0 || len(f.pods) != 2509 {
		t.Fatalf("exit %d, %d writes: %s", code, f.writes, stderr)
	}
	if !strings.Contains(stdout, "2509 of 2509 held pods would be released, nothing was written; --yes") {
		t.Errorf("said %q", stdout)
	}
	if !strings.Contains(stderr, "2509 held pods: 2503 NOT_CAPTURED, 4 UNOWNED, 2 CAPTURED") {
		t.Errorf("said on standard error %q", stderr)
	}
}

func TestB41ReleaseAllWithYesReleasesEverything(t *testing.T) {
	f := filled()
	code, stdout, stderr := run(t, t.Context(), nil, "release-all", "--yes", "--target", f.target(t))
	if code != 0 || len(f.pods) != 0 || !strings.Contains(stdout, "2509 pods released; no held pod is left") {
		t.Fatalf("exit %d, %d pods left: %q, %q", code, len(f.pods), stdout, stderr)
	}
	slices.Sort(f.batches)
	if !slices.Equal(f.batches, []int{2, 3, 500, 1000, 1000}) || len(f.singles) != 4 || f.unforced != 0 {
		t.Errorf("batches %v, %d single calls, %d without force", f.batches, len(f.singles), f.unforced)
	}
	if !strings.Contains(stderr, "released 2509 of 2509") {
		t.Errorf("no progress: %q", stderr)
	}
	t.Run("and again there is nothing to do", func(t *testing.T) {
		code, stdout, _ := run(t, t.Context(), nil, "release-all", "--yes", "--target", f.target(t))
		if code != 0 || !strings.Contains(stdout, "0 pods released; no held pod is left") {
			t.Errorf("exit %d, %q", code, stdout)
		}
	})
}

func TestB41ReleaseAllCanBeNarrowed(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		left int
	}{
		"to a namespace": {[]string{"-n", "b"}, 2502},
		"to a workflow":  {[]string{"-n", "b", "--workflow=big"}, 2506},
		"to a reason":    {[]string{"--reason=unowned"}, 2505},
	} {
		t.Run(name, func(t *testing.T) {
			f := filled()
			code, stdout, _ := run(t, t.Context(), nil, append([]string{"release-all", "--yes", "--target", f.target(t)}, tc.args...)...)
			if code != 0 || len(f.pods) != tc.left || !strings.Contains(stdout, "no held pod is left among those that were asked for") {
				t.Errorf("exit %d, %d pods left, want %d: %q", code, len(f.pods), tc.left, stdout)
			}
		})
	}
}

func TestB41B13WhatStaysHeldIsToldAndFails(t *testing.T) {
	f := &fakeService{}
	f.hold("a", "w", 5, notCaptured)
	f.hold("a", "", 1, unowned)
	f.refuse = func(p *finalizerv1.Pod) *finalizerv1.PodResult {
		switch {
		case p.GetWorkflow() == "":
			return &finalizerv1.PodResult{Outcome: finalizerv1.Outcome_OUTCOME_FAILED, Code: int32(codes.FailedPrecondition), Message: "a Job owns it",
				ErrorReason: finalizerv1.ErrorReason_ERROR_REASON_NOT_A_WORKFLOW_POD}
		case strings.HasSuffix(p.GetName(), "3"):
			return &finalizerv1.PodResult{Outcome: finalizerv1.Outcome_OUTCOME_BLOCKED_BY_ADMISSION, Message: "admission refuses", Field: "spec.nodeName", Webhook: "w.example.com"}
		}
		return nil
	}
	code, _, stderr := run(t, t.Context(), nil, "release-all", "--yes", "--target", f.target(t))
	if code != 1 || len(f.pods) != 2 {
		t.Errorf("exit %d, %d pods left", code, len(f.pods))
	}
	if !slices.Equal(f.batches, []int{5, 1}) {
		t.Errorf("it went on although waiting cannot help: batches %v", f.batches)
	}
	for _, want := range []string{
		"4 pods released, and 2 pods stay held", "field spec.nodeName, webhook w.example.com", "a/w-00003: ", "exempt updates of pod metadata",
		"NOT_A_WORKFLOW_POD (a Job owns it), another controller owns it", "released 4 of 6, 2 failed",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("lacks %q:\n%s", want, stderr)
		}
	}
}

func TestReleaseAllGoesOnAfterFaultsThatPass(t *testing.T) {
	f := &fakeService{}
	f.hold("a", "w", 3, notCaptured)
	faults := 3 // nothing moves in the first round
	f.refuse = func(*finalizerv1.Pod) *finalizerv1.PodResult {
		if faults--; faults < 0 {
			return nil
		}
		return &finalizerv1.PodResult{Outcome: finalizerv1.Outcome_OUTCOME_FAILED, Code: int32(codes.Unavailable), Message: "later",
			ErrorReason: finalizerv1.ErrorReason_ERROR_REASON_API_THROTTLED}
	}
	code, stdout, stderr := run(t, t.Context(), nil, "release-all", "--yes", "--target", f.target(t))
	if code != 0 || !strings.Contains(stdout, "3 pods released; no held pod is left") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestReleaseAllEndsThoughHeldPodsKeepComing(t *testing.T) {
	f := &fakeService{}
	f.hold("a", "w", 1, notCaptured)
	n := 0
	f.released = func(*finalizerv1.Pod) {
		n++
		f.hold("a", fmt.Sprintf("w%d", n), 1, notCaptured)
	}
	code, _, stderr := run(t, t.Context(), nil, "release-all", "--yes", "--target", f.target(t))
	if code != 1 || !strings.Contains(stderr, "new held pods keep coming: switch ARGO_POD_STATUS_CAPTURE_FINALIZER off") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestPodsListsWhyEachPodIsHeld(t *testing.T) {
	f := filled()
	target := f.target(t)
	t.Run("as a table", func(t *testing.T) {
		code, stdout, stderr := run(t, t.Context(), []string{"FINALIZERD_TARGET=" + target, "FINALIZERD_MIN_AGE=30s"}, "pods", "-n", "b")
		if code != 0 || strings.Count(stdout, "\n") != 8 || !strings.Contains(stderr, "7 held pods: 4 UNOWNED, 3 NOT_CAPTURED") {
			t.Fatalf("exit %d: %s%s", code, stdout, stderr)
		}
		for _, want := range []string{"NAMESPACE", "b          big-00001  big       NOT_CAPTURED  1m30s", "in 1h0m0s", "because of UNOWNED"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("lacks %q:\n%s", want, stdout)
			}
		}
	})
	t.Run("as JSON, over several pages", func(t *testing.T) {
		code, stdout, _ := run(t, t.Context(), nil, "pods", "-o", "json", "--target", target)
		var doc struct{ Pods []map[string]any }
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != 0 || len(doc.Pods) != 2509 {
			t.Fatalf("exit %d, %d pods, %v", code, len(doc.Pods), err)
		}
		if got := doc.Pods[0]["holdReason"]; got != "HOLD_REASON_NOT_CAPTURED" {
			t.Errorf("the reason is %v", got)
		}
	})
	t.Run("none as JSON", func(t *testing.T) {
		_, stdout, stderr := run(t, t.Context(), nil, "pods", "-o", "json", "--target", target, "-n", "c")
		if stdout != "{\"pods\":[]}\n" || stderr != "0 held pods\n" {
			t.Errorf("got %q, %q", stdout, stderr)
		}
	})
}
