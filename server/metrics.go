package server

import (
	"fmt"
	"strconv"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/finalizerd/finalizerd/server/kube"
	"github.com/finalizerd/finalizerd/server/lane"
)

// NewRegistry returns a registry with the metrics of the process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// newCallMetrics counts RPCs by method and code, after errors became statuses.
func newCallMetrics(reg *prometheus.Registry) (*grpcprom.ServerMetrics, error) {
	m := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
		grpcprom.WithHistogramBuckets([]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300})))
	if err := reg.Register(m); err != nil {
		return nil, fmt.Errorf("metrics of calls: %w", err)
	}
	return m, nil
}

// coreMetrics tells of the work behind the calls: requests to the API server,
// lanes and writes.
type coreMetrics struct {
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	waited   *prometheus.HistogramVec
}

func newCoreMetrics(reg *prometheus.Registry) (*coreMetrics, error) {
	m := &coreMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "finalizerd_api_requests_total",
			Help: "Requests to the Kubernetes API server, each attempt, by verb, resource and HTTP code; code is \"none\" when there was no answer.",
		}, []string{"verb", "resource", "code"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "finalizerd_api_request_duration_seconds",
			Help:    "Time until the API server's answer began, by verb and resource.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"verb", "resource"}),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "finalizerd_lane_wait_seconds",
			Help:    "Time that work waited for its workflow's lane, by kind of hold.",
			Buckets: []float64{.0001, .001, .01, .1, .5, 1, 5, 30, 60, 300},
		}, []string{"kind"}),
	}
	return m, register(reg, m.requests, m.latency, m.waited)
}

func register(reg *prometheus.Registry, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}

// request fits kube.Options.Observe.
func (m *coreMetrics) request(verb, resource string, code int, took time.Duration) {
	answer := "none"
	if code != 0 {
		answer = strconv.Itoa(code)
	}
	m.requests.WithLabelValues(verb, resource, answer).Inc()
	m.latency.WithLabelValues(verb, resource).Observe(took.Seconds())
}

// lane fits lane.Options.Observe.
func (m *coreMetrics) lane(kind lane.Kind, waited time.Duration) {
	m.waited.WithLabelValues(kind.String()).Observe(waited.Seconds())
}

// gauges registers what is read at the moment of a scrape.
func gauges(reg *prometheus.Registry, depth func() lane.Depth, load func() kube.Load) error {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	return register(reg,
		gauge("finalizerd_lanes", "Workflows with work under way or waiting.",
			func() float64 { return float64(depth().Lanes) }),
		gauge("finalizerd_lane_holders", "Pieces of work that hold a lane.",
			func() float64 { return float64(depth().Holders) }),
		gauge("finalizerd_lane_waiters", "Callers that wait for a lane.",
			func() float64 { return float64(depth().Waiters) }),
		gauge("finalizerd_writes_in_flight", "Writes to the API server under way.",
			func() float64 { return float64(load().InFlight) }),
		gauge("finalizerd_writes_waiting", "Writes that wait for a turn.",
			func() float64 { return float64(load().Waiting) }),
		gauge("finalizerd_writes_limit", "Most writes in flight at present; adapts to the API server.",
			func() float64 { return float64(load().Limit) }),
	)
}
