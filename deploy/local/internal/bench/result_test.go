package bench

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestProcessorTimeIsReadBehindAnyName(t *testing.T) {
	tests := map[string]struct {
		stat string
		want time.Duration
		fail bool
	}{
		"a plain name":              {stat: "12 (etcd) S 1 1 1 0 -1 4194560 5 0 0 0 150 50 0 0 20 0", want: 2 * time.Second},
		"a name with all the traps": {stat: "12 (a ) S 9 (b) c) R 1 1 1 0 -1 4194560 5 0 0 0 1 2 9 9 20 0", want: 30 * time.Millisecond},
		"a line that is cut":        {stat: "12 (etcd) S 1 1 1", fail: true},
		"no line":                   {fail: true},
		"a time that is no number":  {stat: "12 (etcd) S 1 1 1 0 -1 4194560 5 0 0 0 x 50 0 0 20 0", fail: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(tt.stat)
			if got != tt.want || (err != nil) != tt.fail {
				t.Errorf("parseStat: %v, %v; want %v, failure %t", got, err, tt.want, tt.fail)
			}
		})
	}
}

func TestResultTakesMediansOfRatesAndSumsOfTheRest(t *testing.T) {
	ms := time.Millisecond
	rounds := func(latency time.Duration, took ...time.Duration) []round {
		var all []round
		for _, d := range took {
			all = append(all, round{
				pods: 100, took: d, writes: 200, reads: 1, daemon: 10 * ms, server: 100 * ms, client: 20 * ms,
				latencies: []time.Duration{latency, latency, 3 * latency},
			})
		}
		return all
	}
	w := workload{name: "single_release_1", single: true, inFlight: 1}
	got := resultOf(w, rounds(2*ms, time.Second, 2*time.Second, 100*time.Second), rounds(ms, time.Second, time.Second))
	added, oursP50, oursP99, bareP50, bareP99 := 1.0, 2.0, 6.0, 1.0, 3.0
	want := Result{
		Case: "single_release_1", Pods: 100, OursPerSecond: 50, BarePerSecond: 100, Ratio: 0.5, WritesPerPod: 2, ReadsPerPod: 0.01,
		CPUShare: 0.1, AddedP50: &added, Rounds: 3, InFlight: 1, OursP50: &oursP50, OursP99: &oursP99, BareP50: &bareP50, BareP99: &bareP99,
		DaemonCPU: 0.1, ServerCPU: 1, BareServerCPU: 1, ClientCPU: 0.2, BareClientCPU: 0.2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resultOf (-want +got):\n%s", diff)
	}
}
