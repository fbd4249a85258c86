package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// serviceAccount is an account of the fixture's namespace, of which the
// administrator makes use; it has the rights of the ClusterRole of the
// namespace's name, which gives none yet.
func (f *fixture) serviceAccount() *rest.Config {
	f.t.Helper()
	meta := metav1.ObjectMeta{Name: f.ns}
	if _, err := f.plane.admin.RbacV1().ClusterRoles().Create(f.ctx, &rbac.ClusterRole{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.plane.admin.RbacV1().ClusterRoleBindings().Create(f.ctx, &rbac.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: f.ns, Name: "finalizerd"}},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: f.ns},
	}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	config := rest.CopyConfig(f.plane.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + f.ns + ":finalizerd",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + f.ns, "system:authenticated"},
	}
	return config
}

// readsOnly are all rights of the service but those to write.
func readsOnly() []rbac.PolicyRule {
	return []rbac.PolicyRule{
		rule("", "pods", "get", "list", "watch"), rule("", "namespaces", "get", "list", "watch"), rule("", "nodes", "get"),
		rule("argoproj.io", "workflows", "get", "list", "watch"),
	}
}

func TestB14_AnAccountThatMayNotPatchReleasesByItselfOnceItMay(t *testing.T) {
	f := newFixture(t)
	config := f.serviceAccount()
	f.grant(readsOnly()...)
	wf := f.workflow("wf", podNode("quiet", "Succeeded"), podNode("deleted", "Succeeded"))
	quiet, deleted := f.pod(wf, "quiet", inPhase(corev1.PodSucceeded)), f.pod(wf, "deleted", inPhase(corev1.PodSucceeded))
	f.deletePod("deleted")
	d := f.newReconciler(daemonOptions{name: "no-patch", config: config, policy: soon})
	f.waitUnready(d, "patch pods")
	f.stays("held", held, 3*time.Second, quiet, deleted)
	// No storm: a right that is missing is asked for again, but not often.
	refused := 0
	for _, r := range onlyWrites(f.requests(d.userAgent)) {
		if r.code != http.StatusForbidden {
			t.Errorf("%s", r)
		}
		refused++
	}
	if refused == 0 || refused > 30 {
		t.Errorf("%d refused writes", refused)
	}
	f.grant(append(readsOnly(), rule("", "pods", "patch", "delete"))...)
	f.waitFor("gone", gone, deleted)
	f.waitFor("released", leftReleased, quiet)
	f.waitReadyz(d)
	// The right to record events is a courtesy: without it all is released, and
	// readiness says so and stays.
	other := f.workflow("other", podNode("hidden", "Running"))
	hidden := f.pod(other, "hidden", inPhase(corev1.PodSucceeded), withLabel(labelDone, "true"))
	f.waitFor("shown again", shown, hidden)
	f.eventually("the lost events are told", func() (bool, error) {
		ready, text := f.readiness(d)
		return ready && strings.Contains(text, "create events"), nil
	})
}

func TestB14_WorkflowsThatMayNotBeReadProveNothing(t *testing.T) {
	f := newFixture(t)
	config := f.serviceAccount()
	f.grant(rule("", "pods", "get", "list", "watch", "patch", "delete"), rule("", "namespaces", "get", "list", "watch"), rule("", "nodes", "get"))
	wf := f.workflow("wf", podNode("deleted", "Running"), podNode("stored", "Succeeded"))
	stored := f.pod(wf, "stored", inPhase(corev1.PodSucceeded))
	deleted := f.pod(wf, "deleted", inPhase(corev1.PodSucceeded))
	f.deletePod("deleted")
	f.deletePod("stored")
	f.waitAge(3*time.Second, deleted)
	d := f.newReconciler(daemonOptions{name: "no-workflows", config: config, policy: soon})
	f.waitUnready(d, "workflows")
	f.stays("held", held, 5*time.Second, stored, deleted)
	if w := onlyWrites(f.requests(d.userAgent)); len(w) > 0 {
		t.Errorf("it wrote %v", w)
	}
	f.grant(append(readsOnly(), rule("", "pods", "patch", "delete"))...)
	f.waitFor("gone", gone, stored)
	f.wantHeld(deleted)
	f.waitReadyz(d)
}

// refusals notes the requests through the gate that the API server forbids.
func (g *gate) refusals() func() []string {
	var mu sync.Mutex
	var refused []string
	g.answered(func(r *http.Response) error {
		if r.StatusCode == http.StatusForbidden {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, fmt.Sprintf("%s %s", r.Request.Method, r.Request.URL.Path))
		}
		return nil
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return refused
	}
}
