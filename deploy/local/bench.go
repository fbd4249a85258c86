package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/finalizerd/finalizerd/deploy/local/internal/bench"
	"github.com/finalizerd/finalizerd/deploy/local/internal/controlplane"
)

func newBenchCommand() *cobra.Command {
	options := bench.Options{}
	command := &cobra.Command{
		Use:   "bench --finalizerd FILE [flags] [-- flags of finalizerd serve]",
		Short: "Compare finalizerd with a bare client-go loop",
		Long: `bench brings a control plane up, releases and deletes fresh pods with finalizerd and with a bare client-go loop that
sends the same requests at the same concurrency, in alternating rounds, and prints one JSON line a case on standard
output, and a table on standard error at the end. The case orphans deletes workflows under their held pods while no
finalizerd runs, and measures how fast one that is started lets them go, and what single calls wait for meanwhile.`,
		Args: onlyAfterDash,
		RunE: func(command *cobra.Command, args []string) error {
			options.Args = args
			return runBench(command.Context(), options, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	finalizerdFlag(command, &options.Finalizerd)
	flags := command.Flags()
	flags.IntVar(&options.Pods, "pods", 2000, "pods of each round")
	flags.IntVar(&options.Orphans, "orphans", 20000, "pods of the case orphans")
	flags.IntVar(&options.Rounds, "rounds", 3, "rounds of each side; the rates are their medians")
	flags.StringSliceVar(&options.Cases, "cases", bench.CaseNames(), "what to measure, of "+strings.Join(bench.CaseNames(), ", "))
	return command
}

func runBench(ctx context.Context, options bench.Options, out, log io.Writer) error {
	if err := checkExecutable(options.Finalizerd); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "finalizerd-bench-")
	if err != nil {
		return fmt.Errorf("make a folder for the logs: %w", err)
	}
	defer os.RemoveAll(dir)
	progress := newProgress(log)
	defer progress.stop()
	options.Dir, options.AuditLog, options.Progress = dir, filepath.Join(dir, "audit.jsonl"), progress.report
	var results []bench.Result
	options.Done = func(result bench.Result) error {
		results = append(results, result)
		return json.NewEncoder(out).Encode(result)
	}
	var orphans *bench.OrphansResult
	options.OrphansDone = func(result bench.OrphansResult) error {
		orphans = &result
		return json.NewEncoder(out).Encode(result)
	}
	if err := controlplane.During(ctx, controlplane.Options{
		Assets: os.Getenv(assetsVariable), AuditLog: options.AuditLog, Progress: progress.report,
	}, func(ctx context.Context, plane *controlplane.ControlPlane) error {
		if options.Config, err = plane.RESTConfig(); err != nil {
			return err
		}
		options.Kubeconfig = plane.Kubeconfig()
		options.ServerPIDs = []int{plane.APIServerPID(), plane.EtcdPID()}
		return bench.Run(ctx, options)
	}); err != nil {
		return err
	}
	progress.stop()
	if len(results) > 0 {
		if err := bench.WriteTable(log, results); err != nil {
			return err
		}
	}
	if orphans == nil {
		return nil
	}
	return bench.WriteOrphansTable(log, *orphans)
}
