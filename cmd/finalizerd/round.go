package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

const (
	batchSize = 1000 // pods of one call
	// parallel bounds the calls under way. The service orders and bounds the
	// writes itself; this only hides the round trips of many small workflows.
	parallel    = 8
	maxListed   = 20 // failures that are listed one by one
	tellingEach = time.Second
)

// workflowOf is the pods' workflow; the empty name is for pods without a
// controller owner.
type workflowOf struct{ namespace, name string }

// failure is a pod that stays held.
type failure struct {
	pod     *finalizerv1.Pod
	reason  finalizerv1.ErrorReason
	message string
	retry   bool // waiting may help
}

// round releases the given pods once.
type round struct {
	*releaser

	groups map[workflowOf][]*finalizerv1.Pod
	total  int

	mu       sync.Mutex
	done     int
	tried    int
	told     time.Time
	failures []failure
}

func newRound(r *releaser, held []*finalizerv1.Pod) *round {
	groups := make(map[workflowOf][]*finalizerv1.Pod)
	for _, p := range held {
		key := workflowOf{p.GetNamespace(), p.GetWorkflow()}
		groups[key] = append(groups[key], p)
	}
	return &round{releaser: r, groups: groups, total: len(held)}
}

// run returns when every call has ended; what failed is in failures.
func (r *round) run(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(parallel)
	for key, pods := range r.groups {
		if key.name == "" {
			for _, p := range pods {
				g.Go(func() error { r.releaseOne(ctx, p); return nil })
			}
			continue
		}
		for batch := range slices.Chunk(pods, batchSize) {
			g.Go(func() error { r.releaseBatch(ctx, key, batch); return nil })
		}
	}
	_ = g.Wait() // failures are kept per pod
}

func (r *round) releaseOne(ctx context.Context, p *finalizerv1.Pod) {
	_, err := r.client.ReleasePod(ctx, &finalizerv1.ReleasePodRequest{
		Namespace: p.GetNamespace(), Pod: p.GetName(), PodUid: p.GetUid(), Force: true, ValidateOnly: r.dry,
	})
	if err != nil && client.Reason(err) != finalizerv1.ErrorReason_ERROR_REASON_POD_REPLACED { // then this UID is gone
		r.note(0, failed(p, err))
		return
	}
	r.note(1)
}

func (r *round) releaseBatch(ctx context.Context, key workflowOf, batch []*finalizerv1.Pod) {
	req := &finalizerv1.ReleaseWorkflowPodsRequest{Namespace: key.namespace, Workflow: key.name, Force: true, ValidateOnly: r.dry}
	byUID := make(map[string]*finalizerv1.Pod, len(batch))
	for _, p := range batch {
		byUID[p.GetUid()] = p
		req.Pods = append(req.Pods, &finalizerv1.PodRef{Name: p.GetName(), Uid: p.GetUid()})
	}
	resp, err := r.client.ReleaseWorkflowPods(ctx, req)
	var faults []failure
	if err != nil {
		for _, p := range batch {
			faults = append(faults, failed(p, err))
		}
		r.note(0, faults...)
		return
	}
	for _, res := range resp.GetResults() {
		p := byUID[res.GetPodUid()]
		if f, bad := judged(p, res); bad && p != nil {
			faults = append(faults, f)
		}
	}
	r.note(len(batch)-len(faults), faults...)
}

// judged tells whether the pod is still held after the call.
func judged(p *finalizerv1.Pod, res *finalizerv1.PodResult) (failure, bool) {
	f := failure{pod: p, reason: res.GetErrorReason(), message: res.GetMessage()}
	switch res.GetOutcome() {
	case finalizerv1.Outcome_OUTCOME_BLOCKED_BY_ADMISSION:
		f.reason = finalizerv1.ErrorReason_ERROR_REASON_BLOCKED_BY_ADMISSION
		f.message += prefixed(", field ", res.GetField()) + prefixed(", webhook ", res.GetWebhook())
	case finalizerv1.Outcome_OUTCOME_FAILED:
		f.retry = codes.Code(res.GetCode()) == codes.Unavailable || passes(res.GetErrorReason())
	case finalizerv1.Outcome_OUTCOME_NOT_CAPTURED, finalizerv1.Outcome_OUTCOME_NOT_FOUND, finalizerv1.Outcome_OUTCOME_UNSPECIFIED:
		f.reason = finalizerv1.ErrorReason_ERROR_REASON_INTERNAL // a forced call of a named UID has no such outcome
	default:
		return failure{}, false
	}
	return f, true
}

func failed(p *finalizerv1.Pod, err error) failure {
	reason := client.Reason(err)
	message := status.Convert(err).Message()
	return failure{pod: p, reason: reason, message: message, retry: client.IsRetriable(err) || passes(reason)}
}

// passes reports whether what failed may succeed after a wait. Releases of a UID
// may be repeated, so a deadline is among it.
func passes(r finalizerv1.ErrorReason) bool {
	switch r {
	case finalizerv1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, finalizerv1.ErrorReason_ERROR_REASON_WORKFLOW_BUSY,
		finalizerv1.ErrorReason_ERROR_REASON_API_THROTTLED, finalizerv1.ErrorReason_ERROR_REASON_API_UNAVAILABLE,
		finalizerv1.ErrorReason_ERROR_REASON_UNSPECIFIED: // no answer, or a deadline of our own
		return true
	}
	return false
}

// note counts, and tells how far it is.
func (r *round) note(done int, faults ...failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done += done
	r.tried += done + len(faults)
	r.failures = append(r.failures, faults...)
	if now := time.Now(); !r.dry && (now.Sub(r.told) >= tellingEach || r.tried == r.total) {
		r.told = now
		fmt.Fprintf(r.errs, "released %d of %d%s\n", r.done, r.total, failedSoFar(len(r.failures)))
	}
}

func failedSoFar(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d failed", n)
}

// mayPass reports whether waiting may help any of the failures.
func (r *round) mayPass() bool {
	return slices.ContainsFunc(r.failures, func(f failure) bool { return f.retry })
}

// report lists failures one by one, by pod, up to a bound.
func (r *round) report(w io.Writer) {
	slices.SortFunc(r.failures, func(a, b failure) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.pod.GetNamespace(), b.pod.GetNamespace()), cmp.Compare(a.pod.GetName(), b.pod.GetName()))
	})
	for i, f := range r.failures {
		if i == maxListed {
			fmt.Fprintf(w, "  and %d more\n", len(r.failures)-i)
			return
		}
		fmt.Fprintf(w, "  %s/%s: %s (%s)\n", f.pod.GetNamespace(), f.pod.GetName(), f.message, reasonName(f.reason))
	}
}

// why sums the failures up by reason, each with its message and what to do.
func (r *round) why() string {
	type sum struct {
		n       int
		message string
	}
	sums := make(map[finalizerv1.ErrorReason]sum)
	for _, f := range r.failures {
		s := sums[f.reason]
		sums[f.reason] = sum{s.n + 1, cmp.Or(s.message, f.message)}
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(sums)) {
		s := sums[reason]
		parts = append(parts, fmt.Sprintf("%d %s (%s)%s", s.n, reasonName(reason), s.message, prefixed(", ", adviceFor(reason))))
	}
	return strings.Join(parts, "; ")
}

// adviceFor says what a person does about a refusal. Empty: the message says it.
func adviceFor(r finalizerv1.ErrorReason) string {
	switch r {
	case finalizerv1.ErrorReason_ERROR_REASON_BLOCKED_BY_ADMISSION:
		return "exempt updates of pod metadata from that webhook or policy, then repeat"
	case finalizerv1.ErrorReason_ERROR_REASON_OTHER_INSTANCE:
		return "give --target of that instance's finalizerd"
	case finalizerv1.ErrorReason_ERROR_REASON_NOT_A_WORKFLOW_POD:
		return "another controller owns it: release it there"
	case finalizerv1.ErrorReason_ERROR_REASON_NAMESPACE_NOT_SERVED:
		return "give --target of the finalizerd that serves it"
	case finalizerv1.ErrorReason_ERROR_REASON_SERVICE_FORBIDDEN:
		return "grant the service's account what /readyz names, then repeat"
	case finalizerv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, finalizerv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED:
		return "give --token-file of an account that may"
	case finalizerv1.ErrorReason_ERROR_REASON_INTERNAL:
		return "see the log of the service"
	}
	if passes(r) || r == finalizerv1.ErrorReason_ERROR_REASON_NOT_SYNCED || r == finalizerv1.ErrorReason_ERROR_REASON_NO_LEADER ||
		r == finalizerv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN {
		return "repeat a little later"
	}
	return ""
}
