package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/finalizerd/finalizerd/deploy/local/internal/controlplane"
	"github.com/finalizerd/finalizerd/deploy/local/internal/daemon"
	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

type runOptions struct {
	plane                                controlplane.Options
	finalizerd, grpcAddress, httpAddress string
	args                                 []string // further ones of finalizerd serve
}

func newRunCommand() *cobra.Command {
	options := runOptions{plane: controlplane.Options{Assets: os.Getenv(assetsVariable), Kubelet: true}}
	command := &cobra.Command{
		Use:   "run --finalizerd FILE [flags] [-- flags of finalizerd serve]",
		Short: "Bring up a control plane, a demo workflow and finalizerd, and keep them until interrupted",
		Long: `run brings a control plane up as local up does, makes workflow hello with five held pods in namespace demo, serves
it with a built finalizerd, prints commands to try, and keeps everything until SIGINT or SIGTERM.

finalizerd's reconciler only reports here (--reconcile=report): else it would release most of the five pods by itself,
before anybody could try. Give -- --reconcile=on to see that.

finalizerd's log goes to the file finalizerd.log in the control plane's folder, whose path is printed.`,
		Example: `  local run --finalizerd .build/bin/finalizerd
  local run --finalizerd .build/bin/finalizerd --grpc-address 127.0.0.1:12748 --http-address 127.0.0.1:12749
  local run --finalizerd .build/bin/finalizerd -- --log-level debug --reconcile=on`,
		Args: onlyAfterDash,
		RunE: func(command *cobra.Command, args []string) error {
			options.args = args
			return run(command.Context(), options, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	finalizerdFlag(command, &options.finalizerd)
	flags.StringVar(&options.grpcAddress, "grpc-address", "127.0.0.1:2748", "host:port of finalizerd's gRPC")
	flags.StringVar(&options.httpAddress, "http-address", "127.0.0.1:2749", "host:port of finalizerd's REST")
	flags.StringVar(&options.plane.Dir, "dir", "", "folder for all files, kept at the end (default: a temporary folder, removed at the end)")
	return command
}

// finalizerdFlag adds the flag that names the built finalizerd.
func finalizerdFlag(command *cobra.Command, value *string) {
	command.Flags().StringVar(value, "finalizerd", "", "a built finalizerd (required)")
	_ = command.MarkFlagRequired("finalizerd") // fails only if there is no such flag
}

// onlyAfterDash refuses arguments that do not come after "--".
func onlyAfterDash(command *cobra.Command, args []string) error {
	if at := command.ArgsLenAtDash(); at > 0 || at < 0 && len(args) > 0 {
		return fmt.Errorf("unknown argument %q: flags for finalizerd come after --", args[0])
	}
	return nil
}

// run keeps the control plane and finalizerd until ctx ends.
func run(ctx context.Context, options runOptions, out, log io.Writer) error {
	if err := checkExecutable(options.finalizerd); err != nil {
		return err
	}
	if err := daemon.CheckFree(options.grpcAddress, "--grpc-address"); err != nil {
		return err
	}
	if err := daemon.CheckFree(options.httpAddress, "--http-address"); err != nil {
		return err
	}
	progress := newProgress(log)
	defer progress.stop()
	options.plane.Progress = progress.report
	err := controlplane.During(ctx, options.plane, func(ctx context.Context, plane *controlplane.ControlPlane) error {
		progress.report("making workflow hello in namespace demo")
		config, err := plane.RESTConfig()
		if err != nil {
			return err
		}
		if err := scenario.Hello(ctx, config); err != nil {
			return err
		}
		progress.report("waiting for finalizerd")
		return daemon.During(ctx, daemon.Options{
			Executable: options.finalizerd, Kubeconfig: plane.Kubeconfig(), LogFile: filepath.Join(plane.Dir(), "finalizerd.log"),
			GRPCAddress: options.grpcAddress, HTTPAddress: options.httpAddress,
			Args: append([]string{"--reconcile=report"}, options.args...),
		}, func(ctx context.Context, d *daemon.Daemon) error {
			progress.report("ready")
			progress.stop()
			if _, err := fmt.Fprint(out, welcome(d, plane.Kubeconfig(), plane.Dir())); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
	})
	if ctx.Err() != nil {
		return nil // interrupted, at whatever point
	}
	return err
}

func checkExecutable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("--finalizerd: %w; `make build-finalizerd` builds one", err)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("--finalizerd: %s is not an executable file", path)
	}
	return nil
}

// welcome says what there is to try. The commands are the README's.
func welcome(d *daemon.Daemon, kubeconfig, dir string) string {
	grpcHost, httpHost := forPeople(d.GRPCAddress()), forPeople(d.HTTPAddress())
	return fmt.Sprintf(`
finalizerd is up, with workflow hello and its five held pods in namespace demo:

  hello-1             succeeded, its result is stored: may go
  hello-2             succeeded, its result is not stored yet: must stay
  hello-3 to hello-5  failed, results stored, deleted by Argo Server for a retry: stuck in Terminating

Why is a pod held?

  curl -s %[2]s/v1/namespaces/demo/pods/hello-2

Release one. The first is refused, the second goes:

  curl -s -X POST %[2]s/v1/namespaces/demo/pods/hello-2:release -d '{}'
  grpcurl -plaintext -d '{"namespace":"demo","pod":"hello-1"}' %[1]s finalizer.v1.FinalizerService/ReleasePod

What would a retry's delete do? Then do it, and wait until the names are free:

  curl -s -X POST %[2]s/v1/namespaces/demo/workflows/hello:deletePods -d '{"nodeIds":["hello-3","hello-4","hello-5"],"validateOnly":true}'
  curl -s -X POST %[2]s/v1/namespaces/demo/workflows/hello:deletePods -d '{"nodeIds":["hello-3","hello-4","hello-5"],"wait":true,"requestId":"retry-1"}'

The reconciler only reports here, so that the pods wait for you; a cluster's finalizerd releases by itself what may go.

What is held now?

  grpcurl -plaintext -d '{"namespace":"demo"}' %[1]s finalizer.v1.FinalizerService/ListPods

For kubectl:  export KUBECONFIG=%[3]s

gRPC       %[1]s (reflection is on)
REST       http://%[2]s/v1, OpenAPI at /openapi.json, metrics at /metrics
logs       %[4]s
grpcurl    `+"`make tools`"+` builds it into .build/bin

Ctrl-C stops everything.
`, grpcHost, httpHost, kubeconfig, filepath.Join(dir, "*.log"))
}

// forPeople writes a loopback address as the README does.
func forPeople(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err == nil && host == "127.0.0.1" {
		return net.JoinHostPort("localhost", port)
	}
	return address
}
