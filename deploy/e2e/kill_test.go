package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// kubeconfig is a file that leads through the gate.
func (g *gate) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":""}}]}`, g.config.Host)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// reconciling are the arguments of a process that acts by itself in the
// fixture's namespace.
func (f *fixture) reconciling(kubeconfig string) []string {
	return []string{"--kubeconfig", kubeconfig, "--reconcile=on", "--namespaces=" + f.ns, "--min-age=2s", "--capture-grace=1s"}
}

// moment is a write of a bulk delete, and whether the process is killed before the
// API server gets it or after it has answered and before the process knows.
type moment struct {
	verb, pod string
	answered  bool
}

func (s moment) String() string {
	name := map[string]string{http.MethodDelete: "DELETE", http.MethodPatch: "release"}[s.verb] + " of the " + s.pod + " pod"
	if s.answered {
		return "after the " + name
	}
	return "before the " + name
}

func (s moment) is(r *http.Request) bool {
	return r.Method == s.verb && strings.HasSuffix(r.URL.Path, "/pods/"+s.pod)
}

// killAt kills the process at the step. The returned channel is closed then.
func (g *gate) killAt(s moment, kill func()) <-chan struct{} {
	killed := make(chan struct{})
	once := sync.OnceFunc(func() {
		kill()
		close(killed)
	})
	if s.answered {
		g.answered(func(resp *http.Response) error {
			if s.is(resp.Request) {
				once()
				return errors.New("nobody is there to be told")
			}
			return nil
		})
		return killed
	}
	g.intercept(func(r *http.Request) http.Handler {
		if !s.is(r) {
			return nil
		}
		once()
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	})
	return killed
}

// A process is killed at each step of a forced bulk delete of a pod that is
// captured and one that is not; another takes its place.
func TestAKillAtAnyStepOfABulkDeleteLeavesTheRightEnd(t *testing.T) {
	for _, pod := range []string{"captured", "uncaptured"} {
		for _, verb := range []string{http.MethodDelete, http.MethodPatch} {
			for _, answered := range []bool{false, true} {
				s := moment{verb, pod, answered}
				t.Run(s.String(), func(t *testing.T) {
					f := newFixture(t)
					wf := f.workflow("wf", podNode("captured", "Succeeded"), podNode("uncaptured", "Running"))
					pods := map[string]*corev1.Pod{
						"captured":   f.pod(wf, "captured", inPhase(corev1.PodSucceeded)),
						"uncaptured": f.pod(wf, "uncaptured", inPhase(corev1.PodSucceeded)),
					}
					g := newGate(t, suite.config)
					kubeconfig := g.kubeconfig(t)
					// Without its reconciler: the pod at hand would be released before.
					p := f.startProcess("--kubeconfig", kubeconfig, "--namespaces="+f.ns)
					d := f.client(p)
					f.waitPods(d, wf, 2)
					killed := g.killAt(s, func() { _ = p.Process.Kill() })
					request := &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, Force: true, RequestId: "r1"}
					if got, err := d.DeleteWorkflowPods(f.ctx, request); err == nil {
						t.Fatalf("answered although killed: %v", got)
					}
					<-killed
					_ = p.wait()
					g.intercept(nil)
					g.answered(nil)

					// What the API server has got by now is all that there is of the call.
					left := map[string]*corev1.Pod{}
					for name, pod := range pods {
						left[name] = f.liveOf(pod)
					}
					switch now := left[s.pod]; {
					case s.verb == http.MethodDelete && !s.answered && (now == nil || now.DeletionTimestamp != nil),
						s.verb == http.MethodDelete && s.answered && (!held(now) || now.DeletionTimestamp == nil),
						s.verb == http.MethodPatch && !s.answered && (!held(now) || now.DeletionTimestamp == nil),
						s.verb == http.MethodPatch && s.answered && now != nil:
						t.Fatalf("the kill hit another step, the pod: %s", brief(now))
					}

					again := f.client(f.startProcess(f.reconciling(kubeconfig)...))
					f.waitReadyz(again)
					if now := left["captured"]; now != nil && now.DeletionTimestamp != nil {
						f.waitFor("gone", gone, now)
					} else if now != nil {
						f.waitFor("released", leftReleased, now) // nobody has asked for more
					}
					if now := left["uncaptured"]; now != nil {
						f.waitNoted(again, pb.HoldReason_HOLD_REASON_NOT_CAPTURED, 1)
						if then := f.wantHeld(now); (then.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil) {
							t.Errorf("after the restart: %s", brief(then))
						}
					}

					got, err := again.DeleteWorkflowPods(f.ctx, request)
					if err != nil || got.GetSummary().GetNeedsAttention() != 0 || got.GetSummary().GetDeleting() != 0 {
						t.Errorf("the repeat: %v, %v", got, err)
					}
					for _, pod := range pods {
						if f.liveOf(pod) != nil {
							t.Errorf("after the repeat, %s is still there", pod.Name)
						}
					}
					wantNoConflict(t, f.requests("finalizerd/"))
				})
			}
		}
	}
}
