package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/deploy/local/internal/process"
)

// The pid files of the children, and the file that turns a death of kube-apiserver into an outage: while RestartFile exists
// in Dir, a kube-apiserver that ends (because a test kills it) is no failure; it is started again, on the same port, once
// the file is removed.
const (
	EtcdPIDFile      = "etcd.pid"
	APIServerPIDFile = "kube-apiserver.pid"
	RestartFile      = "restart-apiserver"
)

const pollPeriod = 50 * time.Millisecond

type ports struct{ etcd, apiServer int }

// freePorts finds ports that nobody uses now. Somebody may take one before our child does; the child then says so and ends.
func freePorts() (ports, error) {
	var found [2]int
	for i := range found {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return ports{}, fmt.Errorf("find a free port: %w", err)
		}
		defer listener.Close() // only at the end, so that the ports differ
		found[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports{etcd: found[0], apiServer: found[1]}, nil
}

func (c *ControlPlane) file(name string) string { return filepath.Join(c.dir, name) }

func (c *ControlPlane) etcdURL() string { return fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcd) }

func (c *ControlPlane) etcdSpec() process.Spec {
	return c.childSpec("etcd", EtcdPIDFile,
		"--data-dir="+c.file("etcd"),
		"--listen-client-urls="+c.etcdURL(),
		"--advertise-client-urls="+c.etcdURL(),
		"--listen-peer-urls=http://127.0.0.1:0",
		"--unsafe-no-fsync",
		"--quota-backend-bytes="+strconv.Itoa(8<<30),
		"--log-level=warn",
	)
}

func (c *ControlPlane) apiServerSpec() process.Spec {
	args := []string{
		"--etcd-servers=" + c.etcdURL(),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.ports.apiServer),
		"--cert-dir=" + c.file("certificates"),
		"--tls-cert-file=" + c.file(servingCertFile),
		"--tls-private-key-file=" + c.file(servingKeyFile),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + c.file(tokenKeyFile),
		"--service-account-key-file=" + c.file(tokenKeyFile),
		"--token-auth-file=" + c.file(usersFile),
		"--authorization-mode=RBAC",
		// No controller makes service accounts, and none takes the not-ready taint off a new node.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--endpoint-reconciler-type=none", // a loopback address is not allowed in Endpoints
		"--allow-privileged=true",
		// High enough that priority and fairness do not decide what a test or a benchmark measures.
		"--max-requests-inflight=3000",
		"--max-mutating-requests-inflight=2000",
		"--profiling=false",
	}
	if c.options.AuditLog != "" {
		args = append(args,
			"--audit-policy-file="+c.file(auditPolicyFile),
			"--audit-log-path="+c.options.AuditLog,
			"--audit-log-maxsize=4096", // megabytes; a rotation would hide lines from who counts them
		)
	}
	return c.childSpec("kube-apiserver", APIServerPIDFile, args...)
}

func (c *ControlPlane) childSpec(name, pidFile string, args ...string) process.Spec {
	spec := process.Spec{Name: name, LogFile: c.file(name + ".log"), PIDFile: c.file(pidFile)}
	if c.options.Assets != "" {
		spec.Path, spec.Args = filepath.Join(c.options.Assets, name), args
	} else {
		spec.Path, spec.Args = c.options.Executable, append([]string{name}, args...)
	}
	return spec
}

func (c *ControlPlane) watchEtcd(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.etcd.Done():
		return c.etcd.Failure()
	}
}

// superviseAPIServer returns an error when kube-apiserver ends without RestartFile.
func (c *ControlPlane) superviseAPIServer(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.currentAPIServer().Done():
		}
		if !exists(c.file(RestartFile)) {
			return c.currentAPIServer().Failure()
		}
		if err := poll(ctx, func(context.Context) error {
			if exists(c.file(RestartFile)) {
				return errors.New(RestartFile + " is still there")
			}
			return nil
		}); err != nil {
			return err
		}
		restarted, err := process.Start(c.apiServerSpec())
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.apiServer = restarted
		c.mu.Unlock()
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func (c *ControlPlane) waitForEtcd(ctx context.Context) error {
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	return poll(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.etcdURL()+"/health", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New("etcd: " + response.Status)
		}
		return nil
	})
}

func waitForAPIServer(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("client of kube-apiserver: %w", err)
	}
	defer client.CloseIdleConnections()
	return poll(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New("kube-apiserver: " + response.Status)
		}
		return nil
	})
}

// poll repeats try until it succeeds. It fails only when ctx ends, and then with the last failure in the error.
func poll(ctx context.Context, try func(context.Context) error) error {
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
