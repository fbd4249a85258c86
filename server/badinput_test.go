package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

const uid1 = "0b2d3f6a-8a55-4d1a-9f3e-2f4f8f0f7a11"

// badRequests are refused before the core is asked, whichever way they come.
// The messages are sent over gRPC as they are, and over REST by path, body and
// query. Each answer names the field.
var badRequests = []struct {
	name  string
	msg   proto.Message
	field string
}{
	{"add without a namespace", &pb.AddFinalizerRequest{Pod: "p"}, "namespace"},
	{"add without a pod", &pb.AddFinalizerRequest{Namespace: "argo"}, "pod"},
	{"add with a namespace of 64 characters", &pb.AddFinalizerRequest{Namespace: strings.Repeat("a", 64), Pod: "p"}, "namespace"},
	{"add with capitals in the namespace", &pb.AddFinalizerRequest{Namespace: "Argo", Pod: "p"}, "namespace"},
	{"add with a dot in the namespace", &pb.AddFinalizerRequest{Namespace: "ar.go", Pod: "p"}, "namespace"},
	{"add with a pod of 254 characters", &pb.AddFinalizerRequest{Namespace: "argo", Pod: strings.Repeat("a", 254)}, "pod"},
	{"add with an underscore in the pod", &pb.AddFinalizerRequest{Namespace: "argo", Pod: "a_b"}, "pod"},
	{"add with a UID of 65 characters", &pb.AddFinalizerRequest{Namespace: "argo", Pod: "p", PodUid: strings.Repeat("a", 65)}, "pod_uid"},
	{"add with a quote in the UID", &pb.AddFinalizerRequest{Namespace: "argo", Pod: "p", PodUid: `u"}`}, "pod_uid"},
	{"release without a namespace", &pb.ReleasePodRequest{Pod: "p"}, "namespace"},
	{"release without a pod", &pb.ReleasePodRequest{Namespace: "argo"}, "pod"},
	{"B45 release with captured and no UID", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p", Captured: true}, "pod_uid"},
	{"release with a path for a namespace", &pb.ReleasePodRequest{Namespace: "../kube-system", Pod: "p"}, "namespace"},
	{"release with a path for a pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "../../nodes/n"}, "pod"},
	{"release with a slash in the pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p/eviction"}, "pod"},
	{"release with an encoded slash in the pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p%2feviction"}, "pod"},
	{"release with a doubly encoded slash in the pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p%252feviction"}, "pod"},
	{"release with a dot for a pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "."}, "pod"},
	{"release with two dots for a pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: ".."}, "pod"},
	{"release with a query in the pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p?force=true"}, "pod"},
	{"release with a fragment in the pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p#x"}, "pod"},
	{"release with a NUL in the pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p\x00"}, "pod"},
	{"release with a line break in the pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p\n"}, "pod"},
	{"release with a space in the pod", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p q"}, "pod"},
	{"release with a look-alike letter", &pb.ReleasePodRequest{Namespace: "argo", Pod: "рod"}, "pod"},
	{"release with an emoji", &pb.ReleasePodRequest{Namespace: "🙂", Pod: "p"}, "namespace"},
	{"release with a UID of spaces", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p", PodUid: "   "}, "pod_uid"},
	{"release with a UID that is not ASCII", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p", PodUid: "ü"}, "pod_uid"},
	{"release of a megabyte's name", &pb.ReleasePodRequest{Namespace: "argo", Pod: "p", PodUid: strings.Repeat("a", 1<<20)}, "pod_uid"},
	{"delete without a namespace", &pb.DeleteWorkflowPodsRequest{Workflow: "w", All: true}, "namespace"},
	{"delete without a workflow", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", All: true}, "workflow"},
	{"B30 delete with a workflow of 64 characters", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: strings.Repeat("w", 64), All: true}, "workflow"},
	{"delete with a path for a workflow", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "..", All: true}, "workflow"},
	{"delete with capitals in the workflow", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "W", All: true}, "workflow"},
	{"delete with a bad workflow UID", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", WorkflowUid: "a b", All: true}, "workflow_uid"},
	{"delete without a selection", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w"}, "all"},
	{"delete of all and of nodes", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, NodeIds: []string{"n"}}, "all"},
	{"delete of nodes and of pods", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: []string{"n"}, Pods: refs(1)}, "all"},
	{"delete of an empty node ID", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: []string{"n", ""}}, "node_ids[1]"},
	{"delete of a node ID that is no name", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: []string{"a,b"}}, "node_ids[0]"},
	{"delete of a node ID of 254 characters", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: []string{strings.Repeat("n", 254)}}, "node_ids[0]"},
	{"delete of 10,001 nodes", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: names(10_001)}, "node_ids"},
	{"delete of 10,001 pods", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Pods: refs(10_001)}, "pods"},
	{"delete of a pod without a UID", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Pods: []*pb.PodRef{{Name: "p"}}}, "pods[0].uid"},
	{"delete of a pod without a name", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Pods: []*pb.PodRef{{Uid: uid1}}}, "pods[0].name"},
	{"delete of a pod with a path for a name", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Pods: []*pb.PodRef{{Name: "../x", Uid: uid1}}}, "pods[0].name"},
	{"delete with an empty pod", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Pods: []*pb.PodRef{{}}}, "pods[0].uid"},
	{"B45 delete of all with captured", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, Captured: true}, "captured"},
	{"B45 delete of nodes with captured", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", NodeIds: []string{"n"}, Captured: true}, "captured"},
	{"B45 delete of pods with captured and no UID", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Pods: []*pb.PodRef{{Name: "p"}}, Captured: true}, "pods[0].uid"},
	{"delete with a timeout and no wait", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, WaitTimeout: durationpb.New(time.Second)}, "wait_timeout"},
	{"delete with a negative timeout", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, Wait: true, WaitTimeout: durationpb.New(-time.Second)}, "wait_timeout"},
	{"delete with a timeout over a day", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, Wait: true, WaitTimeout: durationpb.New(24*time.Hour + 1)}, "wait_timeout"},
	{"delete with a timeout of ten thousand years", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, Wait: true, WaitTimeout: &durationpb.Duration{Seconds: 315_576_000_000}}, "wait_timeout"},
	{"delete with a request ID of 129 characters", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, RequestId: strings.Repeat("r", 129)}, "request_id"},
	{"delete with a space in the request ID", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, RequestId: "a b"}, "request_id"},
	{"delete with a request ID that is not ASCII", &pb.DeleteWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, RequestId: "é"}, "request_id"},
	{"release of all without a workflow", &pb.ReleaseWorkflowPodsRequest{Namespace: "argo", All: true}, "workflow"},
	{"B30 release of all with a workflow of 64 characters", &pb.ReleaseWorkflowPodsRequest{Namespace: "argo", Workflow: strings.Repeat("w", 64), All: true}, "workflow"},
	{"release without a selection", &pb.ReleaseWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Force: true}, "all"},
	{"B45 release of all with captured", &pb.ReleaseWorkflowPodsRequest{Namespace: "argo", Workflow: "w", All: true, Captured: true}, "captured"},
	{"release of pods with a bad UID", &pb.ReleaseWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Pods: []*pb.PodRef{{Name: "p", Uid: "u/1"}}}, "pods[0].uid"},
	{"get without a pod", &pb.GetPodRequest{Namespace: "argo"}, "pod"},
	{"get with a path for a namespace", &pb.GetPodRequest{Namespace: "../x", Pod: "p"}, "namespace"},
	{"get with a trailing dash", &pb.GetPodRequest{Namespace: "argo", Pod: "p-"}, "pod"},
	{"list with a bad namespace", &pb.ListPodsRequest{Namespace: "a_b"}, "namespace"},
	{"list of a workflow without a namespace", &pb.ListPodsRequest{Workflow: "w"}, "namespace"},
	{"B30 list of a workflow of 64 characters", &pb.ListPodsRequest{Namespace: "argo", Workflow: strings.Repeat("w", 64)}, "workflow"},
	{"list with a negative page size", &pb.ListPodsRequest{PageSize: -1}, "page_size"},
	{"list with the smallest number as page size", &pb.ListPodsRequest{PageSize: -1 << 31}, "page_size"},
	{"list with an unknown reason", &pb.ListPodsRequest{Reason: 99}, "reason"},
	{"list with a negative reason", &pb.ListPodsRequest{Reason: -1}, "reason"},
	{"list with a token that is no token", &pb.ListPodsRequest{PageToken: "nope"}, "page_token"},
	{"list with a token of another alphabet", &pb.ListPodsRequest{PageToken: "///+++"}, "page_token"},
	{"list with a huge token", &pb.ListPodsRequest{PageToken: strings.Repeat("A", 5000)}, "page_token"},
	{"watch without a workflow", &pb.WatchWorkflowPodsRequest{Namespace: "argo"}, "workflow"},
	{"B30 watch of a workflow of 64 characters", &pb.WatchWorkflowPodsRequest{Namespace: "argo", Workflow: strings.Repeat("w", 64)}, "workflow"},
	{"watch with a bad workflow UID", &pb.WatchWorkflowPodsRequest{Namespace: "argo", Workflow: "w", WorkflowUid: "*"}, "workflow_uid"},
	{"watch until an unknown condition", &pb.WatchWorkflowPodsRequest{Namespace: "argo", Workflow: "w", Until: 7}, "until"},
}

func refs(n int) []*pb.PodRef {
	out := make([]*pb.PodRef, n)
	for i := range out {
		out[i] = &pb.PodRef{Name: fmt.Sprintf("p-%d", i), Uid: uid1}
	}
	return out
}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("n-%d", i)
	}
	return out
}

func TestBadRequestsAreRefusedBeforeTheCore(t *testing.T) {
	if len(badRequests) < 60 {
		t.Fatalf("only %d cases", len(badRequests))
	}
	r := start(t, unreachableCore(t))
	row := rowOf(t, pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT)
	for _, tc := range badRequests {
		t.Run(tc.name+" over gRPC", func(t *testing.T) {
			err := call(t.Context(), r, tc.msg)
			wantStatus(t, err, row)
			if !hasField(violations(err), tc.field) {
				t.Errorf("violations %v do not name %s", violations(err), tc.field)
			}
		})
		t.Run(tc.name+" over REST", func(t *testing.T) {
			method, path, body, whole := restOf(t, tc.msg)
			a := r.rest(t, method, path, body)
			if !whole { // a path without one of its parts is another path, or none
				if a.code != 400 && a.code != 404 && a.code != 405 {
					t.Errorf("got HTTP %d %s", a.code, a.body)
				}
				_ = a.status(t)
				return
			}
			checkRESTError(t, a, row)
			if !strings.Contains(a.body, tc.field) {
				t.Errorf("the body does not name %s: %s", tc.field, a.body)
			}
			if len(a.body) > 16<<10 {
				t.Errorf("the answer has %d bytes", len(a.body))
			}
		})
	}
}

func call(ctx context.Context, c pb.FinalizerServiceClient, msg proto.Message) (err error) {
	switch m := msg.(type) {
	case *pb.AddFinalizerRequest:
		_, err = c.AddFinalizer(ctx, m)
	case *pb.ReleasePodRequest:
		_, err = c.ReleasePod(ctx, m)
	case *pb.DeleteWorkflowPodsRequest:
		_, err = c.DeleteWorkflowPods(ctx, m)
	case *pb.ReleaseWorkflowPodsRequest:
		_, err = c.ReleaseWorkflowPods(ctx, m)
	case *pb.GetPodRequest:
		_, err = c.GetPod(ctx, m)
	case *pb.ListPodsRequest:
		_, err = c.ListPods(ctx, m)
	case *pb.WatchWorkflowPodsRequest:
		err = watchError(c.WatchWorkflowPods(ctx, m))
	}
	return err
}

// restOf is a message as HTTP. whole is false when a part of the path is empty.
func restOf(t *testing.T, msg proto.Message) (method, path, body string, whole bool) {
	t.Helper()
	ns, _ := msg.(interface{ GetNamespace() string })
	pod, _ := msg.(interface{ GetPod() string })
	wf, _ := msg.(interface{ GetWorkflow() string })
	pods := func(suffix string) string {
		return "/v1/namespaces/" + url.PathEscape(ns.GetNamespace()) + "/pods/" + url.PathEscape(pod.GetPod()) + suffix
	}
	workflows := func(suffix string) string {
		return "/v1/namespaces/" + url.PathEscape(ns.GetNamespace()) + "/workflows/" + url.PathEscape(wf.GetWorkflow()) + suffix
	}
	whole = ns.GetNamespace() != "" && (pod == nil || pod.GetPod() != "") && (wf == nil || wf.GetWorkflow() != "")
	switch m := msg.(type) {
	case *pb.AddFinalizerRequest:
		return http.MethodPost, pods(":addFinalizer"), jsonBody(t, msg), whole
	case *pb.ReleasePodRequest:
		return http.MethodPost, pods(":release"), jsonBody(t, msg), whole
	case *pb.DeleteWorkflowPodsRequest:
		return http.MethodPost, workflows(":deletePods"), jsonBody(t, msg), whole
	case *pb.ReleaseWorkflowPodsRequest:
		return http.MethodPost, workflows(":releasePods"), jsonBody(t, msg), whole
	case *pb.GetPodRequest:
		return http.MethodGet, pods(""), "", whole
	case *pb.WatchWorkflowPodsRequest:
		return http.MethodGet, workflows("/pods:watch?") + queryOf(t, m, "namespace", "workflow"), "", whole
	case *pb.ListPodsRequest:
		if m.GetNamespace() == "" {
			return http.MethodGet, "/v1/pods?" + queryOf(t, m), "", true
		}
		return http.MethodGet, "/v1/namespaces/" + url.PathEscape(m.GetNamespace()) + "/pods?" + queryOf(t, m, "namespace"), "", true
	}
	t.Fatalf("no REST form of %T", msg)
	return "", "", "", false
}

func jsonBody(t *testing.T, msg proto.Message) string {
	t.Helper()
	raw, err := protojson.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "namespace")
	delete(fields, "pod")
	delete(fields, "workflow")
	raw, err = json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// queryOf has the set fields of a message, without those of its path.
func queryOf(t *testing.T, msg proto.Message, path ...string) string {
	t.Helper()
	raw, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	for _, p := range path {
		delete(fields, p)
	}
	values := make(url.Values)
	for key, value := range fields {
		if number, ok := value.(float64); ok {
			value = int64(number)
		}
		values.Set(key, fmt.Sprint(value))
	}
	return values.Encode()
}

func violations(err error) []string {
	var out []string
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				out = append(out, v.GetField())
			}
		}
	}
	return out
}

func hasField(fields []string, want string) bool {
	for _, f := range fields {
		if f == want {
			return true
		}
	}
	return false
}
