package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

// binary builds cmd/finalizerd, once for all tests that ask.
func (e *environment) binary(t *testing.T) string {
	t.Helper()
	path, err := e.build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func buildFinalizerd(dir string) (string, error) {
	path := filepath.Join(dir, "finalizerd")
	build := exec.Command("go", "build", "-o", path, "./cmd/finalizerd")
	build.Dir = moduleRoot
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build finalizerd: %w\n%s", err, out)
	}
	return path, nil
}

// cleanEnvironment is without what finalizerd would take for settings of its
// own, or refuse as none: the variables of these tests among them.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "FINALIZERD_") || strings.HasPrefix(entry, "KUBECONFIG=")
	})
}

// process is finalizerd as people run it.
type process struct {
	*exec.Cmd
	grpc, http string
	wait       func() error
	log        func() string
}

// startProcess returns once the process says where it listens. It acts on calls
// alone unless the arguments say otherwise.
func (f *fixture) startProcess(args ...string) *process {
	f.t.Helper()
	args = append([]string{
		"serve", "--kubeconfig", filepath.Join(f.plane.dir, "kubeconfig"),
		"--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--reconcile=off",
	}, args...)
	p := &process{Cmd: exec.Command(suite.binary(f.t), args...)}
	p.Env = cleanEnvironment()
	stderr, err := p.StderrPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		f.t.Fatal(err)
	}
	var mu sync.Mutex
	var log strings.Builder
	listening := make(chan struct{})
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var said struct{ Msg, GRPC, HTTP string }
			if json.Unmarshal(lines.Bytes(), &said) == nil && said.Msg == "listening" {
				p.grpc, p.http = said.GRPC, said.HTTP
				close(listening)
			}
			mu.Lock()
			log.WriteString(lines.Text() + "\n")
			mu.Unlock()
		}
	}()
	p.log = func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
	p.wait = sync.OnceValue(func() error {
		<-read
		return p.Wait()
	})
	f.t.Cleanup(func() {
		_ = p.Process.Kill() // if the test has not ended it
		_ = p.wait()
	})
	select {
	case <-listening:
	case <-read:
		f.t.Fatalf("finalizerd ended: %v\n%s", p.wait(), p.log())
	case <-f.ctx.Done():
		f.t.Fatalf("finalizerd does not listen\n%s", p.log())
	}
	return p
}

func (f *fixture) client(p *process) *daemon {
	f.t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return &daemon{
		userAgent: "finalizerd/", rest: "http://" + p.http, conn: conn,
		FinalizerServiceClient: pb.NewFinalizerServiceClient(conn),
		overREST:               pb.NewFinalizerServiceClient(restConn{"http://" + p.http}),
	}
}

func TestTheBinaryServesAndEndsInOrder(t *testing.T) {
	f := newFixture(t)
	p := f.startProcess()
	d := f.client(p)
	wf := f.workflow("wf", podNode("one", "Succeeded"), podNode("two", "Succeeded"))
	one, two := f.pod(wf, "one"), f.pod(wf, "two")
	f.waitPods(d, wf, 2)
	f.waitReadyz(d)
	f.wantReleased(d, one, captured)
	if got, err := d.overREST.ReleasePod(f.ctx, f.releasing("two", string(two.UID))); err != nil {
		t.Error(err)
	} else {
		wantResult(t, got.GetResult(), pb.Outcome_OUTCOME_RELEASED, asserted)
	}
	watch, err := d.WatchWorkflowPods(f.ctx, &pb.WatchWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, err = watch.Recv()
	wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")
	if err := p.wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, p.log())
	}
}

func TestB22_TwoProcessesOnOneWorkflowReleaseEachPodOnce(t *testing.T) {
	f := newFixture(t)
	wf := f.workflow("wf")
	refs := f.podsNamed(wf, "pod", 40)
	one, two := f.client(f.startProcess()), f.client(f.startProcess())
	f.waitPods(one, wf, 40)
	f.waitPods(two, wf, 40)
	var calls sync.WaitGroup
	for _, d := range []*daemon{one, two} {
		calls.Go(func() {
			got, err := d.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Pods: refs, Captured: true})
			if err != nil || got.GetSummary().GetNeedsAttention() != 0 || got.GetSummary().GetTotal() != 40 {
				t.Errorf("got %v, %v", got.GetSummary(), err)
			}
		})
	}
	calls.Wait()
	requests := f.requests("finalizerd/")
	wantNoConflict(t, requests)
	for _, ref := range refs {
		if left := f.live(ref.GetName()); len(left.Finalizers) > 0 || left.DeletionTimestamp != nil {
			t.Errorf("%s: %v", ref.GetName(), left.ObjectMeta)
		}
		// Two processes have no lane in common; what makes that safe is that
		// the writes commute.
		if n := len(ofPod(requests, ref.GetName())); n < 1 || n > 2 {
			t.Errorf("%s: %d requests", ref.GetName(), n)
		}
	}
}

func TestTheBinarySaysWhatToDoWhenTheAPIServerIsNotThere(t *testing.T) {
	f := newFixture(t)
	nowhere := filepath.Join(t.TempDir(), "kubeconfig")
	content := `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":""}}]}`
	if err := os.WriteFile(nowhere, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(f.ctx, suite.binary(t), "serve", "--kubeconfig", nowhere, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
	command.Env = cleanEnvironment()
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(output), "nothing listens at http://127.0.0.1:1") {
		t.Errorf("%v\n%s", err, output)
	}
}
