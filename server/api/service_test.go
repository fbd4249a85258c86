package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// recorder remembers the requests and answers with what it has.
type recorder struct {
	asked   []any
	results []finalizer.Result
	view    finalizer.View
	page    finalizer.Page
}

func (c *recorder) one() finalizer.Result {
	if len(c.results) == 0 {
		return finalizer.Result{}
	}
	return c.results[0]
}

func (c *recorder) AddFinalizer(_ context.Context, r finalizer.AddRequest) (finalizer.Result, error) {
	c.asked = append(c.asked, r)
	return c.one(), nil
}

func (c *recorder) ReleasePod(_ context.Context, r finalizer.ReleaseRequest) (finalizer.Result, error) {
	c.asked = append(c.asked, r)
	return c.one(), nil
}

func (c *recorder) Bulk(_ context.Context, r finalizer.BulkRequest) ([]finalizer.Result, error) {
	c.asked = append(c.asked, r)
	return c.results, nil
}

func (c *recorder) GetPod(context.Context, string, string) (finalizer.View, error) {
	return c.view, nil
}

func (c *recorder) ListPods(_ context.Context, r finalizer.ListRequest) (finalizer.Page, error) {
	c.asked = append(c.asked, r)
	return c.page, nil
}

func (c *recorder) Watch(context.Context, finalizer.WatchRequest, func(finalizer.Step) error) error {
	return nil
}

func service(c Core) *Service { return New(Config{Core: c, Log: slog.New(slog.DiscardHandler)}) }

func TestRequestsReachTheCoreUnchanged(t *testing.T) {
	id := finalizer.PodID{Namespace: "argo", Name: "p", UID: "u"}
	key := finalizer.WorkflowKey{Namespace: "argo", Name: "w"}
	for name, tc := range map[string]struct {
		call func(*Service) error
		want any
	}{
		"add": {func(s *Service) error {
			_, err := s.AddFinalizer(t.Context(), &pb.AddFinalizerRequest{Namespace: "argo", Pod: "p", PodUid: "u", ValidateOnly: true})
			return err
		}, finalizer.AddRequest{Pod: id, ValidateOnly: true}},
		"release": {func(s *Service) error {
			_, err := s.ReleasePod(t.Context(), &pb.ReleasePodRequest{Namespace: "argo", Pod: "p", PodUid: "u", Captured: true, MarkCompleted: true, Force: true, ValidateOnly: true})
			return err
		}, finalizer.ReleaseRequest{Pod: id, Captured: true, MarkCompleted: true, Force: true, ValidateOnly: true}},
		"delete of pods, waiting": {func(s *Service) error {
			_, err := s.DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", WorkflowUid: "wu",
				Pods: []*pb.PodRef{{Name: "p", Uid: "u"}, {Name: "p", Uid: "u"}}, Captured: true, Force: true, Wait: true,
				WaitTimeout: durationpb.New(24 * time.Hour), ValidateOnly: true, RequestId: "r!~"})
			return err
		}, finalizer.BulkRequest{Workflow: key, WorkflowUID: "wu", Pods: []finalizer.PodRef{{Name: "p", UID: "u"}, {Name: "p", UID: "u"}},
			Delete: true, Captured: true, Force: true, Wait: true, WaitTimeout: 24 * time.Hour, ValidateOnly: true, RequestID: "r!~"}},
		"a wait of 0s is no wait": {func(s *Service) error {
			_, err := s.DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, Wait: true, WaitTimeout: durationpb.New(0)})
			return err
		}, finalizer.BulkRequest{Workflow: key, All: true, Delete: true}},
		"a wait without a timeout has no limit": {func(s *Service) error {
			_, err := s.DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, Wait: true})
			return err
		}, finalizer.BulkRequest{Workflow: key, All: true, Delete: true, Wait: true}},
		"release of nodes": {func(s *Service) error {
			_, err := s.ReleaseWorkflowPods(t.Context(), &pb.ReleaseWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: []string{"n"}, MarkCompleted: true})
			return err
		}, finalizer.BulkRequest{Workflow: key, NodeIDs: []string{"n"}, MarkCompleted: true}},
		"list with the default page": {func(s *Service) error {
			_, err := s.ListPods(t.Context(), &pb.ListPodsRequest{})
			return err
		}, finalizer.ListRequest{Limit: DefaultPageSize}},
		"list with a huge page": {func(s *Service) error {
			_, err := s.ListPods(t.Context(), &pb.ListPodsRequest{Namespace: "argo", Workflow: "w", Reason: pb.HoldReason_HOLD_REASON_ORPHANED, PageSize: math.MaxInt32})
			return err
		}, finalizer.ListRequest{Namespace: "argo", Workflow: "w", Reason: finalizer.ReasonOrphaned, Limit: MaxPageSize}},
		"the longest names that Kubernetes accepts": {func(s *Service) error {
			_, err := s.AddFinalizer(t.Context(), &pb.AddFinalizerRequest{Namespace: strings.Repeat("a", 63), Pod: strings.Repeat("a", 253), PodUid: strings.Repeat("A", 64)})
			return err
		}, finalizer.AddRequest{Pod: finalizer.PodID{Namespace: strings.Repeat("a", 63), Name: strings.Repeat("a", 253), UID: uid(strings.Repeat("A", 64))}}},
	} {
		t.Run(name, func(t *testing.T) {
			core := &recorder{}
			if err := tc.call(service(core)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]any{tc.want}, core.asked); diff != "" {
				t.Errorf("the core was asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodAsTheServiceSeesIt(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	core := &recorder{view: finalizer.View{
		Pod: finalizer.Pod{
			PodID:      finalizer.PodID{Namespace: "argo", Name: "p", UID: "u"},
			Owner:      finalizer.Owner{Group: "argoproj.io", Kind: "Workflow", Name: "w", UID: "wu"},
			Finalizers: []string{"a/b", finalizer.DefaultFinalizer, "c/d"}, NodeID: "n", Completed: true,
			CreatedAt: created, DeletedAt: created.Add(90 * time.Second), GraceSeconds: 30,
		},
		Held: true, Releasable: true, Reason: finalizer.ReasonCaptured, Explanation: "because",
		Since: created.Add(time.Second), ReleaseAt: created.Add(time.Hour),
	}}
	got, err := service(core).GetPod(t.Context(), &pb.GetPodRequest{Namespace: "argo", Pod: "p"})
	if err != nil {
		t.Fatal(err)
	}
	want := &pb.GetPodResponse{Pod: &pb.Pod{
		Namespace: "argo", Name: "p", Uid: "u", Workflow: "w", WorkflowUid: "wu", NodeId: "n", Held: true, Releasable: true,
		HoldReason: pb.HoldReason_HOLD_REASON_CAPTURED, Explanation: "because", ForeignFinalizers: []string{"a/b", "c/d"},
		Completed: true, CreateTime: timestamppb.New(created), DeleteTime: timestamppb.New(created.Add(time.Minute)),
		SinceTime: timestamppb.New(created.Add(time.Second)), ReleaseTime: timestamppb.New(created.Add(time.Hour)),
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	core.view.Since, core.view.ReleaseAt = time.Time{}, time.Time{}
	if got, err = service(core).GetPod(t.Context(), &pb.GetPodRequest{Namespace: "argo", Pod: "p"}); err != nil ||
		got.GetPod().GetSinceTime() != nil || got.GetPod().GetReleaseTime() != nil {
		t.Errorf("times that are not known: %v, error %v", got, err)
	}
	core.view.Pod.Owner.Kind = "Job"
	if got, err = service(core).GetPod(t.Context(), &pb.GetPodRequest{Namespace: "argo", Pod: "p"}); err != nil || got.GetPod().GetWorkflow() != "" {
		t.Errorf("B7 a pod of a Job has workflow %q, error %v", got.GetPod().GetWorkflow(), err)
	}
}

func TestEachOutcomeIsCountedOnce(t *testing.T) {
	core := &recorder{}
	for o := range constants(t, "outcome.go", "Outcome") {
		switch o := finalizer.Outcome(o); o {
		case finalizer.OutcomeUnknown, finalizer.OutcomeAdded, finalizer.OutcomeAlreadyHeld: // not of a bulk call
		default:
			core.results = append(core.results, finalizer.Result{Outcome: o, Err: &finalizer.Error{Message: "m", Field: "spec", Webhook: "hook"}})
		}
	}
	got, err := service(core).ReleaseWorkflowPods(t.Context(), &pb.ReleaseWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true})
	if err != nil {
		t.Fatal(err)
	}
	want := &pb.Summary{Total: 11, Released: 1, Deleted: 1, Deleting: 1, AlreadyDone: 2, NotCaptured: 1, Skipped: 2, NeedsAttention: 3}
	if diff := cmp.Diff(want, got.GetSummary(), protocmp.Transform()); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	for _, r := range got.GetResults() {
		failed := r.GetOutcome() == pb.Outcome_OUTCOME_FAILED
		if (r.GetCode() != 0) != failed || (r.GetErrorReason() != 0) != failed {
			t.Errorf("%s has code %d and reason %s", r.GetOutcome(), r.GetCode(), r.GetErrorReason())
		}
		if blocked := r.GetOutcome() == pb.Outcome_OUTCOME_BLOCKED_BY_ADMISSION; (r.GetWebhook() == "hook" && r.GetField() == "spec") != blocked {
			t.Errorf("%s has field %q and webhook %q", r.GetOutcome(), r.GetField(), r.GetWebhook())
		}
	}
}

func TestPageToken(t *testing.T) {
	core := &recorder{page: finalizer.Page{More: true, Next: finalizer.PodID{Namespace: "argo", Name: "p-1", UID: "u"}}}
	s := service(core)
	first := &pb.ListPodsRequest{Namespace: "argo", Workflow: "w", Reason: pb.HoldReason_HOLD_REASON_CAPTURED, PageSize: 5}
	page, err := s.ListPods(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	token := page.GetNextPageToken()
	query := func(change func(*pb.ListPodsRequest)) error {
		r := &pb.ListPodsRequest{Namespace: "argo", Workflow: "w", Reason: pb.HoldReason_HOLD_REASON_CAPTURED, PageSize: 7, PageToken: token}
		change(r)
		_, err := s.ListPods(t.Context(), r)
		return err
	}
	if err := query(func(*pb.ListPodsRequest) {}); err != nil {
		t.Fatalf("the same query with another page size: %v", err)
	}
	if got := core.asked[1].(finalizer.ListRequest).After; got != core.page.Next {
		t.Errorf("the next page begins after %v, want %v", got, core.page.Next)
	}
	core.page.More = false
	if page, err = s.ListPods(t.Context(), first); err != nil || page.GetNextPageToken() != "" {
		t.Errorf("the last page has token %q, error %v", page.GetNextPageToken(), err)
	}

	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	edited := func(from, to string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), from, to, 1)))
	}
	for name, change := range map[string]func(*pb.ListPodsRequest){
		"another namespace":         func(r *pb.ListPodsRequest) { r.Namespace = "other" },
		"another workflow":          func(r *pb.ListPodsRequest) { r.Workflow = "other" },
		"another reason":            func(r *pb.ListPodsRequest) { r.Reason = 0 },
		"an edited position":        func(r *pb.ListPodsRequest) { r.PageToken = edited("p-1", "p-9") },
		"an edited version":         func(r *pb.ListPodsRequest) { r.PageToken = edited(`"v":1`, `"v":2`) },
		"a token that is cut":       func(r *pb.ListPodsRequest) { r.PageToken = token[:len(token)-3] },
		"a token with an addition":  func(r *pb.ListPodsRequest) { r.PageToken = token + "AAAA" },
		"a token with a line break": func(r *pb.ListPodsRequest) { r.PageToken = token[:8] + "\n" + token[8:] },
		"a token of JSON alone":     func(r *pb.ListPodsRequest) { r.PageToken = base64.RawURLEncoding.EncodeToString(raw[sumLen:]) },
		"a token with padding":      func(r *pb.ListPodsRequest) { r.PageToken = token + "=" },
	} {
		t.Run(name, func(t *testing.T) {
			err := query(change)
			if finalizer.KindOf(err) != finalizer.KindInvalid || !strings.Contains(err.Error(), "page_token") {
				t.Errorf("got %v", err)
			}
		})
	}
	if !json.Valid(raw[sumLen:]) {
		t.Error("the token is not JSON after its checksum")
	}
}

func FuzzPageToken(f *testing.F) {
	r := &pb.ListPodsRequest{Namespace: "argo"}
	f.Add(sealToken(r, finalizer.PodID{Namespace: "argo", Name: "p", UID: "u"}))
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		q := &pb.ListPodsRequest{Namespace: "argo", PageToken: token}
		after, err := openToken(q)
		if err != nil {
			return
		}
		if again := sealToken(q, after); again != token {
			t.Errorf("%q was accepted, its position has token %q", token, again)
		}
	})
}

func TestAllViolationsAreTold(t *testing.T) {
	_, err := service(&recorder{}).DeleteWorkflowPods(t.Context(), &pb.DeleteWorkflowPodsRequest{
		Workflow: "W", WorkflowUid: "?", RequestId: " ", Captured: true, WaitTimeout: durationpb.New(-1),
	})
	st := StatusOf(err)
	var got []string
	for _, v := range err.(*finalizer.Error).Violations {
		got = append(got, v.Field)
	}
	want := []string{"namespace", "workflow", "workflow_uid", "request_id", "all", "captured", "wait_timeout", "wait_timeout"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("violated fields (-want +got):\n%s", diff)
	}
	if !strings.Contains(st.Message(), "namespace is required (and 7 more faults)") {
		t.Errorf("message is %q", st.Message())
	}
}
