package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

func TestB26_ALargeWorkflowCostsOneWriteAPodAndCanBeWatched(t *testing.T) {
	const n = 2000
	f := newFixture(t)
	d := suite.shared
	nodes := make([]node, n)
	for i := range nodes {
		nodes[i] = podNode(fmt.Sprintf("pod-%d", i), "Succeeded")
	}
	wf := f.workflow("wf", nodes...)
	f.podsNamed(wf, "pod", n, onNode)
	f.waitPods(d, wf, n)

	ctx, cancel := context.WithTimeout(f.ctx, 2*time.Minute)
	defer cancel()
	stream, err := d.WatchWorkflowPods(ctx, &pb.WatchWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, Until: pb.WatchUntil_WATCH_UNTIL_RELEASED})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || !first.GetSnapshot() || len(first.GetPods()) != n || first.GetProgress().GetHeld() != n {
		t.Fatalf("the snapshot: %d pods, %v, %v", len(first.GetPods()), first.GetProgress(), err)
	}
	begun := time.Now()
	answer := make(chan error, 1)
	go func() {
		got, err := d.ReleaseWorkflowPods(ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, All: true, MarkCompleted: true})
		if err == nil && got.GetSummary().GetReleased() != n {
			err = fmt.Errorf("summary %v", got.GetSummary())
		}
		answer <- err
	}()
	held, between, worked := int32(n), 0, 0
	for {
		step, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		p := step.GetProgress()
		if p.GetHeld() > held {
			t.Errorf("progress went back from %d to %d held pods", held, p.GetHeld())
		}
		if held = p.GetHeld(); held > 0 && held < n {
			between++
		}
		if w := p.GetWork(); w != nil {
			worked++
			if w.GetTotal() != n || w.GetOperation() != "ReleaseWorkflowPods" || w.GetFailed() != 0 {
				t.Errorf("work is told as %v", w)
			}
		}
	}
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d releases in %s, %d steps between start and end", n, time.Since(begun).Round(time.Millisecond), between)
	if held != 0 || between < 2 || worked < 2 {
		t.Errorf("the watch ended at %d held pods after %d steps in between, %d of which told of the work", held, between, worked)
	}
	f.wantCounts("the call", f.requests(d.userAgent), count{Writes: n, WorkflowReads: 1})
}

func TestB27_PodsAreFoundByOwnerAndNodeID(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf, other := f.workflow("wf"), f.workflow("other")
	f.pod(wf, "any-name-at-all", withNodeID("wf-1"))
	kept := f.pod(wf, "wf-2", withNodeID("wf-3")) // its name is not its node's
	foreign := f.pod(other, "foreign", withNodeID("wf-1"), withLabel(labelWorkflow, wf.name))
	for _, door := range d.doors() {
		// Twice, so that the second finds a released pod.
		got, err := door.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{
			Namespace: f.ns, Workflow: wf.name, NodeIds: []string{"wf-2", "wf-1", "wf-1", "wf-2"}, Force: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.GetResults()) != 2 {
			t.Fatalf("got %v", got)
		}
		wantResult(t, got.GetResults()[0], pb.Outcome_OUTCOME_NOT_FOUND, none)
		if r := got.GetResults()[0]; r.GetNodeId() != "wf-2" || r.GetPod() != "" {
			t.Errorf("not found: %v", r)
		}
		if r := got.GetResults()[1]; r.GetPod() != "any-name-at-all" || r.GetNodeId() != "wf-1" {
			t.Errorf("found: %v", r)
		}
	}
	f.wantUntouched(kept)
	f.wantUntouched(foreign)
	if w := onlyWrites(f.requests(d.userAgent)); len(w) != 1 {
		t.Errorf("one pod listed twice, asked twice: want one write, got %v", w)
	}
}

func TestB28_AWorkflowWithoutPodsIsOKAndFast(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	f.workflow("empty")
	for _, workflow := range []string{"empty", "never-existed"} {
		for _, door := range d.doors() {
			got, err := door.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: workflow, All: true, Wait: true})
			if err != nil || len(got.GetResults()) != 0 || got.GetSummary().GetTotal() != 0 {
				t.Errorf("%s: %v, %v", workflow, got, err)
			}
			released, err := door.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: workflow, All: true})
			if err != nil || len(released.GetResults()) != 0 {
				t.Errorf("%s: %v, %v", workflow, released, err)
			}
		}
	}
	// Fast by construction: nothing is asked of the API server.
	f.wantCounts("eight calls", f.requests(d.userAgent), count{})
}

func TestB29_SiblingsOfTheNamedNodesAreUntouched(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("failed", "Failed"), podNode("running", "Running"), podNode("done", "Succeeded"))
	f.pod(wf, "failed", inPhase(corev1.PodFailed))
	siblings := []*corev1.Pod{f.pod(wf, "running", inPhase(corev1.PodRunning)), f.pod(wf, "done", inPhase(corev1.PodSucceeded))}
	f.waitPods(d, wf, 3)
	got, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, NodeIds: []string{"failed"}, Wait: true})
	if err != nil || got.GetSummary().GetDeleted() != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, sibling := range siblings {
		f.wantUntouched(sibling)
		if w := onlyWrites(ofPod(f.requests(d.userAgent), sibling.Name)); len(w) > 0 {
			t.Errorf("writes to %s: %v", sibling.Name, w)
		}
	}
}

func TestB30_AWorkflowNameOver63CharactersIsInvalidBeforeAnyRequest(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	long := strings.Repeat("w", 64)
	for _, door := range d.doors() {
		_, err := door.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: long, All: true})
		wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
		wantViolation(t, err, "workflow")
		_, err = door.ReleaseWorkflowPods(f.ctx, &pb.ReleaseWorkflowPodsRequest{Namespace: f.ns, Workflow: long, All: true})
		wantViolation(t, err, "workflow")
		_, err = door.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: f.ns, Workflow: long})
		wantViolation(t, err, "workflow")
	}
	stream, err := d.WatchWorkflowPods(f.ctx, &pb.WatchWorkflowPodsRequest{Namespace: f.ns, Workflow: long})
	if err == nil {
		_, err = stream.Recv()
	}
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	f.wantCounts("the refused calls", f.requests(d.userAgent), count{})
}

func TestB31_TheReleaseOfTheOldUIDNeverWaitsForTheNewPod(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Failed"))
	f.pod(wf, "pod", inPhase(corev1.PodFailed))
	f.waitPods(d, wf, 1)
	f.deletePod("pod") // it terminates under the name that the retry wants
	var successor *corev1.Pod
	var creating sync.WaitGroup
	creating.Go(func() {
		for f.ctx.Err() == nil {
			pod, err := f.tryPod(wf, "pod", withNodeID("pod-2"))
			if err == nil {
				successor = pod
				return
			}
			if !apierrors.IsAlreadyExists(err) {
				t.Errorf("create: %v", err)
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(f.ctx, 20*time.Second)
	defer cancel()
	got, err := d.DeleteWorkflowPods(ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name, NodeIds: []string{"pod"}, Wait: true})
	if status.Code(err) != codes.OK || got.GetSummary().GetDeleted() != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	creating.Wait()
	if successor == nil {
		t.Fatal("the successor could not be created")
	}
	f.wantUntouched(successor)
}
