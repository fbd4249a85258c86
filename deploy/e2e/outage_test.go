package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

const (
	restartFile = "restart-apiserver" // the protocol of deploy/local
	pidFile     = "kube-apiserver.pid"
)

// takeDown kills the API server. The returned function has it started again.
func (p *controlPlane) takeDown(t *testing.T) (bringUp func()) {
	t.Helper()
	restart := filepath.Join(p.dir, restartFile)
	if err := os.WriteFile(restart, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(p.dir, pidFile))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if err := os.Remove(restart); err != nil {
			t.Error(err)
		}
	})
}

// residentBytes is the memory of a process, as Linux counts it.
func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// callers call without a pause, as controllers do that were not told to wait, until
// stop. Each call on the pods must end, with OK or as one that can be repeated.
//
// Half of them are bulk calls, which try again until their deadline and hold their
// workflow's lane that long; single, which are counted, fail at once.
func (f *fixture) callers(d *daemon, wf workflow, inBulk, singly []*pb.PodRef) (single *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(f.ctx)
	single = &atomic.Int64{}
	var calling sync.WaitGroup
	for i := range 16 {
		calling.Go(func() {
			for ctx.Err() == nil {
				call, done := context.WithTimeout(ctx, 20*time.Second)
				var err error
				if i%2 == 0 {
					ref := singly[int(single.Add(1))%len(singly)]
					_, err = d.ReleasePod(call, f.releasing(ref.GetName(), ref.GetUid()))
				} else {
					_, err = d.ReleaseWorkflowPods(call, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Pods: inBulk, Captured: true})
				}
				done()
				switch c := status.Code(err); {
				case ctx.Err() != nil, err == nil, c == codes.Unavailable, c == codes.ResourceExhausted, c == codes.DeadlineExceeded:
				default:
					f.t.Errorf("a call during the outage: %v", err)
					return
				}
			}
		})
	}
	return single, func() {
		cancel()
		calling.Wait()
	}
}

func TestB39_AnAPIServerThatIsAwayForAMinuteUnderLoadCostsNothingButTime(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, newControlPlane(t))
	const (
		outage           = time.Minute
		workflows, each  = 10, 80
		mostMoreResident = 100 << 20
	)
	keptFlow := f.workflow("kept", podNode("kept", "Running"), podNode("meanwhile", "Running"))
	kept, meanwhile := f.pod(keptFlow, "kept", inPhase(corev1.PodSucceeded)), f.pod(keptFlow, "meanwhile", inPhase(corev1.PodSucceeded))
	f.deletePod("kept")
	f.deletePod("meanwhile")
	called := f.workflow("called")
	refs := f.podsNamed(called, "called", 50, inPhase(corev1.PodSucceeded))
	singly := f.podsNamed(f.workflow("singly"), "singly", 50, inPhase(corev1.PodSucceeded))
	for i := range workflows {
		wf := f.workflow(fmt.Sprintf("wf%d", i))
		f.podsNamed(wf, wf.name, each, inPhase(corev1.PodSucceeded))
		f.deleteWorkflow(wf)
	}
	atMost := func(n int) func() (bool, error) {
		return func() (bool, error) {
			list, err := f.plane.admin.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: labelWorkflow + " notin (kept,called,singly)", ResourceVersion: "0"})
			return err == nil && len(list.Items) <= n, nil // it may be starting still
		}
	}
	f.eventuallySlowly("the garbage collector has deleted them", func() (bool, error) {
		list, err := f.plane.admin.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{ResourceVersion: "0"})
		terminating := 0
		for _, p := range list.Items {
			if p.DeletionTimestamp != nil {
				terminating++
			}
		}
		return terminating == workflows*each+2, err
	})
	f.waitAge(3*time.Second, kept)

	p := f.startProcess(f.reconciling(filepath.Join(f.plane.dir, "kubeconfig"))...)
	d := f.client(p)
	f.eventuallySlowly("it is amid its work", atMost(workflows*each*9/10))
	bringUp := f.plane.takeDown(t)
	defer bringUp()
	before := residentBytes(t, p.Process.Pid)
	calls, stop := f.callers(d, called, refs, singly)
	defer stop()
	most := before
	end := time.Now().Add(outage)
	f.eventuallyWithin(2*outage, "the outage ends", func() (bool, error) {
		most = max(most, residentBytes(t, p.Process.Pid))
		return time.Now().After(end), nil
	})
	t.Logf("%d single calls; resident: %d MB before, at most %d MB meanwhile", calls.Load(), before>>20, most>>20)
	if most-before > mostMoreResident {
		t.Errorf("resident memory grew from %d MB to %d MB", before>>20, most>>20)
	}
	if calls.Load() < 100 {
		t.Errorf("%d single calls in %s: they hang", calls.Load(), outage)
	}
	bringUp()
	f.eventually("the API server answers", func() (bool, error) {
		_, err := f.plane.admin.CoreV1().Pods(f.ns).Get(f.ctx, "kept", metav1.GetOptions{})
		return err == nil, nil
	})
	back := time.Now()
	f.eventuallySlowly("all orphans are gone", atMost(0))
	f.waitReadyz(d)
	f.eventually("the calls get through", func() (bool, error) {
		got, err := d.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: called.name, Pods: refs, Captured: true})
		return err == nil && got.GetSummary().GetAlreadyDone()+got.GetSummary().GetReleased() == int32(len(refs)), nil
	})
	t.Logf("%s after the API server came back all is done", time.Since(back).Round(time.Second))
	stop()
	f.wantHeld(kept)
	f.setNodes(keptFlow, podNode("kept", "Running"), podNode("meanwhile", "Succeeded"))
	f.waitFor("gone", gone, meanwhile)
	f.wantHeld(kept)
}
