// Command finalizerd releases and deletes the pods of Argo workflows on behalf
// of the workflow controller, Argo Server and people.
//
// This package parses flags and composes. It may import package server, package
// client and its transport, and the generated API, and looks behind none of
// them: what it knows of pods is what the service tells. It exits with 0 after a
// signal or when all is done, 1 when the service failed or held pods stay, and 2
// when it was called wrongly, each failure told in one sentence on standard
// error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(mainCode())
}

func mainCode() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	return execute(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
}

// usageError is a fault of whoever called the command.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	root := newRoot(environ)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "finalizerd: %s\n", oneLine(err))
	var usage *usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// oneLine joins what some errors spread over lines.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}

func newRoot(environ []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "finalizerd",
		Short:         "Releases and deletes the pods of Argo workflows, one serialized path per workflow",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newServe(environ), newPods(environ), newReleaseAll(environ), newProxy(environ), newVersion())
	markUsage(root)
	for _, c := range root.Commands() {
		markUsage(c)
	}
	return root
}

// markUsage makes wrong flags and arguments usage errors.
func markUsage(c *cobra.Command) {
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
	})
	args := c.Args
	c.Args = func(c *cobra.Command, given []string) error {
		if err := args(c, given); err != nil {
			return &usageError{fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
		}
		return nil
	}
}
