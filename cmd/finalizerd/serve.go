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
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/finalizerd/finalizerd/server"
	"github.com/finalizerd/finalizerd/server/finalizer"
	"github.com/finalizerd/finalizerd/server/lane"
)

// serveFlags are the values of serve's flags.
type serveFlags struct {
	kubeconfig, context       string
	grpcAddress, httpAddress  string
	withoutAuthentication     bool
	policy                    finalizer.Policy
	maxWaiters, maxWrites     int
	requestMemory             time.Duration
	defaultDeadline           time.Duration
	drainDelay, shutdownLimit time.Duration
	logFormat, logLevel       string
}

func newServe(environ []string) *cobra.Command {
	f := &serveFlags{policy: finalizer.DefaultPolicy()}
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
	flags.SortFlags = false
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that tells how to reach the API server; empty: the files of KUBECONFIG, else the pod's service account")
	flags.StringVar(&f.context, "context", "", "context `name` in the kubeconfig; empty: its current one")
	flags.StringVar(&f.grpcAddress, "grpc-address", server.DefaultGRPCAddress, "`host:port` of gRPC; port 0 takes a free one")
	flags.StringVar(&f.httpAddress, "http-address", server.DefaultHTTPAddress, "`host:port` of REST, health, readiness and metrics")
	flags.BoolVar(&f.withoutAuthentication, "danger-listen-without-authentication", false, "allow addresses that are not loopback, although callers are not authenticated: whoever reaches them can delete pods")
	flags.StringVar(&f.policy.Finalizer, "finalizer", f.policy.Finalizer, "the finalizer that the service owns")
	flags.StringVar(&f.policy.InstanceID, "instanceid", "", "instance id of the workflow controller; empty: the default instance")
	flags.DurationVar(&f.policy.MinAge, "min-age", f.policy.MinAge, "age below which a pod is never taken for abandoned")
	flags.DurationVar(&f.policy.ClockTolerance, "clock-tolerance", f.policy.ClockTolerance, "most that the clocks of API server, controller and nodes may differ")
	flags.IntVar(&f.maxWaiters, "max-waiters", lane.DefaultMaxWaiters, "callers that may wait for one workflow; more get WORKFLOW_BUSY")
	flags.IntVar(&f.maxWrites, "max-writes-in-flight", 64, "ceiling of the adaptive limit on concurrent writes, at least 2")
	flags.DurationVar(&f.requestMemory, "request-memory", time.Hour, "how long the answer of a request_id is kept, at least 10m")
	flags.DurationVar(&f.defaultDeadline, "default-deadline", server.DefaultDeadline, "deadline of unary calls that come without one")
	flags.DurationVar(&f.drainDelay, "drain-delay", 0, "time between \"not ready\" and the refusal of new connections at shutdown")
	flags.DurationVar(&f.shutdownLimit, "shutdown-timeout", server.DefaultShutdownTimeout, "most time for calls under way at shutdown, after the drain delay")
	flags.StringVar(&f.logFormat, "log-format", "json", "json or text")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; debug logs reads too")
}

// check refuses values with a sentence that names the flag.
func (f *serveFlags) check() error {
	if msgs := validation.IsQualifiedName(f.policy.Finalizer); len(msgs) > 0 || !strings.Contains(f.policy.Finalizer, "/") {
		return fmt.Errorf("--finalizer must be a qualified name such as %s, got %q", finalizer.DefaultFinalizer, f.policy.Finalizer)
	}
	if msgs := validation.IsValidLabelValue(f.policy.InstanceID); len(msgs) > 0 {
		return fmt.Errorf("--instanceid must be a label value, got %q", f.policy.InstanceID)
	}
	for _, d := range []struct {
		flag       string
		value, min time.Duration
	}{
		{"min-age", f.policy.MinAge, 0},
		{"clock-tolerance", f.policy.ClockTolerance, 0},
		{"request-memory", f.requestMemory, 10 * time.Minute},
		{"default-deadline", f.defaultDeadline, time.Millisecond},
		{"drain-delay", f.drainDelay, 0},
		{"shutdown-timeout", f.shutdownLimit, time.Millisecond},
	} {
		if d.value < d.min {
			return fmt.Errorf("--%s must be at least %s, got %s", d.flag, d.min, d.value)
		}
	}
	if f.maxWaiters < 1 {
		return fmt.Errorf("--max-waiters must be at least 1, got %d", f.maxWaiters)
	}
	if f.maxWrites < 2 {
		return fmt.Errorf("--max-writes-in-flight must be at least 2, got %d", f.maxWrites)
	}
	for flag, address := range map[string]string{"grpc-address": f.grpcAddress, "http-address": f.httpAddress} {
		if err := server.CheckAddress(address, f.withoutAuthentication); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	_, err := f.logger(io.Discard)
	return err
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
	klog.SetSlogLogger(log) // client-go logs through klog
	cfg, err := restConfig(f.kubeconfig, f.context, lookup(environ, "KUBECONFIG"))
	if err != nil {
		return err
	}
	v := buildVersion()
	log.Info("starting", "version", v.Version, "revision", v.Revision, "api_server", cfg.Host)
	return server.Run(ctx, server.Config{
		Frontend: server.Frontend{
			Log:                  log,
			GRPCAddress:          f.grpcAddress,
			HTTPAddress:          f.httpAddress,
			AllowUnauthenticated: f.withoutAuthentication,
			DefaultDeadline:      f.defaultDeadline,
			DrainDelay:           f.drainDelay,
			ShutdownTimeout:      f.shutdownLimit,
			Listening: func(a server.Addresses) {
				log.Info("listening", "grpc", a.GRPC.String(), "http", a.HTTP.String())
			},
		},
		Kubernetes:        cfg,
		Policy:            f.policy,
		MaxWaiters:        f.maxWaiters,
		MaxWritesInFlight: f.maxWrites,
		RequestMemory:     f.requestMemory,
		UserAgent:         "finalizerd/" + v.Version,
	})
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
