package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"

	"github.com/finalizerd/finalizerd/deploy/local/internal/audit"
	"github.com/finalizerd/finalizerd/deploy/local/internal/daemon"
	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

// userAgent is how finalizerd's requests begin to name their sender, in the audit log.
const userAgent = "finalizerd/"

const roundTimeout = 10 * time.Minute

// runOurs starts a finalizerd, lets it see the pods and warms it up, and measures.
func (b *bench) runOurs(ctx context.Context, w workload, s *stage) (r round, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	options := daemon.Options{
		Executable: b.Finalizerd, Kubeconfig: b.Kubeconfig, LogFile: filepath.Join(b.Dir, "finalizerd.log"),
		// With its reconciler on, finalizerd would release these pods itself after a while, since their results are stored.
		Args: append([]string{"--reconcile=report"}, b.Args...),
	}
	if options.GRPCAddress, options.HTTPAddress, err = daemon.FreeAddresses(); err != nil {
		return r, err
	}
	err = daemon.During(ctx, options, func(ctx context.Context, d *daemon.Daemon) error {
		c, err := d.Connect()
		if err != nil {
			return err
		}
		defer c.Close()
		if err := daemon.WaitSeen(ctx, c, namespace, s.wf.Name, len(s.pods)); err != nil {
			return err
		}
		if err := daemon.WaitSeen(ctx, c, namespace, s.warmWF.Name, len(s.warm)); err != nil {
			return err
		}
		if _, err := concurrently(ctx, 8, s.warm, releaseOne(c)); err != nil {
			return err
		}
		r, err = b.record(ctx, d.PID(), func(ctx context.Context, r *round) error {
			r.pods = len(s.pods)
			if w.single {
				r.latencies, err = concurrently(ctx, w.inFlight, s.pods, releaseOne(c))
				return err
			}
			return bulk(ctx, c, w, s)
		})
		return err
	})
	return r, err
}

// record measures what do does: time, processor time, and requests of finalizerd. daemon is its pid, 0 if it does not run.
func (b *bench) record(ctx context.Context, daemon int, do func(context.Context, *round) error) (round, error) {
	begin, err := b.audit.End()
	if err != nil {
		return round{}, err
	}
	before, err := b.processorTimes(daemon)
	if err != nil {
		return round{}, err
	}
	r := round{}
	began := time.Now()
	if err := do(ctx, &r); err != nil {
		return round{}, err
	}
	r.took = time.Since(began)
	after, err := b.processorTimes(daemon)
	if err != nil {
		return round{}, err
	}
	r.daemon, r.server, r.client = after.daemon-before.daemon, after.server-before.server, after.client-before.client
	log, err := b.audit.Settled(ctx, begin)
	if err != nil {
		return round{}, err
	}
	for _, request := range log {
		if !strings.HasPrefix(request.UserAgent, userAgent) {
			continue
		}
		switch kindOf(request) {
		case writing:
			r.writes++
		case reading:
			r.reads++
		}
	}
	return r, nil
}

// kind is what a request costs. Watches are neither of the two: there is one, whatever happens.
type kind int

const (
	watching kind = iota
	reading
	writing
)

func kindOf(request audit.Request) kind {
	switch request.Verb {
	case "patch", "delete", "create", "update", "deletecollection":
		return writing
	case "get", "list":
		return reading
	}
	return watching
}

// processorTimes returns the three processor times so far, as a round with nothing else in it.
func (b *bench) processorTimes(daemon int) (r round, err error) {
	if daemon != 0 {
		if r.daemon, err = processorTime(daemon); err != nil {
			return r, err
		}
	}
	for _, pid := range b.ServerPIDs {
		spent, err := processorTime(pid)
		if err != nil {
			return r, err
		}
		r.server += spent
	}
	r.client, err = processorTime(os.Getpid())
	return r, err
}

// releaseOne asserts the capture, as the workflow controller does.
func releaseOne(c *client.Client) func(context.Context, scenario.Pod) error {
	return func(ctx context.Context, pod scenario.Pod) error {
		answer, err := c.ReleasePod(ctx, &finalizerv1.ReleasePodRequest{
			Namespace: namespace, Pod: pod.Name, PodUid: string(pod.UID), Captured: true,
		})
		if err != nil {
			return fmt.Errorf("release %s: %w", pod.Name, err)
		}
		if outcome := answer.GetResult().GetOutcome(); outcome != finalizerv1.Outcome_OUTCOME_RELEASED {
			return fmt.Errorf("release %s: %s: %s", pod.Name, outcome, answer.GetResult().GetMessage())
		}
		return nil
	}
}

// bulk makes one call for all pods, whose capture finalizerd verifies.
func bulk(ctx context.Context, c *client.Client, w workload, s *stage) error {
	if w.delete {
		answer, err := c.DeleteWorkflowPods(ctx, &finalizerv1.DeleteWorkflowPodsRequest{Namespace: namespace, Workflow: s.wf.Name, All: true})
		if err == nil && int(answer.GetSummary().GetDeleted()) != len(s.pods) {
			err = fmt.Errorf("not all of %d pods are deleted: %s", len(s.pods), answer.GetSummary())
		}
		return err
	}
	answer, err := c.ReleaseWorkflowPods(ctx, &finalizerv1.ReleaseWorkflowPodsRequest{Namespace: namespace, Workflow: s.wf.Name, All: true})
	if err == nil && int(answer.GetSummary().GetReleased()) != len(s.pods) {
		err = fmt.Errorf("not all of %d pods are released: %s", len(s.pods), answer.GetSummary())
	}
	return err
}

// concurrently runs do for all pods, so many at once, until the first error, and returns how long each took.
func concurrently(ctx context.Context, inFlight int, pods []scenario.Pod, do func(context.Context, scenario.Pod) error) ([]time.Duration, error) {
	latencies := make([]time.Duration, len(pods))
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range inFlight {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(pods) {
					return nil
				}
				began := time.Now()
				if err := do(ctx, pods[i]); err != nil {
					return err
				}
				latencies[i] = time.Since(began)
			}
		})
	}
	return latencies, group.Wait()
}
