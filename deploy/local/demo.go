package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/finalizerd/finalizerd/deploy/local/internal/controlplane"
	"github.com/finalizerd/finalizerd/deploy/local/internal/daemon"
	"github.com/finalizerd/finalizerd/deploy/local/internal/demo"
)

func newDemoCommand() *cobra.Command {
	var finalizerd string
	command := &cobra.Command{
		Use:   "demo --finalizerd FILE",
		Short: "Play the story of finalizerd on a control plane of its own, with checks, and exit",
		Long: `demo brings a control plane and a built finalizerd up on free ports, plays what finalizerd is for, checks each step,
and takes everything down. It exits with 0 if every check held, and names the one that did not otherwise.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return playDemo(command.Context(), finalizerd, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	finalizerdFlag(command, &finalizerd)
	return command
}

func playDemo(ctx context.Context, finalizerd string, out, log io.Writer) error {
	if err := checkExecutable(finalizerd); err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	dir, err := os.MkdirTemp("", "finalizerd-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the logs: %w", err)
	}
	defer os.RemoveAll(dir)
	progress := newProgress(log)
	defer progress.stop()
	audit := filepath.Join(dir, "audit.jsonl")
	return controlplane.During(ctx, controlplane.Options{
		Assets: os.Getenv(assetsVariable), Kubelet: true, AuditLog: audit, Progress: progress.report,
	}, func(ctx context.Context, plane *controlplane.ControlPlane) error {
		progress.report("waiting for finalizerd")
		config, err := plane.RESTConfig()
		if err != nil {
			return err
		}
		options := daemon.Options{Executable: finalizerd, Kubeconfig: plane.Kubeconfig(), LogFile: filepath.Join(dir, "finalizerd.log")}
		if options.GRPCAddress, options.HTTPAddress, err = daemon.FreeAddresses(); err != nil {
			return err
		}
		return demo.Play(ctx, demo.Options{
			Config: config, Daemon: options, AuditLog: audit, Out: out, Caller: []string{executable, callerCommand},
			Ready: func() {
				progress.report("ready")
				progress.stop()
			},
		})
	})
}

const callerCommand = "bulk-call"

// newCallerCommand is what the demo runs this executable as, twice at once.
func newCallerCommand() *cobra.Command {
	var call demo.BulkCall
	command := &cobra.Command{
		Use:    callerCommand,
		Short:  "Make one bulk call for the node IDs on standard input, once that ends",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			lines := bufio.NewScanner(command.InOrStdin())
			for lines.Scan() {
				call.NodeIDs = append(call.NodeIDs, lines.Text())
			}
			if err := lines.Err(); err != nil {
				return fmt.Errorf("read node IDs: %w", err)
			}
			report, err := call.Do(command.Context())
			if err != nil {
				return err
			}
			return json.NewEncoder(command.OutOrStdout()).Encode(report)
		},
	}
	flags := command.Flags()
	flags.StringVar(&call.Target, "target", "", "host:port of finalizerd's gRPC")
	flags.StringVar(&call.Namespace, "namespace", "", "namespace of the workflow")
	flags.StringVar(&call.Workflow, "workflow", "", "name of the workflow")
	flags.BoolVar(&call.Delete, "delete", false, "delete the pods, not only release them")
	return command
}
