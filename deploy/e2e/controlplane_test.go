package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var workflowResource = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}

// controlPlane is a running deploy/local.
type controlPlane struct {
	program   string
	dir       string
	config    *rest.Config // the administrator's
	admin     kubernetes.Interface
	workflows dynamic.NamespaceableResourceInterface
	audit     *auditLog
	stop      func()
}

// controlPlaneBinary returns the program of deploy/local, built into dir if none
// is given.
func controlPlaneBinary(ctx context.Context, dir string) (string, error) {
	if given := os.Getenv(controlPlaneVariable); given != "" {
		return given, nil
	}
	fmt.Fprintf(os.Stderr, "e2e: building the control plane (with a cold cache some 11 minutes, more than go test allows without -timeout 30m); %s=FILE spares it\n", controlPlaneVariable)
	path := filepath.Join(dir, "local")
	build := exec.CommandContext(ctx, "go", "build", "-o", path, ".")
	build.Dir = filepath.Join("..", "local")
	build.Env = append(os.Environ(), "GOWORK=off")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build the control plane: %w", err)
	}
	return path, nil
}

// startControlPlane starts the program and waits until it says that it is ready.
// It ends when its standard input does, and so with this process at the latest.
func startControlPlane(ctx context.Context, binary, dir string, args ...string) (*controlPlane, error) {
	auditFile := filepath.Join(dir, "audit.jsonl")
	command := exec.Command(binary, append([]string{"up", "--dir", dir, "--audit-log", auditFile, "--die-with-stdin"}, args...)...)
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the control plane: %w", err)
	}
	stop := func() {
		_ = stdin.Close()
		_ = command.Wait()
	}
	kubeconfig, err := readKubeconfigLine(ctx, stdout)
	if err != nil {
		stop()
		return nil, err
	}
	p := &controlPlane{program: binary, dir: dir, audit: &auditLog{path: auditFile}, stop: stop}
	if err := p.connect(kubeconfig); err != nil {
		stop()
		return nil, err
	}
	return p, nil
}

func readKubeconfigLine(ctx context.Context, stdout io.Reader) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	found := make(chan string, 1)
	go func() {
		defer close(found)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if path, ok := strings.CutPrefix(lines.Text(), "KUBECONFIG="); ok {
				found <- path
				return
			}
		}
	}()
	select {
	case path, ok := <-found:
		if !ok {
			return "", fmt.Errorf("the control plane ended without becoming ready")
		}
		return path, nil
	case <-ctx.Done():
		return "", fmt.Errorf("the control plane was not ready within %s", readyWithin)
	}
}

func (p *controlPlane) connect(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.UserAgent, config.Timeout = -1, "e2e", time.Minute
	p.config = config
	if p.admin, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	d, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	p.workflows = d.Resource(workflowResource)
	return nil
}

// configOf is the configuration of one of the users of deploy/local: admin,
// finalizerd or limited.
func (p *controlPlane) configOf(user string) (*rest.Config, error) {
	file := "kubeconfig"
	if user != "admin" {
		file = user + ".kubeconfig"
	}
	return clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, file))
}
