package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/finalizerd/finalizerd/client"

	"github.com/finalizerd/finalizerd/deploy/local/internal/daemon"
	"github.com/finalizerd/finalizerd/deploy/local/internal/kubelet"
	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

// orphansCase is not compared with a bare loop: nothing asks for its releases.
const orphansCase = "orphans"

const (
	orphansNamespace = "bench-orphans"
	orphansEach      = 100 // pods of one workflow
	idleProbes       = 300
	meanwhileProbes  = 600
	// probePeriod is long enough that the single calls, before which finalizerd's own work steps back, are few beside it.
	probePeriod  = 50 * time.Millisecond
	gonePeriod   = 200 * time.Millisecond
	setupTimeout = 30 * time.Minute
	serveTimeout = 30 * time.Minute
	stallTimeout = 2 * time.Minute // without any release: what is left then stays held
	quietPeriod  = time.Second
	quietTime    = 20 * time.Millisecond // of processor in a quiet period: less than that is an idle finalizerd
)

// orphansRun is what the case measures.
type orphansRun struct {
	workflows       int
	before, after   memory // of a finalizerd that may not write, and of the one that has released all
	idle, meanwhile []time.Duration
	cost            round     // took is from the start of the process until no pod was left
	probed          time.Time // when the last of the calls meanwhile was answered
	traffic         traffic
}

// orphans makes held, finished pods whose workflows are then deleted while no finalizerd runs, so that the garbage collector
// deletes the pods and FIN keeps them Terminating. A finalizerd that is started then has to find and release them all,
// while single calls for another workflow go on at first.
func (b *bench) orphans(ctx context.Context) (OrphansResult, error) {
	run := orphansRun{}
	probes, err := b.setOrphansUp(ctx, &run)
	if err != nil {
		return OrphansResult{}, err
	}
	b.Progress(orphansCase + ": single calls without other work")
	if err := b.withReconciler(ctx, "report", func(ctx context.Context, d *daemon.Daemon, c *client.Client) (err error) {
		if err := b.quiet(ctx, d.PID()); err != nil {
			return err
		}
		if run.before, err = residentMemory(d.PID()); err != nil {
			return err
		}
		run.idle, err = probe(ctx, c, probes[:idleProbes], nil)
		return err
	}); err != nil {
		return OrphansResult{}, err
	}
	left, err := b.cluster.CountPods(ctx, orphansNamespace)
	if err != nil {
		return OrphansResult{}, err
	}
	if left != b.Orphans {
		return OrphansResult{}, fmt.Errorf("--reconcile=report has let %d of %d pods go", b.Orphans-left, b.Orphans)
	}
	if err := b.releaseOrphans(ctx, &run, probes[idleProbes:]); err != nil {
		return OrphansResult{}, err
	}
	return orphansResultOf(b.Orphans, run)
}

// setOrphansUp returns the pods of another workflow, for single calls.
func (b *bench) setOrphansUp(ctx context.Context, run *orphansRun) ([]scenario.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	// Pod GC would delete pods of a node that does not exist, and delete unscheduled ones again and again.
	node, err := kubelet.New(b.Config)
	if err != nil {
		return nil, err
	}
	if err := node.Register(ctx); err != nil {
		return nil, err
	}
	if err := b.cluster.CreateNamespace(ctx, orphansNamespace); err != nil {
		return nil, err
	}
	probeWF, err := b.cluster.CreateWorkflow(ctx, namespace, "probe")
	if err != nil {
		return nil, err
	}
	// Their nodes are not stored: a caller's word alone releases them.
	probes, err := b.cluster.CreatePods(ctx, probeWF, scenario.Waits, scenario.Names("probe", idleProbes+meanwhileProbes)...)
	if err != nil {
		return nil, err
	}
	told := tenths{of: b.Orphans, what: "pods made", progress: b.Progress}
	var workflows []scenario.Workflow
	for made := 0; made < b.Orphans; made += orphansEach {
		told.tell(made)
		name := fmt.Sprintf("orphans-%d", len(workflows)+1)
		wf, err := b.cluster.CreateWorkflow(ctx, orphansNamespace, name)
		if err != nil {
			return nil, err
		}
		if _, err := b.cluster.CreatePods(ctx, wf, scenario.Ended, scenario.Names(name, min(orphansEach, b.Orphans-made))...); err != nil {
			return nil, err
		}
		workflows = append(workflows, wf)
	}
	run.workflows = len(workflows)
	for _, wf := range workflows {
		if err := b.cluster.RemoveWorkflow(ctx, wf); err != nil {
			return nil, err
		}
	}
	told = tenths{of: b.Orphans, what: "pods deleted by the garbage collector", progress: b.Progress}
	return probes, b.cluster.WaitTerminating(ctx, orphansNamespace, b.Orphans, told.tell)
}

// tenths tells of each tenth of a long work once.
type tenths struct {
	of       int
	what     string
	progress func(string)
	told     int // tenths, and one
}

func (t *tenths) tell(done int) {
	if tenth := done*10/t.of + 1; tenth > t.told {
		t.told = tenth
		t.progress(fmt.Sprintf("%s: %d of %d %s", orphansCase, done, t.of, t.what))
	}
}

// withReconciler calls use with a fresh finalizerd that is ready, and a client of it.
func (b *bench) withReconciler(ctx context.Context, mode string, use func(context.Context, *daemon.Daemon, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, serveTimeout)
	defer cancel()
	options := daemon.Options{
		Executable: b.Finalizerd, Kubeconfig: b.Kubeconfig, LogFile: filepath.Join(b.Dir, "finalizerd.log"),
		Args: append(b.Args[:len(b.Args):len(b.Args)], "--reconcile="+mode),
	}
	var err error
	if options.GRPCAddress, options.HTTPAddress, err = daemon.FreeAddresses(); err != nil {
		return err
	}
	return daemon.During(ctx, options, func(ctx context.Context, d *daemon.Daemon) error {
		c, err := d.Connect()
		if err != nil {
			return err
		}
		defer c.Close()
		return use(ctx, d, c)
	})
}

// releaseOrphans starts a finalizerd and returns once no pod is left, or fails.
func (b *bench) releaseOrphans(ctx context.Context, run *orphansRun, probes []scenario.Pod) error {
	b.Progress(fmt.Sprintf("%s: a finalizerd starts, %d pods hang", orphansCase, b.Orphans))
	begin, err := b.audit.End()
	if err != nil {
		return err
	}
	serverBefore, err := b.processorTimes(0)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.withReconciler(ctx, "on", func(ctx context.Context, d *daemon.Daemon, c *client.Client) error {
		done, probed := make(chan struct{}), make(chan error, 1)
		go func() {
			var err error
			run.meanwhile, err = probe(ctx, c, probes, done)
			run.probed = time.Now()
			probed <- err
		}()
		err := b.waitGone(ctx)
		run.cost.took = time.Since(began)
		close(done)
		if err := errors.Join(err, <-probed); err != nil {
			return err
		}
		spent, err := b.processorTimes(d.PID())
		if err != nil {
			return err
		}
		run.cost.daemon, run.cost.server = spent.daemon, spent.server-serverBefore.server
		if err := b.quiet(ctx, d.PID()); err != nil {
			return err
		}
		run.after, err = residentMemory(d.PID())
		return err
	}); err != nil {
		return err
	}
	log, err := b.audit.Settled(ctx, begin)
	if err != nil {
		return err
	}
	run.traffic = trafficOf(log, run.probed)
	return nil
}

// waitGone asks for one pod at a time, which costs the API server next to nothing.
func (b *bench) waitGone(ctx context.Context) error {
	ticker := time.NewTicker(gonePeriod)
	defer ticker.Stop()
	told := tenths{of: b.Orphans, what: "pods gone", progress: b.Progress}
	left, progressed := b.Orphans, time.Now()
	for time.Since(progressed) < stallTimeout {
		now, err := b.cluster.CountPods(ctx, orphansNamespace)
		if err != nil {
			return err
		}
		if now == 0 {
			return nil
		}
		if now < left {
			left, progressed = now, time.Now()
		}
		told.tell(b.Orphans - left)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return fmt.Errorf("%d of %d pods stay held", left, b.Orphans)
}

// quiet returns once the process uses next to no processor time.
func (b *bench) quiet(ctx context.Context, pid int) error {
	ticker := time.NewTicker(quietPeriod)
	defer ticker.Stop()
	last := time.Duration(-1)
	for {
		spent, err := processorTime(pid)
		if err != nil {
			return err
		}
		if last >= 0 && spent-last <= quietTime {
			return nil
		}
		last = spent
		select {
		case <-ctx.Done():
			return fmt.Errorf("finalizerd does not come to rest: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// probe releases one pod after another, one each probePeriod at most, until done is closed or there are no more, and
// returns how long each took. A call that done overtakes is not counted.
func probe(ctx context.Context, c *client.Client, pods []scenario.Pod, done <-chan struct{}) ([]time.Duration, error) {
	ticker := time.NewTicker(probePeriod)
	defer ticker.Stop()
	var latencies []time.Duration
	release := releaseOne(c)
	for _, pod := range pods {
		select {
		case <-done:
			return latencies, nil
		case <-ctx.Done():
			return latencies, ctx.Err()
		case <-ticker.C:
		}
		began := time.Now()
		if err := release(ctx, pod); err != nil {
			return latencies, err
		}
		latencies = append(latencies, time.Since(began))
	}
	return latencies, nil
}
