package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

func TestAWatchOverRESTIsOneJSONObjectALineAndEndsWhenThePodsAreGone(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf")
	f.podsNamed(wf, "pod", 3, inPhase(corev1.PodSucceeded))
	f.waitPods(d, wf, 3)
	url := fmt.Sprintf("%s/v1/namespaces/%s/workflows/wf/pods:watch?until=WATCH_UNTIL_GONE", d.rest, f.ns)
	req, err := http.NewRequestWithContext(f.ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-ndjson") {
		t.Fatalf("HTTP %d, %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	var last *pb.WatchWorkflowPodsResponse
	gone := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var line struct{ Result json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		step := &pb.WatchWorkflowPodsResponse{}
		if err := protojson.Unmarshal(line.Result, step); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		if last == nil {
			if !step.GetSnapshot() || len(step.GetPods()) != 3 {
				t.Errorf("the snapshot: %v", step)
			}
			if _, err := d.DeleteWorkflowPods(f.ctx, &pb.DeleteWorkflowPodsRequest{Namespace: f.ns, Workflow: "wf", All: true, Force: true}); err != nil {
				t.Fatal(err)
			}
		}
		gone += len(step.GetGone())
		last = step
	}
	if last.GetProgress().GetPods() != 0 || gone != 3 {
		t.Errorf("%d pods told gone, the last step: %v", gone, last)
	}
}

func TestB10_ACompletedPodThatStillCarriesFINIsListedAndReleased(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Succeeded"))
	pod := f.pod(wf, "pod", inPhase(corev1.PodSucceeded), withLabel(labelDone, "true"))
	f.waitPods(d, wf, 1)
	page, err := d.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: f.ns})
	if err != nil || len(page.GetPods()) != 1 || !page.GetPods()[0].GetCompleted() || !page.GetPods()[0].GetHeld() {
		t.Errorf("ListPods: %v, %v", page, err)
	}
	f.wantReleased(d, pod, captured)
}

func TestB11_APodThatLostItsOwnerIsReportedAsUnowned(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf := f.workflow("wf", podNode("pod", "Running"))
	f.pod(wf, "pod", inPhase(corev1.PodSucceeded))
	f.waitPods(d, wf, 1)
	orphan := metav1.DeletePropagationOrphan
	if err := suite.workflows.Namespace(f.ns).Delete(f.ctx, wf.name, metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	f.waitPods(d, wf, 0) // the garbage collector has taken the reference off
	for _, door := range d.doors() {
		page, err := door.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: f.ns, Reason: pb.HoldReason_HOLD_REASON_UNOWNED})
		if err != nil || len(page.GetPods()) != 1 || page.GetPods()[0].GetName() != "pod" {
			t.Errorf("%s, ListPods: %v, %v", door.name, page, err)
		}
		got, err := door.GetPod(f.ctx, &pb.GetPodRequest{Namespace: f.ns, Pod: "pod"})
		if p := got.GetPod(); err != nil || !p.GetHeld() || p.GetReleasable() || p.GetHoldReason() != pb.HoldReason_HOLD_REASON_UNOWNED {
			t.Errorf("%s, GetPod: %v, %v", door.name, got, err)
		}
	}
}

func TestListPagesThroughHeldPodsOnce(t *testing.T) {
	f := newFixture(t)
	d := suite.shared
	wf, other := f.workflow("wf", podNode("pod-0", "Succeeded")), f.workflow("other")
	f.podsNamed(wf, "pod", 7)
	f.pod(wf, "unheld", withFinalizers())
	f.pod(other, "theirs")
	f.waitPods(d, wf, 8)
	f.waitPods(d, other, 1)
	for _, door := range d.doors() {
		walk := func(r *pb.ListPodsRequest) (names []string) {
			r.Namespace, r.PageSize = f.ns, 3
			for {
				page, err := door.ListPods(f.ctx, r)
				if err != nil {
					t.Fatal(err)
				}
				if len(page.GetPods()) > 3 {
					t.Errorf("%s: a page of %d", door.name, len(page.GetPods()))
				}
				for _, p := range page.GetPods() {
					names = append(names, p.GetName())
				}
				if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
					return names
				}
			}
		}
		held := []string{"pod-0", "pod-1", "pod-2", "pod-3", "pod-4", "pod-5", "pod-6"}
		for name, test := range map[string]struct {
			request *pb.ListPodsRequest
			want    []string
		}{
			"all of the namespace": {&pb.ListPodsRequest{}, append(held, "theirs")},
			"of one workflow":      {&pb.ListPodsRequest{Workflow: "wf"}, held},
			"of one reason":        {&pb.ListPodsRequest{Reason: pb.HoldReason_HOLD_REASON_CAPTURED}, held[:1]},
		} {
			if diff := cmp.Diff(test.want, walk(test.request)); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", door.name, name, diff)
			}
		}
	}
}
