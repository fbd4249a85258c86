package server

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/finalizerd/finalizerd/server/finalizer"
	"github.com/finalizerd/finalizerd/server/kube"
	"github.com/finalizerd/finalizerd/server/reconcile"
)

// ReconcileMode says what is done without any call.
type ReconcileMode = reconcile.Mode

// The modes of the reconciler.
const (
	ReconcileOff    = reconcile.Off    // nothing
	ReconcileReport = reconcile.Report // decide and tell; write nothing, Events included
	ReconcileOn     = reconcile.On
)

// ParseReconcileMode reads off, report or on. The error names them.
func ParseReconcileMode(s string) (ReconcileMode, error) { return reconcile.ParseMode(s) }

func newReconciler(c Config, client *kube.Client, core *finalizer.Service) (*reconcile.Reconciler, error) {
	m := newReconcileMetrics()
	r := reconcile.New(reconcile.Config{
		Pods: client.Cache, Seen: client.Seen, Core: core, Status: client.Reader, Nodes: client.Nodes, Events: client.Events,
		Policy: c.Policy, Mode: c.Reconcile, Synced: client.Synced,
		Workers: c.ReconcileWorkers, ReadInterval: c.ReadInterval, Resync: c.Resync,
		Log:     c.Log,
		Observe: reconcile.Observer{Pass: m.pass, Read: m.read, Would: m.would},
	})
	depth := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "finalizerd_reconcile_queue_depth", Help: "Workflows that wait for a pass of the reconciler.",
	}, func() float64 { return float64(r.Depth()) })
	return r, register(c.Registry, depth, m.waited, m.took, m.reads, m.released)
}

// reconcileMetrics tells how the reconciler keeps up.
type reconcileMetrics struct {
	waited, took    prometheus.Histogram
	reads, released *prometheus.CounterVec
}

func newReconcileMetrics() *reconcileMetrics {
	buckets := []float64{.001, .005, .01, .05, .1, .5, 1, 5, 15, 60, 300}
	m := &reconcileMetrics{
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "finalizerd_reconcile_queue_wait_seconds", Buckets: buckets,
			Help: "Time from the first change in a workflow, or from when a look was due, to the reconciler's pass over it.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "finalizerd_reconcile_duration_seconds", Buckets: buckets,
			Help: "Time of the reconciler's pass over one workflow, with its reads and writes.",
		}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "finalizerd_reconcile_reads_total", Help: "Live reads of a workflow by the reconciler, by result: ok or failed.",
		}, []string{"result"}),
		released: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "finalizerd_reconcile_would_release_total",
			Help: "With --reconcile=report: pods that would have been released or, with HIDDEN, shown to their controller again, once for each pod and reason.",
		}, []string{"reason"}),
	}
	for _, result := range []string{"ok", "failed"} {
		m.reads.WithLabelValues(result)
	}
	return m
}

func (m *reconcileMetrics) pass(waited, took time.Duration) {
	m.waited.Observe(waited.Seconds())
	m.took.Observe(took.Seconds())
}

func (m *reconcileMetrics) read(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.reads.WithLabelValues(result).Inc()
}

func (m *reconcileMetrics) would(r finalizer.Reason) { m.released.WithLabelValues(r.String()).Inc() }

// audited passes acts on, and writes those of the reconciler that gave up a
// result to the audit log. What a caller forces is there by the call.
func audited(log *slog.Logger, next func(finalizer.Act)) func(finalizer.Act) {
	return func(a finalizer.Act) {
		next(a)
		if a.Err == nil && a.Background && a.Forced() {
			log.Warn("forced release", "audit", true, "reason", a.Reason.String(),
				"namespace", a.Pod.Namespace, "pod", a.Pod.Name, "pod_uid", string(a.Pod.UID))
		}
	}
}
