package e2e

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// soon are thresholds that a test can wait for.
func soon(p *finalizer.Policy) {
	p.MinAge, p.CaptureGrace, p.HiddenAfter = 2*time.Second, time.Second, 3*time.Second
}

// newReconciler starts a finalizerd that acts by itself, on the pods of the
// fixture's namespace and no others unless the options say more.
func (f *fixture) newReconciler(o daemonOptions) *daemon {
	f.t.Helper()
	o.reconcile = cmp.Or(o.reconcile, "on")
	if o.namespaces == nil {
		o.namespaces = []string{f.ns}
	}
	return f.newDaemon(o)
}

// end is how a pod is to be found.
type end func(*corev1.Pod) bool

func gone(now *corev1.Pod) bool { return now == nil }

// released is a pod that FIN does not hold any more, if it is there at all.
func released(now *corev1.Pod) bool { return now == nil || !slices.Contains(now.Finalizers, fin) }

func leftReleased(now *corev1.Pod) bool {
	return now != nil && released(now) && now.Labels[labelDone] == "false"
}

func labelledAndReleased(now *corev1.Pod) bool {
	return now != nil && released(now) && now.Labels[labelDone] == "true"
}

func held(now *corev1.Pod) bool { return now != nil && slices.Contains(now.Finalizers, fin) }

// shown is a held pod that its controller can see.
func shown(now *corev1.Pod) bool { return held(now) && now.Labels[labelDone] == "false" }

// waitFor waits until the very pod is found so. Another pod of its name counts as
// gone.
func (f *fixture) waitFor(what string, is end, pods ...*corev1.Pod) {
	f.t.Helper()
	for _, pod := range pods {
		f.eventually("pod "+pod.Name+" is "+what, func() (bool, error) { return is(f.liveOf(pod)), nil })
	}
}

// liveOf reads the very pod, nil when there is none or another has its name.
func (f *fixture) liveOf(pod *corev1.Pod) *corev1.Pod {
	f.t.Helper()
	if now := f.live(pod.Name); now != nil && now.UID == pod.UID {
		return now
	}
	return nil
}

func (f *fixture) waitTerminating(pods ...*corev1.Pod) {
	f.t.Helper()
	f.waitFor("terminating", func(now *corev1.Pod) bool { return now != nil && now.DeletionTimestamp != nil }, pods...)
}

// waitAge waits until the pods are older than that, by the clock that gives them
// their creationTimestamp.
func (f *fixture) waitAge(age time.Duration, pods ...*corev1.Pod) {
	f.t.Helper()
	for _, pod := range pods {
		f.eventually("pod "+pod.Name+" is old enough", func() (bool, error) {
			return time.Since(pod.CreationTimestamp.Time) > age, nil
		})
	}
}

// stays fails if the pods are found otherwise within that time.
func (f *fixture) stays(what string, is end, within time.Duration, pods ...*corev1.Pod) {
	f.t.Helper()
	err := wait.PollUntilContextTimeout(f.ctx, 100*time.Millisecond, within, true, func(context.Context) (bool, error) {
		return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !is(f.liveOf(p)) }), nil
	})
	if err == nil {
		for _, p := range pods {
			if now := f.liveOf(p); !is(now) {
				f.t.Fatalf("pod %s is not %s any more: %s", p.Name, what, brief(now))
			}
		}
	}
}

// brief is what a failed test shows of a pod.
func brief(pod *corev1.Pod) string {
	if pod == nil {
		return "it is gone"
	}
	return fmt.Sprintf("phase %s, finalizers %v, completed=%s, deletionTimestamp %v", pod.Status.Phase, pod.Finalizers, pod.Labels[labelDone], pod.DeletionTimestamp)
}

// listed are the names of the held pods of the fixture's namespace for the
// reason; for any when it is unspecified.
func (f *fixture) listed(c pb.FinalizerServiceClient, reason pb.HoldReason) []string {
	f.t.Helper()
	names := []string{}
	page, err := c.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: f.ns, Reason: reason, PageSize: 1000})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, p := range page.GetPods() {
		names = append(names, p.GetName())
		if reason != none && p.GetHoldReason() != reason {
			f.t.Errorf("pod %s is listed for %s, and says %s", p.GetName(), reason, p.GetHoldReason())
		}
	}
	return names
}

// samples returns the samples of a metric by their label, of which it has one.
func (f *fixture) samples(d *daemon, name, label string) map[string]float64 {
	f.t.Helper()
	code, body, err := restConn{d.rest}.do(f.ctx, http.MethodGet, "/metrics", nil)
	if err != nil || code != http.StatusOK {
		f.t.Fatalf("/metrics: HTTP %d, %v", code, err)
	}
	found := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(string(body))); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), name+"{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		_, labels, ok = strings.Cut(","+labels, ","+label+`="`)
		key, _, _ := strings.Cut(labels, `"`)
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			f.t.Fatalf("a sample that cannot be read: %s", lines.Text())
		}
		found[key] += v
	}
	return found
}

// word is the reason as metrics spell it.
func word(r pb.HoldReason) string { return strings.TrimPrefix(r.String(), "HOLD_REASON_") }

// waitNoted waits until the reconciler has looked at so many held pods and found
// that reason; the daemon has the fixture's namespace to itself.
func (f *fixture) waitNoted(d *daemon, reason pb.HoldReason, n int) {
	f.t.Helper()
	var now map[string]float64
	err := wait.PollUntilContextTimeout(f.ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		now = f.samples(d, metricHeld, "reason")
		return now[word(reason)] == float64(n), nil
	})
	if err != nil {
		maps.DeleteFunc(now, func(_ string, n float64) bool { return n == 0 })
		f.t.Fatalf("the reconciler finds %v, want %d pods %s", now, n, word(reason))
	}
}

// eventsOn returns the events on the object of that UID with that reason.
func (f *fixture) eventsOn(uid types.UID, reason string) []eventsv1.Event {
	f.t.Helper()
	all, err := f.plane.admin.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return slices.DeleteFunc(all.Items, func(e eventsv1.Event) bool { return e.Regarding.UID != uid || e.Reason != reason })
}

// wantEvent waits for the one event with that reason on the pod.
func (f *fixture) wantEvent(pod *corev1.Pod, reason string) eventsv1.Event {
	f.t.Helper()
	var found []eventsv1.Event
	f.eventually("an event "+reason+" on pod "+pod.Name, func() (bool, error) {
		found = f.eventsOn(pod.UID, reason)
		return len(found) > 0, nil
	})
	e := found[0]
	if len(found) != 1 || e.Regarding.Kind != "Pod" || e.Regarding.Name != pod.Name || e.Note == "" || e.Action == "" || e.ReportingController == "" {
		f.t.Errorf("events %s on pod %s: %+v", reason, pod.Name, found)
	}
	return e
}

// ownReads counts the reads of single objects, and the lists of one workflow's
// pods: all but what fills the caches.
func ownReads(requests []request) (pods, workflows int) {
	for _, r := range requests {
		switch {
		case r.writes(), r.verb == "watch", r.verb == "list" && !strings.Contains(r.uri, "labelSelector"):
		case r.resource == "pods":
			pods++
		default:
			workflows++
		}
	}
	return pods, workflows
}

// wantWritesOf fails unless the daemon sent these verbs to the pod, in order.
func wantWritesOf(t *testing.T, requests []request, pod string, verbs ...string) {
	t.Helper()
	got := []string{}
	for _, r := range onlyWrites(ofPod(requests, pod)) {
		got = append(got, r.verb)
		if r.code >= 300 {
			t.Errorf("%s", r)
		}
	}
	if !slices.Equal(got, verbs) {
		t.Errorf("pod %s: writes %v, want %v", pod, got, verbs)
	}
}

const metricHeld = "finalizerd_held_pods"
