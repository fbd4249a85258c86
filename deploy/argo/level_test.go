package argo

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	workflowpkg "github.com/argoproj/argo-workflows/v4/pkg/apiclient/workflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/finalizerd/finalizerd/deploy/argo/internal/kubelet"
)

// level is how much of finalizerd stands beside Argo.
type level int

const (
	stock level = iota
	reconciler
	sidecar
)

func (l level) String() string { return [...]string{"stock", "reconciler", "sidecar"}[l] }

// setup is a control plane with Argo at one level.
type setup struct {
	*plane
	level      level
	finalizerd endpoints // of the service; empty at level stock
	direct     argoConfigs
	argo       argoConfigs // what controller and server are given: direct, or by way of their sidecars
	proxies    []*child
	controller *child
	server     workflowpkg.WorkflowServiceClient
}

type endpoints struct{ grpc, http string }

// argoConfigs are kubeconfig files.
type argoConfigs struct{ controller, server string }

// newSetup brings everything up, and takes it down at the end of the test.
func newSetup(t *testing.T, l level) *setup {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p, err := startPlane(ctx, filepath.Join(suite.dir, strings.ReplaceAll(t.Name(), "/", "-")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	s := &setup{plane: p, level: l}
	if err := s.installArgo(ctx); err != nil {
		t.Fatal(err)
	}
	if s.direct, err = s.argoKubeconfigs(ctx); err != nil {
		t.Fatal(err)
	}
	s.argo = s.direct
	s.runKubelet(t)
	if l >= reconciler {
		s.startFinalizerd(ctx, t)
	}
	if l >= sidecar {
		s.argo.controller = s.startSidecar(ctx, t, "controller", s.direct.controller)
		s.argo.server = s.startSidecar(ctx, t, "server", s.direct.server)
	}
	s.startServer(ctx, t)
	t.Cleanup(func() { s.controller.kill() })
	return s
}

func (s *setup) runKubelet(t *testing.T) {
	t.Helper()
	node, err := kubelet.New(s.config, planOf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (s *setup) startFinalizerd(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := s.installFinalizerd(ctx); err != nil {
		t.Fatal(err)
	}
	c, line, err := startAndHear(ctx, spec{
		name: "finalizerd", dir: s.dir, path: program("finalizerd"),
		args: []string{"serve", "--kubeconfig", filepath.Join(s.dir, "finalizerd.kubeconfig"), "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"},
	}, saying("listening"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	var said struct{ GRPC, HTTP string }
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	s.finalizerd = endpoints{said.GRPC, said.HTTP}
	if err := poll(ctx, func() bool {
		answer, err := http.Get("http://" + said.HTTP + "/readyz")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}); err != nil {
		t.Fatalf("finalizerd is not ready: %v; %s", err, tail(c.logFile))
	}
}

// saying hears a line of JSON with that message.
func saying(message string) func(string) (string, bool) {
	return func(line string) (string, bool) {
		var said struct{ Msg string }
		return line, json.Unmarshal([]byte(line), &said) == nil && said.Msg == message
	}
}

// startSidecar starts the proxy for whoever uses the kubeconfig, and returns the kubeconfig to use instead.
func (s *setup) startSidecar(ctx context.Context, t *testing.T, name, direct string) string {
	t.Helper()
	c, line, err := startAndHear(ctx, spec{
		name: "sidecar-" + name, dir: s.dir, path: program("finalizerd"),
		args: []string{
			"proxy", "--listen", "127.0.0.1:0", "--upstream", s.config.Host,
			"--certificate-authority", filepath.Join(s.dir, "apiserver.crt"),
			"--target", s.finalizerd.grpc, "--when-down", "fail",
		},
	}, saying("listening"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	s.proxies = append(s.proxies, c)
	var said struct{ Address string }
	if err := json.Unmarshal([]byte(line), &said); err != nil || said.Address == "" {
		t.Fatalf("the sidecar says %q: %v", line, err)
	}
	return s.throughProxy(t, direct, "https://"+said.Address)
}

func (s *setup) startServer(ctx context.Context, t *testing.T) {
	t.Helper()
	c, address, err := startAndHear(ctx, spec{
		name: "argo-server", dir: s.dir, path: program("argo-server"), args: []string{"--kubeconfig", s.argo.server},
	}, func(line string) (string, bool) { return strings.CutPrefix(line, "listening ") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(100<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	s.server = workflowpkg.NewWorkflowServiceClient(connection)
}

// controllerOptions: the zero value is the feature on, by the way of the level.
type controllerOptions struct {
	featureOff bool
	kubeconfig string // default: that of the level
}

// startController starts Argo's controller, with the limits that it has by default, and returns when it is healthy.
func (s *setup) startController(ctx context.Context, t *testing.T, o controllerOptions) {
	t.Helper()
	if o.kubeconfig == "" {
		o.kubeconfig = s.argo.controller
	}
	for _, port := range []string{"6060", "9090"} {
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			t.Fatalf("port %s is needed by Argo's controller, which cannot be told another; is another run under way? %v", port, err)
		}
		_ = listener.Close()
	}
	env := []string{"LEADER_ELECTION_DISABLE=true", "LEADER_ELECTION_IDENTITY=test", fmt.Sprintf("ARGO_POD_STATUS_CAPTURE_FINALIZER=%t", !o.featureOff)}
	c, err := start(spec{
		name: "workflow-controller", dir: s.dir, path: program("workflow-controller"), env: env,
		args: []string{
			"--kubeconfig", o.kubeconfig, "--executor-image", "argoexec", "--loglevel", suite.logLevel,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.controller = c
	if err := poll(ctx, func() bool {
		select {
		case <-c.ended: // so nobody else's answer counts
			t.Fatalf("Argo's controller ended; %s", tail(c.logFile))
		default:
		}
		answer, err := http.Get("http://127.0.0.1:6060/healthz")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}); err != nil {
		t.Fatalf("Argo's controller is not healthy: %v; %s", err, tail(c.logFile))
	}
}

// reset makes the controller forget what earlier stories queued.
func (s *setup) reset(t *testing.T) {
	t.Helper()
	s.controller.kill()
	s.startController(t.Context(), t, controllerOptions{})
}

func poll(ctx context.Context, done func() bool) error {
	for {
		if done() {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
