package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/finalizerd/finalizerd/client/proxy"
	"github.com/finalizerd/finalizerd/client/transport"
)

// serviceAccountDir has the credentials of a pod.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount/"

const defaultListen = "127.0.0.1:8001"

const proxyHelp = `Stand between the workflow controller or Argo Server, unmodified, and the API
server, in the same pod. Requests pass through as they are, except those that
release, label or delete the pods of workflows: these go through the service,
which does them one after another for each workflow and refuses a clean-up that
came too late. A refusal is answered with 409 Conflict, and Argo queues the same
work again.

The caller keeps needing its own rights on pods: get, patch, delete and create.
Each recognised request is first made with dryRun in the caller's name.

Each request keeps the credentials that it came with, and one without reaches
the API server without, unless a token is lent (--account-token-file). The proxy
serves TLS alone, since programs built on client-go send no credentials to a
server with a plain http URL. Its certificate is made as it starts, and its key
is in memory alone; the kubeconfig of --write-kubeconfig has the certificate.

Example, as a native sidecar beside the workflow-controller:

  initContainers:
  - name: finalizerd-proxy
    image: finalizerd
    restartPolicy: Always
    args: [proxy, --target=dns:///finalizerd.finalizerd.svc:2748, --insecure]
    startupProbe:
      exec: {command: [/finalizerd, proxy, check]}
  containers:
  - name: workflow-controller
    env: [{name: KUBECONFIG, value: /etc/finalizerd-proxy/kubeconfig}]

with a kubeconfig from a ConfigMap whose server is https://127.0.0.1:8001, with
insecure-skip-tls-verify, since no file of a ConfigMap can have the certificate,
and whose user has the pod's token as its tokenFile (deploy/sidecar has it all):
while the file is missing, Argo goes straight to the API server. And on a desk,
with the API server's URL at hand:

  finalizerd proxy --upstream=https://127.0.0.1:6443 \
    --certificate-authority=ca.crt --account-token-file=token \
    --write-kubeconfig=proxied.yaml
  KUBECONFIG=proxied.yaml kubectl get pods

The path ` + proxy.HealthPath + ` says whether it serves, which
finalizerd proxy check asks, and ` + proxy.MetricsPath + ` has metrics; both on the
loopback address only. Each flag can also be given as an
environment variable, whose name stands in brackets.`

// proxyFlags are the values of proxy's flags.
type proxyFlags struct {
	at                             connection
	listen, upstream, ca           string
	whenDown                       string
	transport                      transport.Options
	kubeconfig, kubeNS             string
	account                        string
	shutdownTimeout                time.Duration
	logFormat, logLevel            string
	kubernetesHost, kubernetesPort string // of the environment
}

func newProxy(environ []string) *cobra.Command {
	f := &proxyFlags{
		kubernetesHost: lookup(environ, "KUBERNETES_SERVICE_HOST"),
		kubernetesPort: lookup(environ, "KUBERNETES_SERVICE_PORT"),
	}
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Stand between an unmodified Argo and the API server",
		Long:  proxyHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags(), environ); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	cmd.AddCommand(newProxyCheck(environ))
	cmd.Flags().SortFlags = false
	own := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	own.SortFlags = false
	f.register(own)
	documentEnv(own)
	cmd.Flags().AddFlagSet(own)
	f.at.register(cmd.Flags())
	return cmd
}

func (f *proxyFlags) register(flags *pflag.FlagSet) {
	o := &f.transport
	flags.StringVar(&f.listen, "listen", defaultListen, "loopback `host:port` to listen on; port 0 takes a free one")
	flags.StringVar(&f.upstream, "upstream", "", "`URL` of the API server; empty: the one of the cluster that the pod runs in")
	flags.StringVar(&f.ca, "certificate-authority", "", "PEM `file` that the API server is checked against; empty: the pod's own for the pod's cluster, else the roots of the system")
	flags.StringVar(&f.account, "account-token-file", "", "token `file` that is lent to requests that come without credentials, for a desk: whoever reaches the proxy acts with it; empty: none is lent")
	flags.StringVar(&f.whenDown, "when-down", "fail", "while the service is down: fail (503, the caller repeats) or bypass (straight to the API server, unprotected)")
	flags.BoolVar(&o.AddFinalizer, "add-finalizer", false, "put the finalizer on workflow pods as they are created")
	flags.StringVar(&o.Finalizer, "finalizer", transport.DefaultFinalizer, "the finalizer that the service owns")
	flags.DurationVar(&o.Timeout, "call-timeout", transport.DefaultTimeout, "longest time that one call of the service may take; after that it counts as down")
	flags.DurationVar(&o.CreateWait, "create-wait", transport.DefaultCreateWait, "longest time that the creation of a pod waits for the old pod of that name to go; negative: not at all")
	flags.StringVar(&f.kubeconfig, "write-kubeconfig", "", "`file` to write a kubeconfig to whose server is this proxy, once it listens")
	flags.StringVar(&f.kubeNS, "kubeconfig-namespace", "", "`namespace` in that kubeconfig; empty: the pod's own, if there is one")
	flags.DurationVar(&f.shutdownTimeout, "shutdown-timeout", proxy.DefaultShutdownTimeout, "longest time that requests get to finish after a signal")
	flags.StringVar(&f.logFormat, "log-format", "json", "json or text")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

// destination returns the URL of the API server and the file to check it
// against.
func (f *proxyFlags) destination() (*url.URL, string, error) {
	if f.upstream != "" {
		u, err := url.Parse(f.upstream)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.User != nil {
			return nil, "", &usageError{fmt.Errorf("--upstream must be a URL such as https://127.0.0.1:6443, got %q", f.upstream)}
		}
		return u, f.ca, nil
	}
	if f.kubernetesHost == "" || f.kubernetesPort == "" {
		return nil, "", &usageError{errors.New("cannot tell where the API server is: give --upstream, or run in a pod")}
	}
	ca := f.ca
	if ca == "" {
		ca = serviceAccountDir + "ca.crt"
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(f.kubernetesHost, f.kubernetesPort)}, ca, nil
}

func (f *proxyFlags) check() error {
	switch f.whenDown {
	case "fail":
		f.transport.WhenDown = transport.Fail
	case "bypass":
		f.transport.WhenDown = transport.Bypass
	default:
		return fmt.Errorf("--when-down must be fail or bypass, got %q", f.whenDown)
	}
	if f.transport.Finalizer == "" {
		return errors.New("--finalizer must not be empty")
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"call-timeout", f.transport.Timeout}, {"shutdown-timeout", f.shutdownTimeout}} {
		if d.value < time.Millisecond {
			return fmt.Errorf("--%s must be at least 1ms, got %s", d.flag, d.value)
		}
	}
	if f.transport.CreateWait == 0 {
		f.transport.CreateWait = -1 // not at all, rather than the default
	}
	_, err := f.logger(io.Discard)
	return err
}

func (f *proxyFlags) logger(w io.Writer) (*slog.Logger, error) {
	return (&serveFlags{logFormat: f.logFormat, logLevel: f.logLevel}).logger(w)
}

func (f *proxyFlags) run(ctx context.Context, stderr io.Writer) error {
	if err := f.check(); err != nil {
		return &usageError{err}
	}
	upstream, ca, err := f.destination()
	if err != nil {
		return err
	}
	log, err := f.logger(stderr)
	if err != nil {
		return &usageError{err}
	}
	adopt(log)
	service, err := f.at.open()
	if err != nil {
		return err
	}
	defer service.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	metrics, count := proxyMetrics()
	f.transport.Observe = func(e transport.Event) {
		count(e.Action)
		log.Debug("pod", "action", e.Action, "namespace", e.Namespace, "pod", e.Pod, "error", e.Err)
	}
	p, err := proxy.New(proxy.Config{
		Listen: f.listen, Upstream: upstream, CAFile: ca, TokenFile: f.account, Service: service, Transport: f.transport,
		Metrics: metrics, Log: log, ShutdownTimeout: f.shutdownTimeout,
		Listening: func(a net.Addr, certificate []byte) {
			log.Info("listening", "address", a.String(), "upstream", upstream.String(), "target", f.at.target, "when_down", f.whenDown)
			if err := f.writeKubeconfig(a, certificate); err != nil {
				failed = fmt.Errorf("--write-kubeconfig: %w", err)
				cancel()
			}
		},
	})
	if err != nil {
		return &usageError{err}
	}
	if err := p.Run(ctx); err != nil {
		return fmt.Errorf("%w; choose another address with --listen if it is in use", err)
	}
	if failed != nil {
		return failed
	}
	log.Info("stopped")
	return nil
}

// proxyMetrics counts what the proxy did other than passing requests through.
func proxyMetrics() (http.Handler, func(transport.Action)) {
	registry := prometheus.NewRegistry()
	actions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "finalizerd_proxy_requests_total",
		Help: "Recognised requests on workflow pods by what was done with them.",
	}, []string{"action"})
	registry.MustRegister(actions, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, a := range transport.Actions() {
		actions.WithLabelValues(string(a))
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		func(a transport.Action) { actions.WithLabelValues(string(a)).Inc() }
}

// writeKubeconfig writes the file in one step: whoever waits for it never reads
// half of it.
func (f *proxyFlags) writeKubeconfig(listening net.Addr, certificate []byte) error {
	if f.kubeconfig == "" {
		return nil
	}
	user, err := f.user()
	if err != nil {
		return err
	}
	namespace := f.kubeNS
	if namespace == "" {
		if own, err := os.ReadFile(serviceAccountDir + "namespace"); err == nil {
			namespace = strings.TrimSpace(string(own))
		}
	}
	const name = "finalizerd-proxy"
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{Server: "https://" + listening.String(), CertificateAuthorityData: certificate}
	config.AuthInfos[name] = user
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = name
	// No secret is in it, and another user of the same pod reads it.
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	temporary := f.kubeconfig + ".new"
	if err := os.WriteFile(temporary, content, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, f.kubeconfig)
}

// user has the token file that is lent, without which kubectl would ask for a
// name and a password, or the pod's own, or nothing.
func (f *proxyFlags) user() (*api.AuthInfo, error) {
	file := f.account
	if file == "" {
		file = serviceAccountDir + "token"
		if _, err := os.Stat(file); err != nil {
			return &api.AuthInfo{}, nil
		}
	}
	file, err := filepath.Abs(file) // else it would be relative to the kubeconfig
	return &api.AuthInfo{TokenFile: file}, err
}
