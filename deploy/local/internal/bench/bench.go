// Package bench compares finalizerd with a bare client-go loop that sends the same requests at the same concurrency, on the
// same number of fresh pods, in one run. Its last case, orphans, has no rival: it measures how a finalizerd that starts gets
// rid of what hangs.
//
// It imports packages scenario, daemon, audit and kubelet. Of finalizerd it knows only the API. The two sides alternate round by
// round, so that what drifts (the size of the store, the machine) hits both; in the bare loop's rounds no finalizerd runs,
// so that its watches do not slow its rival down. Client, finalizerd and control plane share the machine: ratios carry over
// to other machines, absolute numbers do not.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/deploy/local/internal/audit"
	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

const namespace = "bench"

// Options tells Run what to measure. All fields are required.
type Options struct {
	Config     *rest.Config // an administrator's, without a rate limit
	Kubeconfig string       // the same, for finalizerd
	Finalizerd string       // a built one
	Args       []string     // further flags of finalizerd serve; may be nil
	Dir        string       // a folder for finalizerd's log
	AuditLog   string       // file that the API server writes its audit log to
	// ServerPIDs are the processes whose time counts as the API server's: kube-apiserver and etcd.
	ServerPIDs []int
	Pods       int      // a round
	Rounds     int      // of each side
	Orphans    int      // pods of the case orphans
	Cases      []string // of CaseNames
	Progress   func(message string)
	// Done is told of each comparison when it is measured, and OrphansDone of the case orphans.
	Done        func(Result) error
	OrphansDone func(OrphansResult) error
}

// workload is what one case does to each pod.
type workload struct {
	name     string
	delete   bool // DELETE, then the release
	single   bool // one call a pod; else one call for all
	inFlight int  // calls at once, of the bare loop and of single calls
}

func workloads() []workload {
	return []workload{
		{name: "bulk_release", inFlight: 32},
		{name: "bulk_delete", delete: true, inFlight: 32},
		{name: "single_release_1", single: true, inFlight: 1},
		{name: "single_release_32", single: true, inFlight: 32},
	}
}

// CaseNames are the names of all cases, in the order of their run.
func CaseNames() []string {
	var names []string
	for _, w := range workloads() {
		names = append(names, w.name)
	}
	return append(names, orphansCase)
}

// round is what one side did once.
type round struct {
	pods          int
	took          time.Duration
	latencies     []time.Duration // of single calls, and of the bare loop's pods
	writes, reads int             // finalizerd's requests, from the audit log
	daemon        time.Duration   // processor time of finalizerd
	server        time.Duration   // processor time of kube-apiserver and etcd
	client        time.Duration   // processor time of this process: the client, and the controllers that watch
}

// Run measures the cases one after another. It fails when a case cannot be measured, and when a pod does not end as it
// should: a wrong answer is not a fast one.
func Run(ctx context.Context, options Options) error {
	if options.Pods < 1 || options.Rounds < 1 || options.Orphans < 1 {
		return errors.New("the numbers of pods, of orphans and of rounds must be at least 1")
	}
	for _, name := range options.Cases {
		if !slices.Contains(CaseNames(), name) {
			return fmt.Errorf("there is no case %q: choose of %v", name, CaseNames())
		}
	}
	cluster, err := scenario.New(options.Config, "bench-setup")
	if err != nil {
		return err
	}
	bare, err := newBare(options.Config)
	if err != nil {
		return err
	}
	b := &bench{Options: options, cluster: cluster, bare: bare, audit: audit.Log{Path: options.AuditLog}}
	if err := cluster.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	for _, w := range workloads() {
		if !slices.Contains(options.Cases, w.name) {
			continue
		}
		result, err := b.measure(ctx, w)
		if err != nil {
			return fmt.Errorf("case %s: %w", w.name, err)
		}
		if err := options.Done(result); err != nil {
			return err
		}
	}
	if !slices.Contains(options.Cases, orphansCase) {
		return nil
	}
	result, err := b.orphans(ctx)
	if err != nil {
		return fmt.Errorf("case %s: %w", orphansCase, err)
	}
	return options.OrphansDone(result)
}

// bench is one run.
type bench struct {
	Options
	cluster *scenario.Cluster
	bare    *bare
	audit   audit.Log
	stages  int // workflows made so far, for their names
}

// measure alternates the sides: ours, bare, bare, ours, ours, bare and so on.
func (b *bench) measure(ctx context.Context, w workload) (Result, error) {
	var ours, bare []round
	for i := range 2 * b.Rounds {
		isOurs := i%4 == 0 || i%4 == 3
		side, run := "bare loop", b.runBare
		if isOurs {
			side, run = "finalizerd", b.runOurs
		}
		b.Progress(fmt.Sprintf("%s, round %d of %d: %s", w.name, i+1, 2*b.Rounds, side))
		r, err := b.onStage(ctx, w, run)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", side, err)
		}
		if isOurs {
			ours = append(ours, r)
		} else {
			bare = append(bare, r)
		}
	}
	return resultOf(w, ours, bare), nil
}

// stage is a workflow with held pods whose results are all stored, and some more pods to warm up with.
type stage struct {
	wf, warmWF scenario.Workflow
	pods, warm []scenario.Pod
}

const warmUps = 64

// onStage makes fresh pods, runs one side on them, and clears up.
func (b *bench) onStage(ctx context.Context, w workload, run func(context.Context, workload, *stage) (round, error)) (round, error) {
	b.stages++
	name := fmt.Sprintf("bench-%d", b.stages)
	s := &stage{}
	var err error
	if s.wf, s.pods, err = b.build(ctx, name, b.Pods); err != nil {
		return round{}, err
	}
	if s.warmWF, s.warm, err = b.build(ctx, name+"-warm", warmUps); err != nil {
		return round{}, err
	}
	r, err := run(ctx, w, s)
	if err != nil {
		return round{}, err
	}
	if err := b.checkRound(w, r, len(s.pods)); err != nil {
		return round{}, err
	}
	// Pods first: what the workflow's deletion left to the garbage collector would run into the next round.
	if !w.delete {
		if err := b.cluster.RemovePods(ctx, s.wf, s.pods...); err != nil {
			return round{}, err
		}
	}
	if err := b.cluster.RemovePods(ctx, s.warmWF, s.warm...); err != nil {
		return round{}, err
	}
	if err := b.cluster.RemoveWorkflow(ctx, s.wf); err != nil {
		return round{}, err
	}
	return r, b.cluster.RemoveWorkflow(ctx, s.warmWF)
}

func (b *bench) build(ctx context.Context, name string, pods int) (scenario.Workflow, []scenario.Pod, error) {
	wf, err := b.cluster.CreateWorkflow(ctx, namespace, name)
	if err != nil {
		return wf, nil, err
	}
	made, err := b.cluster.CreatePods(ctx, wf, scenario.Waits, scenario.Names(name, pods)...)
	if err != nil {
		return wf, nil, err
	}
	return wf, made, b.cluster.StoreNodes(ctx, wf, scenario.Nodes("Succeeded", made...))
}

// checkRound fails a round in which finalizerd did not write what the work needs: then it was not the same work.
func (b *bench) checkRound(w workload, r round, pods int) error {
	need := pods
	if w.delete {
		need = 2 * pods
	}
	if r.daemon > 0 && r.writes < need {
		return fmt.Errorf("the audit log has %d writes of finalizerd, %d are needed", r.writes, need)
	}
	return nil
}
