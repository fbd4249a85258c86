// Package controlplane brings up a real Kubernetes control plane on loopback: etcd and kube-apiserver as child processes,
// Kubernetes' controllers and a pretended kubelet in this process, and the Workflow kind of Argo Workflows.
//
// It imports k8s.io/kubernetes through package controllers. It is for tests, demos and measurements: etcd does not sync to
// disk, admission of service accounts is off, and tokens lie in files that only their owner may read. It promises no
// orphans: whatever way this process ends, on Linux its children end with it and its temporary folder goes.
package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/finalizerd/finalizerd/deploy/local/internal/controllers"
	"github.com/finalizerd/finalizerd/deploy/local/internal/kubelet"
	"github.com/finalizerd/finalizerd/deploy/local/internal/process"
)

const (
	apiServerGrace = 10 * time.Second
	etcdGrace      = 5 * time.Second
)

// Options tells New what to bring up. The zero value is a control plane in a temporary folder, without a kubelet.
type Options struct {
	// Dir holds all files: logs, pids, kubeconfigs, etcd's data. It is made if need be and kept at the end; data found in it
	// is used. Empty means a temporary folder that is removed at the end.
	Dir string
	// Kubeconfig is a further place for the administrator's kubeconfig, removed at the end. A file that is there and was
	// not written by this package is refused. Empty means Dir alone.
	Kubeconfig string
	AuditLog   string // file to append the audit log of pods and workflows to; empty means none
	Kubelet    bool   // pretend a kubelet for node kubelet.NodeName
	// TerminatedPodGCThreshold as in controllers.Options.
	TerminatedPodGCThreshold int
	// Assets is a folder that holds executables etcd and kube-apiserver. Empty means that Executable is run with
	// the subcommands etcd and kube-apiserver.
	Assets string
	// Executable is the program that knows the two subcommands. Empty means this program.
	Executable string
	// Progress is told, from one goroutine, what is waited for now. Nil means nobody.
	Progress func(message string)
}

// ControlPlane is made by New, and lives while Run runs. Apart from New's caller calling Run once, its methods may be called
// from several goroutines, and those that return values only once Ready is closed.
type ControlPlane struct {
	options Options
	ready   chan struct{}
	dir     string
	ports   ports
	etcd    *process.Process

	mu        sync.Mutex // guards apiServer, which changes when it is restarted
	apiServer *process.Process
}

// New checks the options and starts nothing.
func New(options Options) (*ControlPlane, error) {
	if options.Progress == nil {
		options.Progress = func(string) {}
	}
	if options.Executable == "" {
		executable, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		options.Executable = executable
	}
	for _, path := range []*string{&options.Dir, &options.Kubeconfig, &options.AuditLog, &options.Assets} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", *path, err)
		}
		*path = absolute
	}
	if err := checkKubeconfig(options.Kubeconfig); err != nil {
		return nil, err
	}
	return &ControlPlane{options: options, ready: make(chan struct{})}, nil
}

// Run brings the control plane up, keeps it until ctx ends or a child dies, and takes it down: controllers, kube-apiserver,
// etcd, folder, each within a bounded time. It returns nil after ctx has ended, and otherwise an error that ends with the
// last lines of the dead child's log. Call it once.
//
// Hazard: klog's logger is one per process; Run points it at controllers.log.
func (c *ControlPlane) Run(ctx context.Context) (err error) {
	remove, err := c.prepareDir()
	if err != nil {
		return err
	}
	defer remove()
	logFile, err := os.OpenFile(filepath.Join(c.dir, "controllers.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the controllers' log: %w", err)
	}
	defer logFile.Close()
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(logFile))))
	defer klog.ClearLogger()

	if c.ports, err = freePorts(); err != nil {
		return err
	}
	if err := c.writeCredentials(); err != nil {
		return err
	}
	if c.etcd, err = process.Start(c.etcdSpec()); err != nil {
		return err
	}
	defer c.etcd.Stop(etcdGrace)
	if c.apiServer, err = process.Start(c.apiServerSpec()); err != nil {
		return err
	}
	defer func() { c.currentAPIServer().Stop(apiServerGrace) }()

	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return c.watchEtcd(running) })
	group.Go(func() error { return c.superviseAPIServer(running) })
	group.Go(func() error { return c.serve(running) })
	err = group.Wait()
	c.options.Progress("stopping")
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serve waits for the servers, installs what belongs to the control plane, and runs what runs in this process.
func (c *ControlPlane) serve(ctx context.Context) error {
	c.options.Progress("waiting for etcd")
	if err := c.waitForEtcd(ctx); err != nil {
		return err
	}
	c.options.Progress("waiting for kube-apiserver")
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	if err := waitForAPIServer(ctx, config); err != nil {
		return err
	}
	c.options.Progress("waiting for the Workflow kind and namespace default")
	if err := install(ctx, config); err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		return controllers.Run(running, controllers.Options{Config: config, TerminatedPodGCThreshold: c.options.TerminatedPodGCThreshold})
	})
	if c.options.Kubelet {
		c.options.Progress("waiting for the node")
		node, err := kubelet.New(config)
		if err != nil {
			return err
		}
		if err := node.Register(ctx); err != nil {
			return err
		}
		group.Go(func() error { return node.Run(running) })
	}
	close(c.ready)
	return group.Wait()
}

// Ready is closed when the control plane can be used.
func (c *ControlPlane) Ready() <-chan struct{} { return c.ready }

// Dir is the folder of all files.
func (c *ControlPlane) Dir() string { return c.dir }

// Kubeconfig is the file that makes its reader an administrator.
func (c *ControlPlane) Kubeconfig() string {
	if c.options.Kubeconfig != "" {
		return c.options.Kubeconfig
	}
	return c.KubeconfigOf(Admin)
}

// KubeconfigOf is the file that makes its reader that user.
func (c *ControlPlane) KubeconfigOf(user User) string {
	return filepath.Join(c.dir, user.kubeconfigName())
}

// RESTConfig is the administrator's client configuration, without a client-side rate limit.
func (c *ControlPlane) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigOf(Admin))
	if err != nil {
		return nil, fmt.Errorf("read our own kubeconfig: %w", err)
	}
	config.QPS = -1
	return config, nil
}

// EtcdPID and APIServerPID are the children's process ids, for accounting of their processor time. kube-apiserver's
// changes when it is restarted.
func (c *ControlPlane) EtcdPID() int { return c.etcd.PID() }

// APIServerPID: see EtcdPID.
func (c *ControlPlane) APIServerPID() int { return c.currentAPIServer().PID() }

func (c *ControlPlane) currentAPIServer() *process.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apiServer
}

// During brings up a control plane, calls use when it is ready, and takes it down when use has returned. The context of use
// ends when ctx does or when the control plane fails. The error is that of the control plane if it has one, and else that of use.
func During(ctx context.Context, options Options, use func(context.Context, *ControlPlane) error) error {
	c, err := New(options)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- c.Run(ctx)
	}()
	select {
	case <-c.Ready():
	case err := <-ended:
		return err
	}
	useErr := use(ctx, c)
	cancel()
	if err := <-ended; err != nil {
		return err
	}
	return useErr
}
