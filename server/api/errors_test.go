package api

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// constants returns the names of the constant block of a file of package
// finalizer that begins with "name Type = iota", in order.
func constants(t *testing.T, file, typ string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../finalizer/"+file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, decl := range f.Decls {
		block, ok := decl.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		first, _ := block.Specs[0].(*ast.ValueSpec)
		if id, ok := first.Type.(*ast.Ident); !ok || id.Name != typ {
			continue
		}
		for _, spec := range block.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if name.IsExported() { // not the one that only marks the end
					names = append(names, name.Name)
				}
			}
		}
	}
	if len(names) == 0 {
		t.Fatalf("no constants of type %s in %s", typ, file)
	}
	return names
}

func TestEachKindHasExactlyOneRow(t *testing.T) {
	rows := make(map[finalizer.Kind]int)
	for _, row := range Table() {
		for _, k := range row.Kinds {
			rows[k]++
		}
	}
	for k, name := range constants(t, "errors.go", "Kind") {
		if n := rows[finalizer.Kind(k)]; n != 1 {
			t.Errorf("%s has %d rows in the error table", name, n)
		}
	}
}

func TestEachReasonHasExactlyOneRow(t *testing.T) {
	rows := make(map[pb.ErrorReason]int)
	for _, row := range Table() {
		rows[row.Reason]++
		if row.Means == "" || row.HTTP < 400 {
			t.Errorf("the row of %s lacks a meaning or an HTTP status", row.Reason)
		}
	}
	for number, name := range pb.ErrorReason_name {
		want := 1
		if number == 0 {
			want = 0
		}
		if n := rows[pb.ErrorReason(number)]; n != want {
			t.Errorf("%s has %d rows, want %d", name, n, want)
		}
	}
}

func TestOutcomesAndReasonsHaveTheNumbersOfTheProto(t *testing.T) {
	squash := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	alias := map[string]string{ // where the core has a shorter word
		"OutcomeUnknown": "unspecified", "OutcomeHeldByForeign": "heldbyforeignfinalizer", "OutcomeBlocked": "blockedbyadmission",
		"ReasonNone": "unspecified",
	}
	check := func(names []string, prefix, protoPrefix string, proto map[int32]string) {
		if len(names) != len(proto) {
			t.Errorf("%d constants %s, %d in the proto", len(names), prefix, len(proto))
		}
		for i, name := range names {
			want := alias[name]
			if want == "" {
				want = squash(strings.TrimPrefix(name, prefix))
			}
			if got := squash(strings.TrimPrefix(proto[int32(i)], protoPrefix)); got != want {
				t.Errorf("%s has number %d, which is %s in the proto", name, i, proto[int32(i)])
			}
		}
	}
	check(constants(t, "outcome.go", "Outcome"), "Outcome", "OUTCOME_", pb.Outcome_name)
	check(constants(t, "reason.go", "Reason"), "Reason", "HOLD_REASON_", pb.HoldReason_name)
	for i, r := range finalizer.Reasons() {
		if want := strings.TrimPrefix(pb.HoldReason(r).String(), "HOLD_REASON_"); int(r) != i+1 || r.String() != want {
			t.Errorf("reason %d is spelt %s, and %s in the proto", r, r, want)
		}
	}
	check(constants(t, "requests.go", "Until"), "Until", "WATCH_UNTIL_", map[int32]string{0: "WATCH_UNTIL_FOREVER", 1: "WATCH_UNTIL_RELEASED", 2: "WATCH_UNTIL_GONE"})
}

func TestStatusOf(t *testing.T) {
	pod := finalizer.PodID{Namespace: "argo", Name: "hello-1", UID: "u-1"}
	podMeta := func(more ...string) map[string]string {
		m := map[string]string{"namespace": "argo", "pod": "hello-1", "pod_uid": "u-1"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	for name, tc := range map[string]struct {
		err     error
		code    codes.Code
		reason  string
		meta    map[string]string
		message string
		retry   time.Duration
	}{
		"no error is OK": {},
		"not captured tells why the pod is kept": {
			err:  &finalizer.Error{Kind: finalizer.KindNotCaptured, Message: "m", Pod: pod, Reason: finalizer.ReasonNotCaptured},
			code: codes.FailedPrecondition, reason: "POD_NOT_CAPTURED", meta: podMeta("hold_reason", "NOT_CAPTURED"), message: "m",
		},
		"the default instance is told by an empty id": {
			err:  &finalizer.Error{Kind: finalizer.KindOtherInstance, Message: "m", Pod: pod},
			code: codes.FailedPrecondition, reason: "OTHER_INSTANCE", meta: podMeta("instance_id", ""), message: "m",
		},
		"a namespace of another service": {
			err:  &finalizer.Error{Kind: finalizer.KindNotServed, Message: "m"},
			code: codes.FailedPrecondition, reason: "NAMESPACE_NOT_SERVED", message: "m",
		},
		"B13 blocked by admission names field and webhook": {
			err:  &finalizer.Error{Kind: finalizer.KindBlocked, Message: "m", Pod: pod, Field: "spec.image", Webhook: "w.example.com"},
			code: codes.FailedPrecondition, reason: "BLOCKED_BY_ADMISSION", message: "m",
			meta: podMeta("field", "spec.image", "webhook", "w.example.com"),
		},
		"B14 a missing right names verb and resource": {
			err:  &finalizer.Error{Kind: finalizer.KindForbidden, Message: "m", Verb: "patch", Resource: "pods"},
			code: codes.Internal, reason: "SERVICE_FORBIDDEN", meta: map[string]string{"verb": "patch", "resource": "pods"}, message: "m",
		},
		"the API server's own delay goes before the table's": {
			err:  &finalizer.Error{Kind: finalizer.KindThrottled, Message: "m", RetryAfter: 7 * time.Second},
			code: codes.Unavailable, reason: "API_THROTTLED", message: "m", retry: 7 * time.Second,
		},
		"a busy workflow has the table's delay": {
			err:  &finalizer.Error{Kind: finalizer.KindBusy, Message: "m"},
			code: codes.ResourceExhausted, reason: "WORKFLOW_BUSY", message: "m", retry: time.Second,
		},
		"an error without a message has the row's": {
			err:  &finalizer.Error{Kind: finalizer.KindNoLeader},
			code: codes.Unavailable, reason: "NO_LEADER", message: "no replica holds the lease", retry: time.Second,
		},
		"a wrapped error is found": {
			err:  fmt.Errorf("outer: %w", &finalizer.Error{Kind: finalizer.KindGone, Message: "m"}),
			code: codes.NotFound, reason: "POD_NOT_FOUND", message: "m",
		},
		"a kind without a row is internal": {
			err: &finalizer.Error{Kind: 999, Message: "m"}, code: codes.Internal, reason: "INTERNAL", message: "m",
		},
		"an unknown error is internal and keeps its text": {
			err: errors.New("secret"), code: codes.Internal, reason: "INTERNAL", message: internalText,
		},
		"a deadline": {
			err:  fmt.Errorf("read: %w", context.DeadlineExceeded),
			code: codes.DeadlineExceeded, reason: "DEADLINE_EXCEEDED", message: "the deadline passed before the work was done",
		},
		"a caller that left": {
			err: context.Canceled, code: codes.Canceled, reason: "CANCELLED", message: "the caller left",
		},
		"a status of gRPC gets a reason": {
			err: status.Error(codes.InvalidArgument, "m"), code: codes.InvalidArgument, reason: "INVALID_ARGUMENT", message: "m",
		},
		"an internal status of gRPC keeps its text": {
			err: status.Error(codes.Unknown, "secret"), code: codes.Internal, reason: "INTERNAL", message: internalText,
		},
		"a message that is not UTF-8 is repaired": {
			err: &Refusal{Reason: pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT, Message: "a\xffb"}, code: codes.InvalidArgument,
			reason: "INVALID_ARGUMENT", message: "a\uFFFDb",
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := StatusOf(tc.err)
			if st.Code() != tc.code || st.Message() != tc.message || Reason(st) != tc.reason {
				t.Errorf("got %s %q %q, want %s %q %q", st.Code(), Reason(st), st.Message(), tc.code, tc.reason, tc.message)
			}
			var meta map[string]string
			var retry time.Duration
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					if meta = d.GetMetadata(); d.GetDomain() != Domain {
						t.Errorf("domain is %q", d.GetDomain())
					}
				case *errdetails.RetryInfo:
					retry = d.GetRetryDelay().AsDuration()
				}
			}
			if len(meta)+len(tc.meta) > 0 {
				if diff := cmp.Diff(tc.meta, meta); diff != "" {
					t.Errorf("metadata (-want +got):\n%s", diff)
				}
			}
			if retry != tc.retry {
				t.Errorf("retry delay is %s, want %s", retry, tc.retry)
			}
			if again := StatusOf(st.Err()); again.Message() != st.Message() || len(again.Details()) != len(st.Details()) {
				t.Errorf("a status that is complete changed: %v, was %v", again, st)
			}
		})
	}
}
