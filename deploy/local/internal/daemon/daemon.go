// Package daemon runs a built finalizerd as a child of this process, on a control plane, and connects to it.
//
// It imports package process, and client, which is what callers of finalizerd import too; it knows finalizerd by its flags
// and its API alone. It does not restart a finalizerd that ends.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"

	"github.com/finalizerd/finalizerd/deploy/local/internal/process"
)

const (
	readyTimeout = 30 * time.Second
	pollPeriod   = 25 * time.Millisecond
	stopGrace    = 15 * time.Second // finalizerd itself bounds its drain by 10 s
)

// Options says what to start. Every field but Args is required.
type Options struct {
	Executable  string   // a built finalizerd
	Kubeconfig  string   // who it is for the API server
	LogFile     string   // its log, JSON lines, is appended here
	GRPCAddress string   // host:port
	HTTPAddress string   // host:port
	Args        []string // further flags of finalizerd serve, which win over the above
}

// Daemon is a finalizerd that answers.
type Daemon struct {
	options Options
	process *process.Process
}

// During starts a finalizerd, calls use once it is ready, and stops it when use has returned. The context of use ends when
// ctx does or when finalizerd ends. The error is that of a finalizerd that ended by itself, with the last lines of its log,
// and else that of use.
func During(ctx context.Context, options Options, use func(context.Context, *Daemon) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	child, err := process.Start(process.Spec{
		Name: "finalizerd", Path: options.Executable, LogFile: options.LogFile,
		Args: append([]string{
			"serve", "--kubeconfig=" + options.Kubeconfig,
			"--grpc-address=" + options.GRPCAddress, "--http-address=" + options.HTTPAddress,
		}, options.Args...),
	})
	if err != nil {
		return err
	}
	defer child.Stop(stopGrace)
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-child.Done():
			cancel()
		case <-stopped:
		}
	}()
	d := &Daemon{options: options, process: child}
	err = d.waitReady(ctx)
	if err == nil {
		err = use(ctx, d)
	}
	select {
	case <-child.Done():
		return child.Failure()
	default:
		return err
	}
}

// GRPCAddress is the host:port that it serves gRPC on.
func (d *Daemon) GRPCAddress() string { return d.options.GRPCAddress }

// HTTPAddress is the host:port that it serves REST on.
func (d *Daemon) HTTPAddress() string { return d.options.HTTPAddress }

// URL is where it serves REST, without a slash at the end.
func (d *Daemon) URL() string { return "http://" + d.options.HTTPAddress }

// LogFile is where its log goes.
func (d *Daemon) LogFile() string { return d.options.LogFile }

// PID is its process id.
func (d *Daemon) PID() int { return d.process.PID() }

// Connect returns a client of it, which the caller closes.
func (d *Daemon) Connect() (*client.Client, error) {
	return client.New(d.options.GRPCAddress, client.WithInsecure())
}

func (d *Daemon) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		answer, err := get(ctx, d.URL()+"/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("finalizerd does not get ready (%w): %w %s", ctx.Err(), err, answer)
		case <-ticker.C:
		}
	}
}

func get(ctx context.Context, url string) (answer string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return strings.TrimSpace(string(body)), errors.New(response.Status)
	}
	return string(body), nil
}

// WaitSeen returns when the finalizerd behind c sees so many pods of the workflow: its cache follows the API server's
// watch, and so comes a moment after a creation.
func WaitSeen(ctx context.Context, c *client.Client, namespace, workflow string, pods int) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	stream, err := c.WatchWorkflowPods(ctx, &finalizerv1.WatchWorkflowPodsRequest{Namespace: namespace, Workflow: workflow}, grpc.WaitForReady(true))
	for err == nil {
		var step *finalizerv1.WatchWorkflowPodsResponse
		if step, err = stream.Recv(); err == nil && int(step.GetProgress().GetPods()) == pods {
			return nil
		}
	}
	return fmt.Errorf("wait until finalizerd sees %d pods of workflow %s/%s: %w", pods, namespace, workflow, err)
}

// CheckFree fails with a sentence if somebody listens on the address, a host:port, or nobody can. The flag is what the
// sentence advises to change.
func CheckFree(address, flag string) error {
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s is taken: stop what listens there (another `make run`?), or choose another address with %s", address, flag)
	case err != nil:
		return fmt.Errorf("cannot listen on %s; choose another address with %s: %w", address, flag, err)
	}
	return listener.Close()
}

// FreeAddresses returns two loopback addresses that nobody uses now.
func FreeAddresses() (grpcAddress, httpAddress string, err error) {
	var found [2]string
	for i := range found {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", fmt.Errorf("find a free port: %w", err)
		}
		defer listener.Close() // only at the end, so that they differ
		found[i] = listener.Addr().String()
	}
	return found[0], found[1], nil
}
