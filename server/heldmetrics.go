package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/finalizerd/finalizerd/server/finalizer"
	"github.com/finalizerd/finalizerd/server/kube"
)

// heldMetrics tells of the held pods. It looks at the cache and at what is known
// of each pod once a scrape, for all its metrics.
type heldMetrics struct {
	counts   func(time.Time) kube.Counts
	byReason func() map[finalizer.Reason]finalizer.HeldFor

	cached, held, oldest, unknown      *prometheus.Desc
	terminating, terminatingForSeconds *prometheus.Desc
}

func newHeldMetrics(counts func(time.Time) kube.Counts, byReason func() map[finalizer.Reason]finalizer.HeldFor) *heldMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &heldMetrics{
		counts: counts, byReason: byReason,
		cached: desc("finalizerd_cached_pods", "Pods in the cache."),
		held: desc("finalizerd_held_pods",
			"Pods that carry the finalizer, by the reason that the reconciler found last; UNSPECIFIED: it has not looked yet, or is off.", "reason"),
		oldest: desc("finalizerd_held_oldest_seconds",
			"For how long the reason has held for the pod for which it has held longest; 0: there is none.", "reason"),
		unknown: desc("finalizerd_unknown_captures",
			"Held pods whose Workflow's node status cannot be learnt: nobody but a caller with force or captured releases them."),
		terminating: desc("finalizerd_held_terminating_pods", "Pods that carry the finalizer and are being deleted."),
		terminatingForSeconds: desc("finalizerd_held_terminating_oldest_seconds",
			"How long ago the grace period of the oldest of these ended; 0: there is none."),
	}
}

// Describe implements prometheus.Collector.
func (m *heldMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.cached, m.held, m.oldest, m.unknown, m.terminating, m.terminatingForSeconds} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *heldMetrics) Collect(to chan<- prometheus.Metric) {
	now := time.Now()
	counts, reasons := m.counts(now), m.byReason()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	unnoted := counts.Held
	for _, r := range finalizer.Reasons() {
		held := reasons[r]
		unnoted -= held.Pods
		gauge(m.held, float64(held.Pods), r.String())
		age := 0.0
		if held.Pods > 0 {
			age = max(0, now.Sub(held.Oldest).Seconds())
		}
		gauge(m.oldest, age, r.String())
	}
	// The two are not counted in one moment.
	gauge(m.held, float64(max(0, unnoted)), finalizer.ReasonNone.String())
	gauge(m.unknown, float64(reasons[finalizer.ReasonCaptureUnknown].Pods))
	gauge(m.cached, float64(counts.Cached))
	gauge(m.terminating, float64(counts.HeldTerminating))
	gauge(m.terminatingForSeconds, counts.OldestTerminating.Seconds())
}

// faultMetrics tells which rights the service's account lacks, as far as it has
// met them.
type faultMetrics struct {
	faults func() []*finalizer.Error
	desc   *prometheus.Desc
}

func newFaultMetrics(faults func() []*finalizer.Error) *faultMetrics {
	return &faultMetrics{faults: faults, desc: prometheus.NewDesc("finalizerd_missing_rights",
		"Requests that the API server forbids the service's account, one for each namespace, until one of their kind succeeds there or, for single requests, two minutes have passed.",
		[]string{"verb", "resource"}, nil)}
}

// Describe implements prometheus.Collector.
func (m *faultMetrics) Describe(to chan<- *prometheus.Desc) { to <- m.desc }

// Collect implements prometheus.Collector.
func (m *faultMetrics) Collect(to chan<- prometheus.Metric) {
	type right struct{ verb, resource string }
	missing := make(map[right]int)
	for _, f := range m.faults() {
		if f.Kind == finalizer.KindForbidden {
			missing[right{f.Verb, f.Resource}]++
		}
	}
	for r, n := range missing {
		to <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(n), r.verb, r.resource)
	}
}

// actMetrics counts what was done to pods, and what admission refused.
type actMetrics struct {
	releases, forced  *prometheus.CounterVec
	unhidden, blocked prometheus.Counter
}

func newActMetrics(reg *prometheus.Registry) (*actMetrics, error) {
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: help} }
	m := &actMetrics{
		releases: prometheus.NewCounterVec(counter("finalizerd_releases_total",
			"Pods released, by reason, and by who asked: a call, or the reconciler."), []string{"reason", "origin"}),
		forced: prometheus.NewCounterVec(counter("finalizerd_forced_releases_total",
			"Pods released although their result may not be stored: FORCED by a caller, MAX_HOLD by the reconciler."), []string{"reason"}),
		unhidden: prometheus.NewCounter(counter("finalizerd_unhidden_total",
			"Pods whose premature completed label was taken back, so that their controller sees them again.")),
		blocked: prometheus.NewCounter(counter("finalizerd_admission_blocks_total",
			"Writes to pods that an admission webhook or policy refused or changed, each attempt.")),
	}
	// Alerts need the zero before the first.
	for _, r := range []finalizer.Reason{finalizer.ReasonForced, finalizer.ReasonMaxHold} {
		m.forced.WithLabelValues(r.String())
	}
	return m, register(reg, m.releases, m.forced, m.unhidden, m.blocked)
}

// act fits finalizer.Config.Observe.
func (m *actMetrics) act(a finalizer.Act) {
	switch {
	case a.Err != nil:
		if a.Err.Kind == finalizer.KindBlocked {
			m.blocked.Inc()
		}
		return
	case a.Reason == finalizer.ReasonHidden:
		m.unhidden.Inc()
		return
	}
	origin := "call"
	if a.Background {
		origin = "reconcile"
	}
	m.releases.WithLabelValues(a.Reason.String(), origin).Inc()
	if a.Forced() {
		m.forced.WithLabelValues(a.Reason.String()).Inc()
	}
}
