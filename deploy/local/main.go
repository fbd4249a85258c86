// Program local runs a Kubernetes control plane on this machine, without containers and without root: etcd, kube-apiserver
// and three controllers as Go libraries, in one executable. It exists to try and to test finalizerd.
//
// main only parses and composes; the work is in the internal packages.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "local:", err)
		os.Exit(1)
	}
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "local",
		Short: "A Kubernetes control plane on this machine, to try and test finalizerd",
		Long: `local runs a real Kubernetes control plane on loopback ports: etcd, kube-apiserver, the garbage
collector, the namespace controller and pod GC. Nothing is installed; no containers, no root. Pods do not
run anything: a pretended kubelet moves them through their phases.

Start with:

  local up                 # then use the kubeconfig that it prints
  local up --help          # how pods say how long they want to run`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newUpCommand(), newRunCommand(), newDemoCommand(), newBenchCommand(), newCallerCommand(), newVersionCommand(), newEtcdCommand(), newAPIServerCommand())
	return root
}
