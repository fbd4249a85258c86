package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

func newReleaseAll(environ []string) *cobra.Command {
	var at connection
	var only scope
	var yes bool
	cmd := &cobra.Command{
		Use:   "release-all",
		Short: "Release every held pod, before an uninstall",
		Long: `Release every pod that carries the finalizer, or those that --namespace,
--workflow and --reason leave, whether its result is stored or not. Without --yes
it only asks the service what would happen, and writes nothing.

Before you uninstall, in this order:

  1. Switch the controller's feature off, or new pods go on being held: set
     ARGO_POD_STATUS_CAPTURE_FINALIZER=false in the workflow-controller (and take
     away the admission policy that adds the finalizer, if you use it), and wait
     until the controller has restarted.
  2. Restart finalizerd with --reconcile=off. Else it may put the finalizer back on
     a pod that a late clean-up labels before its result is stored.
  3. finalizerd release-all          shows what would be released
  4. finalizerd release-all --yes    releases, and says what is left and why
  5. Remove finalizerd once nothing is held any more (exit code 0).

Nothing is deleted; FIN is taken off, and a pod that is being deleted then goes.
Each call is in the audit log of the service as forced. It is safe to repeat.

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query, err := only.request()
			if err != nil {
				return err
			}
			c, err := at.openFrom(cmd.Flags(), environ)
			if err != nil {
				return err
			}
			defer c.Close()
			r := &releaser{
				client: c, query: query, out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(),
				dry: !yes, explain: at.explain, pause: time.Second,
			}
			return r.run(cmd.Context())
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&yes, "yes", false, "release; without it nothing is written")
	at.register(cmd.Flags())
	only.register(cmd.Flags())
	return cmd
}

const (
	// maxRounds bounds the walks over what is held: while a controller goes on
	// making held pods there is no end.
	maxRounds = 20
	// maxIdle is how many rounds in a row may move nothing although waiting may
	// help.
	maxIdle = 5
)

// releaser releases all that a query lists, in rounds, until nothing is left or
// nothing moves.
type releaser struct {
	client    *client.Client
	query     *finalizerv1.ListPodsRequest
	out, errs io.Writer
	dry       bool
	explain   func(error) error
	pause     time.Duration // before a round that follows one which moved nothing
}

func (r *releaser) run(ctx context.Context) error {
	done, idle, first := 0, 0, -1
	var last *round
	for n := range maxRounds {
		held, err := r.list(ctx)
		if err != nil {
			return r.explain(err)
		}
		if n == 0 {
			first = len(held)
			fmt.Fprintf(r.errs, "%s\n", total(countReasons(held)))
		}
		if len(held) == 0 {
			fmt.Fprintf(r.out, "%s released; no held pod is left%s\n", plural(done, "pod"), r.within())
			return nil
		}
		last = newRound(r, held)
		last.run(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted after %s; repeat the command to go on", plural(done+last.done, "released pod"))
		}
		if r.dry {
			return r.concludeDry(last)
		}
		done += last.done
		last.report(r.errs)
		switch {
		case last.done > 0:
			idle = 0
			continue
		case !last.mayPass() || idle == maxIdle:
			return r.stuck(done, last)
		}
		idle++
		if err := sleep(ctx, r.pause<<idle); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s released and there were %d at first, but new held pods keep coming: switch ARGO_POD_STATUS_CAPTURE_FINALIZER off in the workflow-controller first, then repeat the command", plural(done, "pod"), first)
}

// within reminds that a query was narrowed.
func (r *releaser) within() string {
	if r.query.GetNamespace() == "" && r.query.GetReason() == 0 {
		return ""
	}
	return " among those that were asked for"
}

func (r *releaser) list(ctx context.Context) ([]*finalizerv1.Pod, error) {
	var held []*finalizerv1.Pod
	err := walk(ctx, r.client, r.query, func(page []*finalizerv1.Pod) error {
		held = append(held, page...)
		return nil
	})
	return held, err
}

func (r *releaser) concludeDry(last *round) error {
	last.report(r.errs)
	fmt.Fprintf(r.out, "dry run: %d of %s would be released, nothing was written; --yes releases them\n",
		last.done, plural(last.total, "held pod"))
	if n := len(last.failures); n > 0 {
		return fmt.Errorf("%s would stay held: %s", plural(n, "pod"), last.why())
	}
	return nil
}

func (r *releaser) stuck(done int, last *round) error {
	return fmt.Errorf("%s released, and %s held: %s", plural(done, "pod"), stays(len(last.failures)), last.why())
}

func stays(n int) string {
	if n == 1 {
		return "1 pod stays"
	}
	return fmt.Sprintf("%d pods stay", n)
}

func countReasons(pods []*finalizerv1.Pod) map[string]int {
	counts := make(map[string]int)
	for _, p := range pods {
		counts[holdName(p.GetHoldReason())]++
	}
	return counts
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return errors.New("interrupted while waiting to try again; repeat the command to go on")
	case <-t.C:
		return nil
	}
}
