package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program, of Kubernetes and of etcd",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return fmt.Errorf("this program was built without module information")
			}
			out := command.OutOrStdout()
			fmt.Fprintln(out, "local", info.Main.Version)
			for _, module := range info.Deps {
				switch module.Path {
				case "k8s.io/kubernetes", "go.etcd.io/etcd/server/v3":
					fmt.Fprintln(out, module.Path, module.Version)
				}
			}
			_, err := fmt.Fprintln(out, runtime.Version())
			return err
		},
	}
}
