package e2e

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

func rule(group, resource string, verbs ...string) rbac.PolicyRule {
	return rbac.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// grant gives the user limited these rights and no others.
func (f *fixture) grant(rules ...rbac.PolicyRule) {
	f.t.Helper()
	role := &rbac.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: f.ns}, Rules: rules}
	if _, err := suite.admin.RbacV1().ClusterRoles().Update(f.ctx, role, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// bindLimited binds the user limited to a role that gives nothing yet.
func (f *fixture) bindLimited() {
	f.t.Helper()
	meta := metav1.ObjectMeta{Name: f.ns}
	if _, err := suite.admin.RbacV1().ClusterRoles().Create(f.ctx, &rbac.ClusterRole{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	if _, err := suite.admin.RbacV1().ClusterRoleBindings().Create(f.ctx, &rbac.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbac.Subject{{Kind: rbac.UserKind, APIGroup: rbac.GroupName, Name: "limited"}},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: f.ns},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// readiness returns what /readyz says.
func (f *fixture) readiness(d *daemon) (ready bool, text string) {
	f.t.Helper()
	code, body, err := restConn{d.rest}.do(f.ctx, http.MethodGet, "/readyz?verbose", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return code == http.StatusOK, string(body)
}

// waitUnready waits until readiness names the right that is lacking.
func (f *fixture) waitUnready(d *daemon, right string) {
	f.t.Helper()
	f.eventually("readiness names "+right, func() (bool, error) {
		ready, text := f.readiness(d)
		return !ready && strings.Contains(text, right), nil
	})
}

func (f *fixture) waitReadyz(d *daemon) {
	f.t.Helper()
	f.eventually("finalizerd is ready", func() (bool, error) {
		ready, _ := f.readiness(d)
		return ready, nil
	})
}

// The steps build on each other: there is one user limited.
func TestB14_AMissingRightIsNamedAndItsGrantHeals(t *testing.T) {
	f := newFixture(t)
	config, err := suite.configOf("limited")
	if err != nil {
		t.Fatal(err)
	}
	f.bindLimited()
	d := f.newDaemon(daemonOptions{name: "limited", config: config})
	wf := f.workflow("wf", podNode("pod", "Running"))
	pod := f.pod(wf, "pod")

	t.Log("no right at all: the caches cannot be filled")
	f.waitUnready(d, "list pods")
	for _, door := range d.doors() {
		_, err := door.ReleasePod(f.ctx, f.releasing("pod", string(pod.UID)))
		wantError(t, err, codes.Unavailable, "NOT_SYNCED")
	}

	t.Log("pods may be read: workflows cannot, which proves nothing about them")
	f.grant(rule("", "pods", "get", "list", "watch"), rule("", "namespaces", "get", "list", "watch"))
	f.eventually("the cache is filled", func() (bool, error) {
		_, err := d.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: f.ns})
		return err == nil, nil
	})
	for _, door := range d.doors() {
		_, err := door.ReleasePod(f.ctx, f.verifying("pod"))
		f.wantForbidden(err, "get", "workflows")
	}

	t.Log("all may be read: writes fail fast and name the verb")
	reads := []rbac.PolicyRule{
		rule("", "pods", "get", "list", "watch"), rule("", "namespaces", "get", "list", "watch"),
		rule("argoproj.io", "workflows", "get", "list", "watch"),
	}
	f.grant(reads...)
	f.eventually("workflows can be read", func() (bool, error) {
		_, err := d.ReleasePod(f.ctx, f.verifying("pod"))
		return errorInfo(err).GetReason() == "POD_NOT_CAPTURED", nil
	})
	for _, door := range d.doors() {
		_, err := door.ReleasePod(f.ctx, f.releasing("pod", string(pod.UID)))
		f.wantForbidden(err, "patch", "pods")
		got, err := door.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true})
		if err != nil {
			t.Fatal(err)
		}
		r := got.GetResults()[0]
		wantResult(t, r, pb.Outcome_OUTCOME_FAILED, pb.HoldReason_HOLD_REASON_FORCED)
		if r.GetErrorReason() != pb.ErrorReason_ERROR_REASON_SERVICE_FORBIDDEN || codes.Code(r.GetCode()) != codes.Internal {
			t.Errorf("%s: %v", door.name, r)
		}
	}
	f.waitUnready(d, "patch pods")
	f.wantUntouched(pod)

	t.Log("granted: it heals by itself")
	f.grant(append(reads, rule("", "pods", "patch", "delete"))...)
	f.eventually("the forced delete succeeds", func() (bool, error) {
		got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true})
		return got.GetSummary().GetDeleted() == 1, err
	})
	f.waitReadyz(d)
}

func (f *fixture) wantForbidden(err error, verb, resource string) {
	f.t.Helper()
	meta := wantError(f.t, err, codes.Internal, "SERVICE_FORBIDDEN").GetMetadata()
	if meta["verb"] != verb || meta["resource"] != resource {
		f.t.Errorf("metadata %v, want %s %s", meta, verb, resource)
	}
}
