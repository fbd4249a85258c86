package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/finalizerd/finalizerd/server"
)

// serveFlags are the values of serve's flags.
type serveFlags struct {
	config              server.Config
	kubeconfig, context string
	logFormat, logLevel string
	reconcile, unowned  string
}

func newServe(environ []string) *cobra.Command {
	f := &serveFlags{config: server.DefaultConfig()}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service until a signal comes",
		Long: `Run the service until SIGINT or SIGTERM comes.

Each flag can also be given as an environment variable, whose name stands in
brackets. The flag wins over the variable, and the variable over the default.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags(), environ); err != nil {
				return err
			}
			if err := f.check(); err != nil {
				return &usageError{err}
			}
			return f.run(cmd.Context(), environ, cmd.ErrOrStderr())
		},
	}
	f.register(cmd.Flags())
	documentEnv(cmd.Flags())
	return cmd
}

func (f *serveFlags) register(flags *pflag.FlagSet) {
	c := &f.config
	flags.SortFlags = false
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that tells how to reach the API server; empty: the files of KUBECONFIG, else the pod's service account")
	flags.StringVar(&f.context, "context", "", "context `name` in the kubeconfig; empty: its current one")
	flags.StringVar(&c.GRPCAddress, "grpc-address", c.GRPCAddress, "`host:port` of gRPC; port 0 takes a free one")
	flags.StringVar(&c.HTTPAddress, "http-address", c.HTTPAddress, "`host:port` of REST, health, readiness and metrics")
	flags.BoolVar(&c.AllowUnauthenticated, "danger-listen-without-authentication", false, "allow addresses that are not loopback, although callers are not authenticated: whoever reaches them can delete pods")
	flags.StringVar(&c.Policy.Finalizer, "finalizer", c.Policy.Finalizer, "the finalizer that the service owns")
	flags.StringVar(&c.Policy.InstanceID, "instanceid", c.Policy.InstanceID, "instance id of the workflow controller; empty: the default instance")
	flags.StringSliceVar(&c.Namespaces, "namespaces", nil, "comma-separated `list` of the only namespaces that are watched and served; empty: all")
	f.registerReconcile(flags)
	flags.IntVar(&c.MaxWaiters, "max-waiters", c.MaxWaiters, "callers that may wait for one workflow; more get WORKFLOW_BUSY")
	flags.IntVar(&c.MaxWritesInFlight, "max-writes-in-flight", c.MaxWritesInFlight, "ceiling of the adaptive limit on concurrent writes, at least 2")
	flags.DurationVar(&c.RequestMemory, "request-memory", c.RequestMemory, "how long the answer of a request_id is kept, at least 10m")
	flags.DurationVar(&c.DefaultDeadline, "default-deadline", c.DefaultDeadline, "deadline of unary calls that come without one")
	flags.DurationVar(&c.DrainDelay, "drain-delay", c.DrainDelay, "time between \"not ready\" and the refusal of new connections at shutdown")
	flags.DurationVar(&c.ShutdownTimeout, "shutdown-timeout", c.ShutdownTimeout, "most time for calls under way at shutdown, after the drain delay")
	flags.StringVar(&f.logFormat, "log-format", "json", "json or text")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; debug logs reads too")
}

// registerReconcile is about what is released without any call.
func (f *serveFlags) registerReconcile(flags *pflag.FlagSet) {
	c, p := &f.config, &f.config.Policy
	flags.StringVar(&f.reconcile, "reconcile", c.Reconcile.String(), "on: release what nobody waits for any more; report: find it, tell it in lists and metrics, and write nothing; off: act on calls alone")
	flags.DurationVar(&p.MinAge, "min-age", p.MinAge, "age below which a pod is never taken for abandoned")
	flags.DurationVar(&p.ClockTolerance, "clock-tolerance", p.ClockTolerance, "most that the clocks of API server, controller and nodes may differ")
	flags.DurationVar(&p.CaptureGrace, "capture-grace", p.CaptureGrace, "time after a result is stored in which its pod, if nobody deletes it, is left to the controller's own release")
	flags.DurationVar(&p.HiddenAfter, "hidden-after", p.HiddenAfter, "time that a pod may be labelled completed before its result is stored; then the label, which hides it from the controller, is taken back")
	flags.DurationVar(&p.NodeLost, "node-lost-after", p.NodeLost, "time that the cluster node of a terminating pod may be NotReady before the pod is given up; a node that is gone: at once")
	flags.DurationVar(&p.MaxHold, "max-hold", p.MaxHold, "time after its deletion at which a terminating pod is released although its result is not stored; 0: never, holding is the promise")
	flags.StringVar(&f.unowned, "unowned", "report", "what becomes of held pods without a controller owner: report or release")
	flags.IntVar(&c.ReconcileWorkers, "reconcile-workers", c.ReconcileWorkers, "workflows that are reconciled at a time")
	flags.DurationVar(&c.ReadInterval, "workflow-read-interval", c.ReadInterval, "least time between two reads of one workflow, however many of its pods are held")
	flags.DurationVar(&c.Resync, "resync", c.Resync, "time after which every held pod is looked at again although nothing has changed")
}

// check refuses values with a sentence that names the flag.
func (f *serveFlags) check() error {
	c := &f.config
	if msgs := validation.IsQualifiedName(c.Policy.Finalizer); len(msgs) > 0 || !strings.Contains(c.Policy.Finalizer, "/") {
		return fmt.Errorf("--finalizer must be a qualified name such as example.com/status, got %q", c.Policy.Finalizer)
	}
	if msgs := validation.IsValidLabelValue(c.Policy.InstanceID); len(msgs) > 0 {
		return fmt.Errorf("--instanceid must be a label value, got %q", c.Policy.InstanceID)
	}
	if err := f.checkReconcile(); err != nil {
		return err
	}
	for _, d := range []struct {
		flag       string
		value, min time.Duration
	}{
		{"capture-grace", c.Policy.CaptureGrace, 0},
		{"hidden-after", c.Policy.HiddenAfter, 0},
		{"node-lost-after", c.Policy.NodeLost, time.Second},
		{"max-hold", c.Policy.MaxHold, 0},
		{"workflow-read-interval", c.ReadInterval, 100 * time.Millisecond},
		{"resync", c.Resync, 10 * time.Second},
		{"min-age", c.Policy.MinAge, 0},
		{"clock-tolerance", c.Policy.ClockTolerance, 0},
		{"request-memory", c.RequestMemory, 10 * time.Minute},
		{"default-deadline", c.DefaultDeadline, time.Millisecond},
		{"drain-delay", c.DrainDelay, 0},
		{"shutdown-timeout", c.ShutdownTimeout, time.Millisecond},
	} {
		if d.value < d.min {
			return fmt.Errorf("--%s must be at least %s, got %s", d.flag, d.min, d.value)
		}
	}
	if c.MaxWaiters < 1 {
		return fmt.Errorf("--max-waiters must be at least 1, got %d", c.MaxWaiters)
	}
	if c.MaxWritesInFlight < 2 {
		return fmt.Errorf("--max-writes-in-flight must be at least 2, got %d", c.MaxWritesInFlight)
	}
	if err := server.CheckAddress(c.GRPCAddress, c.AllowUnauthenticated); err != nil {
		return fmt.Errorf("--grpc-address: %w", err)
	}
	if err := server.CheckAddress(c.HTTPAddress, c.AllowUnauthenticated); err != nil {
		return fmt.Errorf("--http-address: %w", err)
	}
	_, err := f.logger(io.Discard)
	return err
}

func (f *serveFlags) checkReconcile() error {
	c := &f.config
	for _, ns := range c.Namespaces {
		if msgs := validation.IsDNS1123Label(ns); len(msgs) > 0 {
			return fmt.Errorf("--namespaces must be a comma-separated list of namespaces, got %q in it", ns)
		}
	}
	mode, err := server.ParseReconcileMode(f.reconcile)
	if err != nil {
		return fmt.Errorf("--reconcile must be off, report or on, got %q", f.reconcile)
	}
	c.Reconcile = mode
	switch f.unowned {
	case "report", "release":
		c.Policy.ReleaseUnowned = f.unowned == "release"
	default:
		return fmt.Errorf("--unowned must be report or release, got %q", f.unowned)
	}
	if c.ReconcileWorkers < 1 {
		return fmt.Errorf("--reconcile-workers must be at least 1, got %d", c.ReconcileWorkers)
	}
	return nil
}

func (f *serveFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	switch f.logLevel {
	case "debug", "info", "warn", "error":
		if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("--log-level must be debug, info, warn or error, got %q", f.logLevel)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch f.logFormat {
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format must be json or text, got %q", f.logFormat)
}

func (f *serveFlags) run(ctx context.Context, environ []string, stderr io.Writer) error {
	log, err := f.logger(stderr)
	if err != nil {
		return &usageError{err}
	}
	adopt(log)
	cfg, err := restConfig(f.kubeconfig, f.context, lookup(environ, "KUBECONFIG"))
	if err != nil {
		return err
	}
	v := buildVersion()
	log.Info("starting", "version", v.Version, "revision", v.Revision, "api_server", cfg.Host)
	c := f.config
	c.Kubernetes, c.Log, c.UserAgent = cfg, log, "finalizerd/"+v.Version
	c.Listening = func(a server.Addresses) {
		log.Info("listening", "grpc", a.GRPC.String(), "http", a.HTTP.String())
	}
	if err := server.Run(ctx, c); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// adopt sends what client-go and gRPC log, through globals of theirs, to log.
func adopt(log *slog.Logger) {
	klog.SetSlogLogger(log)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(log.Handler(), slog.LevelWarn).Writer()))
}

// restConfig finds the API server: the given file, else those of KUBECONFIG,
// else the pod's service account.
func restConfig(file, contextName, fromEnv string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	switch {
	case file != "":
	case fromEnv != "":
		for _, p := range strings.Split(fromEnv, string(os.PathListSeparator)) {
			if p != "" {
				rules.Precedence = append(rules.Precedence, p)
			}
		}
	case contextName != "":
		return nil, &usageError{fmt.Errorf("--context %s needs --kubeconfig or KUBECONFIG", contextName)}
	default:
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("cannot tell where the API server is: give --kubeconfig, set KUBECONFIG, or run in a pod with a service account (%w)", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: contextName}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be used, correct it or give another with --kubeconfig: %w", err)
	}
	return cfg, nil
}

func lookup(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}
