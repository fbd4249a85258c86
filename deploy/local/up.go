package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/finalizerd/finalizerd/deploy/local/internal/controlplane"
)

// assetsVariable names a folder with executables etcd and kube-apiserver; the name is envtest's.
const assetsVariable = "KUBEBUILDER_ASSETS"

func newUpCommand() *cobra.Command {
	options := controlplane.Options{Assets: os.Getenv(assetsVariable)}
	var dieWithStdin bool
	command := &cobra.Command{
		Use:   "up",
		Short: "Bring a control plane up and keep it until interrupted",
		Long: `up brings a control plane up on free loopback ports, installs a minimal Workflow kind (argoproj.io/v1alpha1),
prints one line KUBECONFIG=<path> on standard output when all is ready, and keeps it until SIGINT or SIGTERM.
Then everything ends and the temporary folder goes. A second signal ends it at once.

In the folder (--dir to choose and keep it; otherwise where the printed kubeconfig is):

  kubeconfig               admin, who may do everything
  finalizerd.kubeconfig    system:serviceaccount:finalizerd:finalizerd, with the rights that you give it
  limited.kubeconfig       a user without rights
  etcd.pid, kube-apiserver.pid, and the logs etcd.log, kube-apiserver.log, controllers.log

An outage: make the file restart-apiserver in the folder, kill kube-apiserver, and remove the file to have it
started again on the same port. Without that file a child that ends is an error, and up ends with status 1.

Pods: the pretended kubelet has one node, local-node, and acts on pods with spec.nodeName: local-node; there is
no scheduler. Annotations on the pod say how it lives:

  local.finalizerd.dev/run              time until it ends: 0s at once, 1m30s, or manual, which leaves its status
                                        to you; without it the pod runs for ever
  local.finalizerd.dev/outcome          Succeeded (default) or Failed
  local.finalizerd.dev/terminate-after  how long it takes to end when deleted (default 200ms, at most its grace)

With ` + assetsVariable + ` set, the executables etcd and kube-apiserver of that folder are used instead of those
built into this program.`,
		Example: `  local up
  local up --dir ./state --audit-log ./audit.jsonl
  local up --kubeconfig ./kubeconfig --die-with-stdin   # from a test: ends when the test does`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(command.Context())
			defer cancel()
			if dieWithStdin {
				go func() {
					_, _ = io.Copy(io.Discard, command.InOrStdin())
					cancel()
				}()
			}
			return up(ctx, options, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Dir, "dir", "", "folder for all files, kept at the end (default: a temporary folder, removed at the end)")
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "further file for the administrator's kubeconfig, removed at the end")
	flags.StringVar(&options.AuditLog, "audit-log", "", "file for the API server's audit log of pods and workflows, metadata only")
	flags.BoolVar(&options.Kubelet, "kubelet", true, "pretend a kubelet for node local-node")
	flags.IntVar(&options.TerminatedPodGCThreshold, "terminated-pod-gc-threshold", 12500, "number of terminated pods that pod GC lets live; 0 for any number")
	flags.BoolVar(&dieWithStdin, "die-with-stdin", false, "end when standard input is closed too")
	return command
}

// up keeps a control plane until ctx ends.
func up(ctx context.Context, options controlplane.Options, out, log io.Writer) error {
	progress := newProgress(log)
	defer progress.stop()
	options.Progress = progress.report
	return controlplane.During(ctx, options, func(ctx context.Context, plane *controlplane.ControlPlane) error {
		progress.report("ready")
		progress.stop()
		if _, err := fmt.Fprintln(out, "KUBECONFIG="+plane.Kubeconfig()); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
}

// progress says on one line each what is being done, and says it again while it takes long.
type progress struct {
	out    io.Writer
	begin  time.Time
	ticker *time.Ticker
	done   chan struct{}
	once   sync.Once

	mu      sync.Mutex
	current string
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, begin: time.Now(), ticker: time.NewTicker(3 * time.Second), done: make(chan struct{})}
	go func() {
		for {
			select {
			case <-p.done:
				return
			case <-p.ticker.C:
				p.mu.Lock()
				p.print("still " + p.current)
				p.mu.Unlock()
			}
		}
	}()
	return p
}

func (p *progress) report(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = message
	p.ticker.Reset(3 * time.Second)
	p.print(message)
}

func (p *progress) print(message string) {
	fmt.Fprintf(p.out, "local: %5.1fs  %s\n", time.Since(p.begin).Seconds(), message)
}

// stop ends the repetition; report goes on working.
func (p *progress) stop() {
	p.once.Do(func() {
		p.ticker.Stop()
		close(p.done)
	})
}
