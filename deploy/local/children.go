package main

import (
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// newEtcdCommand and newAPIServerCommand are what the control plane runs this executable as. Both take the flags of the
// program that they are.
func newEtcdCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "etcd",
		Short:              "Run etcd",
		Hidden:             true,
		DisableFlagParsing: true,
		Run: func(_ *cobra.Command, args []string) {
			signal.Reset() // what main catches; the program has handlers of its own
			etcdmain.Main(append([]string{"etcd"}, args...))
		},
	}
}

func newAPIServerCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kube-apiserver",
		Short:              "Run kube-apiserver",
		Hidden:             true,
		DisableFlagParsing: true,
		Run: func(_ *cobra.Command, args []string) {
			signal.Reset() // what main catches; the program has handlers of its own
			server := app.NewAPIServerCommand()
			server.SetArgs(append([]string{}, args...))
			os.Exit(cli.Run(server))
		},
	}
}
