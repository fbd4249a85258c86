package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

func TestReportSaysWhatItWouldDoAndWritesNothing(t *testing.T) {
	f := newFixture(t)
	s := f.scene()
	s.happens()
	d := f.newReconciler(daemonOptions{name: "report", reconcile: "report", policy: soon})
	s.wantListed(d, s.by(func(one situation) pb.HoldReason { return one.reason }))
	for _, name := range s.names {
		one, pod := s.all[name], s.pods[name]
		if one.reason == none {
			continue
		}
		for _, door := range d.doors() {
			got, err := door.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: pod.Name})
			if err != nil {
				t.Fatal(err)
			}
			p := got.GetPod()
			releasable := !one.kept() && one.reason != pb.HoldReason_HOLD_REASON_HIDDEN
			if p.GetHoldReason() != one.reason || p.GetReleasable() != releasable || !p.GetHeld() || p.GetExplanation() == "" {
				t.Errorf("%s, %s: %v, want %s and releasable %v", door.name, name, p, one.reason, releasable)
			}
			if p.GetSinceTime() == nil {
				t.Errorf("%s, %s: since when is not told: %v", door.name, name, p)
			}
		}
	}
	wantUntouchedScene(t, s, d)
	if n := f.samples(d, metricHeld, "reason"); n[word(captured)] == 0 {
		t.Errorf("the metrics of report mode: %v", n)
	}
}

func TestOffDoesNothingByItself(t *testing.T) {
	f := newFixture(t)
	s := f.scene()
	s.happens()
	d := f.newDaemon(daemonOptions{name: "off", policy: soon, namespaces: []string{f.ns}})
	f.waitReadyz(d)
	s.stays("as it was", func(*corev1.Pod) bool { return true }, 5*time.Second)
	wantUntouchedScene(t, s, d)
	if len(f.listed(d, none)) == 0 {
		t.Error("no pod is listed")
	}
}

// wantUntouchedScene fails if the daemon wrote anything.
func wantUntouchedScene(t *testing.T, s *scene, d *daemon) {
	t.Helper()
	if w := onlyWrites(s.requests(d.userAgent)); len(w) > 0 {
		t.Errorf("it wrote: %v", w)
	}
	for _, name := range s.names {
		if one := s.all[name]; one.reason != none && !held(s.liveOf(s.pods[name])) {
			t.Errorf("%s: not held any more", name)
		}
	}
}

func TestReasonsSaySinceWhenAndUntilWhen(t *testing.T) {
	f := newFixture(t)
	const grace, minAge, maxHold = time.Hour, 2 * time.Hour, 3 * time.Hour
	wf := f.workflow("wf", podNode("stored", "Running"), podNode("deleted", "Running"), podNode("runs", "Running"))
	other := f.workflow("other")
	f.pod(wf, "stored", inPhase(corev1.PodSucceeded))
	runs := f.pod(wf, "runs", inPhase(corev1.PodRunning))
	f.pod(wf, "deleted", inPhase(corev1.PodSucceeded))
	f.deletePod("deleted")
	deletion := f.live("deleted").DeletionTimestamp.Time
	young := f.pod(other, "young", inPhase(corev1.PodSucceeded))
	workflowGone(f, other, young)
	ended := metav1.Now().Rfc3339Copy()
	f.patchStatus(wf, map[string]any{"nodes": nodesOf([]node{podNode("stored", "Succeeded").with("finishedAt", ended.UTC().Format(time.RFC3339))})})
	d := f.newReconciler(daemonOptions{name: "times", policy: func(p *finalizer.Policy) {
		p.CaptureGrace, p.MinAge, p.MaxHold = grace, minAge, maxHold
	}})
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_NOT_CAPTURED, 2)
	f.waitNoted(d, pb.HoldReason_HOLD_REASON_ORPHANED, 1)
	f.waitNoted(d, captured, 1)
	for _, test := range []struct {
		pod            string
		reason         pb.HoldReason
		since, release time.Time
	}{
		{"stored", captured, ended.Time, ended.Add(grace)},
		{"deleted", pb.HoldReason_HOLD_REASON_NOT_CAPTURED, deletion, deletion.Add(maxHold)},
		{"runs", pb.HoldReason_HOLD_REASON_NOT_CAPTURED, runs.CreationTimestamp.Time, time.Time{}},
		{"young", pb.HoldReason_HOLD_REASON_ORPHANED, time.Time{}, young.CreationTimestamp.Add(minAge)},
	} {
		for _, door := range d.doors() {
			got, err := door.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: test.pod})
			if err != nil {
				t.Fatal(err)
			}
			page, err := door.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: f.ns, Reason: test.reason})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(page.GetPods(), func(p *pb.Pod) bool { return p.GetName() == test.pod })
			if i < 0 {
				t.Fatalf("%s: %s is not listed for %s", door.name, test.pod, test.reason)
			}
			for how, p := range map[string]*pb.Pod{"GetPod": got.GetPod(), "ListPods": page.GetPods()[i]} {
				what := fmt.Sprintf("%s, %s of %s", door.name, how, test.pod)
				if p.GetHoldReason() != test.reason {
					t.Errorf("%s: %s, want %s", what, p.GetHoldReason(), test.reason)
				}
				if s := p.GetSinceTime(); s == nil || !test.since.IsZero() && s.AsTime().Sub(test.since).Abs() > time.Second || time.Since(s.AsTime()) < 0 {
					t.Errorf("%s: since %v, want %v", what, s.AsTime(), test.since)
				}
				if r := p.GetReleaseTime(); (r == nil) != test.release.IsZero() || r != nil && r.AsTime().Sub(test.release).Abs() > time.Second {
					t.Errorf("%s: released at %v, want %v", what, r.AsTime(), test.release)
				}
			}
		}
	}
}
