package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// apiFault answers as an API server that cannot handle the request now.
func apiFault(code int, reason metav1.StatusReason) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(mustJSON(metav1.Status{ // the client went: nobody to tell
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "a fault of the test",
		}))
	})
}

func TestB25_OnlyTheFaultyPodIsTriedAgainWithGrowingBackOff(t *testing.T) {
	f := newFixture(t)
	g := newGate(t, suite.config)
	d := f.newDaemon(daemonOptions{name: "faulty", config: g.config})
	wf := f.workflow("wf")
	const n, faults = 8, 3
	f.podsNamed(wf, "pod", n)
	f.waitPods(d, wf, n)
	var mu sync.Mutex
	var tries []time.Time
	othersDone := make(chan struct{})
	writes := 0
	g.intercept(func(r *http.Request) http.Handler {
		if r.Method != http.MethodPatch {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if !isWriteOf(r, "pod-0") {
			if writes++; writes == n-1 {
				close(othersDone)
			}
			return nil
		}
		if tries = append(tries, time.Now()); len(tries) <= faults {
			return apiFault(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		}
		return nil
	})
	got, err := d.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true})
	if err != nil || got.GetSummary().GetReleased() != n {
		t.Fatalf("got %v, %v", got, err)
	}
	<-othersDone
	if len(tries) != faults+1 {
		t.Fatalf("%d tries, want %d", len(tries), faults+1)
	}
	// 100 ms, doubled each time, of which half is jitter: the third pause is at
	// least 200 ms and the first at most 100 ms, plus what a busy machine adds.
	first, last := tries[1].Sub(tries[0]), tries[faults].Sub(tries[faults-1])
	if first < 50*time.Millisecond || last < 200*time.Millisecond {
		t.Errorf("the first pause was %s and the last %s", first, last)
	}
	for i := range n {
		f.wantCounts("writes that the API server saw", ofPod(f.requests(d.userAgent), fmt.Sprintf("pod-%d", i)), count{Writes: 1})
	}
}

func TestB25_AFaultThatStaysIsReportedForItsPod(t *testing.T) {
	f := newFixture(t)
	g := newGate(t, suite.config)
	d := f.newDaemon(daemonOptions{name: "staying", config: g.config})
	wf := f.workflow("wf")
	f.podsNamed(wf, "pod", 3)
	f.waitPods(d, wf, 3)
	g.intercept(func(r *http.Request) http.Handler {
		if isWriteOf(r, "pod-1") {
			return apiFault(http.StatusInternalServerError, metav1.StatusReasonInternalError)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(f.ctx, 4*time.Second)
	defer cancel()
	got, err := d.DeleteWorkflowPods(ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true})
	if err != nil || got.GetSummary().GetDeleted() != 2 || got.GetSummary().GetNeedsAttention() != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	r := got.GetResults()[1]
	wantResult(t, r, pb.Outcome_OUTCOME_FAILED, pb.HoldReason_HOLD_REASON_FORCED)
	if r.GetPod() != "pod-1" || r.GetCode() == 0 || r.GetErrorReason() == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		t.Errorf("the fault is told as %v", r)
	}
}

func TestB34_FaultsOfTheAPIServerAreUnavailableAndProveNothing(t *testing.T) {
	for name, test := range map[string]struct {
		fault  http.Handler
		reason string
	}{
		"429":              {apiFault(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests), "API_THROTTLED"},
		"500":              {apiFault(http.StatusInternalServerError, metav1.StatusReasonInternalError), "API_UNAVAILABLE"},
		"a proxy's 502":    {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }), "API_UNAVAILABLE"},
		"no answer at all": {http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "API_UNAVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			g := newGate(t, suite.config)
			d := f.newDaemon(daemonOptions{name: "unavailable", config: g.config})
			wf := f.workflow("wf")
			pod := f.pod(wf, "pod")
			f.waitPods(d, wf, 1)
			g.intercept(func(r *http.Request) http.Handler {
				if isWatch(r) {
					return nil
				}
				return test.fault
			})
			for _, door := range d.doors() {
				_, err := door.ReleasePod(f.ctx, f.releasing("pod", string(pod.UID)))
				wantError(t, err, codes.Unavailable, test.reason)
				wantRetryInfo(t, err)
				// The workflow cannot be read: neither gone nor captured.
				_, err = door.ReleasePod(f.ctx, f.verifying("pod"))
				wantError(t, err, codes.Unavailable, test.reason)
				_, err = door.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: "pod"})
				wantError(t, err, codes.Unavailable, test.reason)
			}
			f.wantUntouched(pod)
			g.intercept(nil)
			if _, err := d.ReleasePod(f.ctx, f.releasing("pod", string(pod.UID))); err != nil {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

func wantRetryInfo(t *testing.T, err error) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok && r.GetRetryDelay().AsDuration() > 0 {
			return
		}
	}
	t.Errorf("%v carries no RetryInfo", err)
}

func TestAFullLaneIsBusy(t *testing.T) {
	f := newFixture(t)
	g := newGate(t, suite.config)
	d := f.newDaemon(daemonOptions{name: "busy", config: g.config, maxWaiters: 1})
	wf := f.workflow("wf")
	f.podsNamed(wf, "pod", 1)
	f.waitPods(d, wf, 1)
	release := make(chan struct{})
	g.intercept(func(r *http.Request) http.Handler {
		if isWriteOf(r, "pod-0") {
			<-release
		}
		return nil
	})
	call := func(c pb.FinalizerServiceClient) error {
		_, err := c.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true})
		return err
	}
	var calls sync.WaitGroup
	for range 2 { // one holds the lane, one waits for it
		calls.Go(func() {
			if err := call(d); err != nil {
				t.Error(err)
			}
		})
	}
	f.eventually("the lane is full", func() (bool, error) { return f.metric(d, "finalizerd_lane_waiters") == "1", nil })
	for _, door := range d.doors() {
		err := call(door)
		wantError(t, err, codes.ResourceExhausted, "WORKFLOW_BUSY")
		wantRetryInfo(t, err)
	}
	close(release)
	calls.Wait()
}

func TestErrorsOverBothDoors(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	pod := f.pod(wf, "pod")
	f.waitPods(d, wf, 1)
	const strange = "5d1f9a52-0000-4000-8000-000000000000"
	for _, door := range d.doors() {
		for name, test := range map[string]struct {
			call   func() error
			code   codes.Code
			reason string
		}{
			"AddFinalizer on no pod": {func() error {
				_, err := door.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: "nobody"})
				return err
			}, codes.NotFound, "POD_NOT_FOUND"},
			"GetPod of no pod": {func() error {
				_, err := door.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: "nobody"})
				return err
			}, codes.NotFound, "POD_NOT_FOUND"},
			"AddFinalizer on another UID": {func() error {
				_, err := door.AddFinalizer(f.ctx, &pb.AddFinalizerRequest{Namespace: f.ns, Pod: "pod", PodUid: strange})
				return err
			}, codes.FailedPrecondition, "POD_REPLACED"},
			"a name that Kubernetes would not accept": {func() error {
				_, err := door.ReleasePod(f.ctx, &pb.ReleasePodRequest{Namespace: f.ns, Pod: "Not_A_Name"})
				return err
			}, codes.InvalidArgument, "INVALID_ARGUMENT"},
			"an empty selection": {func() error {
				_, err := door.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name})
				return err
			}, codes.InvalidArgument, "INVALID_ARGUMENT"},
			"a page token of nowhere": {func() error {
				_, err := door.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: f.ns, PageToken: "nowhere"})
				return err
			}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		} {
			t.Run(door.name+" "+name, func(t *testing.T) { wantError(t, test.call(), test.code, test.reason) })
		}
	}
	f.wantUntouched(pod)
}
