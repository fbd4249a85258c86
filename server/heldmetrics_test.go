package server

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/finalizerd/finalizerd/server/finalizer"
	"github.com/finalizerd/finalizerd/server/kube"
)

// scrape returns what a registry serves.
func scrape(reg *prometheus.Registry) string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func wantMetrics(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("metrics lack %q", line)
		}
	}
}

func TestB40HeldPodsAreCountedByReason(t *testing.T) {
	reasons := map[finalizer.Reason]finalizer.HeldFor{
		finalizer.ReasonNotCaptured:    {Pods: 3, Oldest: time.Now().Add(-time.Hour)},
		finalizer.ReasonCaptureUnknown: {Pods: 2, Oldest: time.Now().Add(time.Minute)}, // of a clock that is ahead
	}
	counts := kube.Counts{Cached: 9, Held: 7, HeldTerminating: 1, OldestTerminating: 5 * time.Second}
	var scrapes int
	reg := prometheus.NewRegistry()
	reg.MustRegister(newHeldMetrics(func(time.Time) kube.Counts { scrapes++; return counts },
		func() map[finalizer.Reason]finalizer.HeldFor { return reasons }))
	text := scrape(reg)
	wantMetrics(t, text,
		`finalizerd_held_pods{reason="NOT_CAPTURED"} 3`, `finalizerd_held_pods{reason="CAPTURE_UNKNOWN"} 2`,
		`finalizerd_held_pods{reason="UNSPECIFIED"} 2`, `finalizerd_held_pods{reason="HIDDEN"} 0`,
		`finalizerd_held_oldest_seconds{reason="CAPTURE_UNKNOWN"} 0`, `finalizerd_held_oldest_seconds{reason="ORPHANED"} 0`,
		"finalizerd_unknown_captures 2", "finalizerd_cached_pods 9", "finalizerd_held_terminating_pods 1", "finalizerd_held_terminating_oldest_seconds 5",
	)
	if !strings.Contains(text, `finalizerd_held_oldest_seconds{reason="NOT_CAPTURED"} 3600`) {
		t.Errorf("the age of the oldest is not an hour:\n%s", text)
	}
	if scrapes != 1 {
		t.Errorf("one scrape looked at the cache %d times", scrapes)
	}
	counts.Held = 4 // released since the reasons were noted
	wantMetrics(t, scrape(reg), `finalizerd_held_pods{reason="UNSPECIFIED"} 0`)
}

func TestB40B16ActsAreCountedByReasonAndOrigin(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := newActMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	wantMetrics(t, scrape(reg), `finalizerd_forced_releases_total{reason="FORCED"} 0`, `finalizerd_forced_releases_total{reason="MAX_HOLD"} 0`,
		"finalizerd_unhidden_total 0", "finalizerd_admission_blocks_total 0")
	for _, a := range []finalizer.Act{
		{Reason: finalizer.ReasonCaptured},
		{Reason: finalizer.ReasonCaptured, Background: true},
		{Reason: finalizer.ReasonCaptured, Background: true},
		{Reason: finalizer.ReasonForced},
		{Reason: finalizer.ReasonMaxHold, Background: true},
		{Reason: finalizer.ReasonHidden, Background: true},
		{Reason: finalizer.ReasonCaptured, Err: &finalizer.Error{Kind: finalizer.KindBlocked}},
		{Reason: finalizer.ReasonForced, Err: &finalizer.Error{Kind: finalizer.KindUnavailable}},
		{Reason: finalizer.ReasonHidden, Err: &finalizer.Error{Kind: finalizer.KindBlocked}},
	} {
		m.act(a)
	}
	text := scrape(reg)
	wantMetrics(t, text,
		`finalizerd_releases_total{origin="call",reason="CAPTURED"} 1`, `finalizerd_releases_total{origin="reconcile",reason="CAPTURED"} 2`,
		`finalizerd_releases_total{origin="call",reason="FORCED"} 1`, `finalizerd_releases_total{origin="reconcile",reason="MAX_HOLD"} 1`,
		`finalizerd_forced_releases_total{reason="FORCED"} 1`, `finalizerd_forced_releases_total{reason="MAX_HOLD"} 1`,
		"finalizerd_unhidden_total 1", "finalizerd_admission_blocks_total 2",
	)
	if strings.Contains(text, "HIDDEN") {
		t.Error("a label that was taken back counts as a release")
	}
}
