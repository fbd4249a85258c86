package bench

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/finalizerd/finalizerd/deploy/local/internal/audit"
)

func TestResidentMemoryIsReadFromTheKernelsWords(t *testing.T) {
	tests := map[string]struct {
		status string
		want   memory
		fail   bool
	}{
		"both values":              {status: "Name:\tfinalizerd\nVmPeak:\t9 kB\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\nRssAnon:\t 5 kB\n", want: memory{now: 100, peak: 200}},
		"a process that has ended": {status: "Name:\tfinalizerd\nState:\tZ (zombie)\n", fail: true},
		"another unit":             {status: "VmHWM:\t1 MB\nVmRSS:\t1 kB\n", fail: true},
		"nothing":                  {fail: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseMemory(tt.status)
			if got != tt.want || (err != nil) != tt.fail {
				t.Errorf("parseMemory: %v, %v; want %v, failure %t", got, err, tt.want, tt.fail)
			}
		})
	}
}

// logOf has two releases, a second apart, a refused one, two reads, a watch, and what others and the single calls sent.
func logOf(start time.Time) []audit.Request {
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	ours := func(verb, namespace string, code int, received, answered float64) audit.Request {
		return audit.Request{UserAgent: "finalizerd/v1", Verb: verb, Namespace: namespace, Code: code, Received: at(received), Answered: at(answered)}
	}
	return []audit.Request{
		ours("list", "", 200, 0, 1),
		ours("watch", "", 200, 0, 9),
		ours("patch", orphansNamespace, 429, 1, 1.5),
		ours("patch", orphansNamespace, 200, 3, 3.5),
		ours("patch", orphansNamespace, 200, 2.5, 3),
		ours("get", orphansNamespace, 404, 2, 2.5),
		ours("patch", namespace, 200, 1, 9),
		ours("get", namespace, 200, 1, 9),
		{UserAgent: "bench-setup", Verb: "patch", Namespace: orphansNamespace, Code: 200, Received: at(0), Answered: at(9)},
	}
}

func TestTrafficLeavesOutTheSingleCallsAndOthers(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	probed := start.Add(3 * time.Second)
	want := traffic{writes: 3, reads: 2, failed: 1, beside: 2, first: start.Add(time.Second), last: start.Add(3500 * time.Millisecond), probed: probed}
	if diff := cmp.Diff(want, trafficOf(logOf(start), probed), cmp.AllowUnexported(traffic{})); diff != "" {
		t.Errorf("trafficOf (-want +got):\n%s", diff)
	}
}

func TestOrphansResult(t *testing.T) {
	ms, start := time.Millisecond, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	run := orphansRun{
		workflows: 1, before: memory{now: 80, peak: 90}, after: memory{now: 85, peak: 120},
		idle: []time.Duration{2 * ms, 2 * ms, 4 * ms}, meanwhile: []time.Duration{3 * ms, 5 * ms},
		cost:    round{took: 4 * time.Second, daemon: 10 * ms, server: 100 * ms},
		traffic: trafficOf(logOf(start), start.Add(3*time.Second)),
	}
	number := func(x float64) *float64 { return &x }
	want := OrphansResult{
		Case: "orphans", Pods: 3, Workflows: 1, PerSecondBeside: number(1), PerSecondAlone: number(2), Seconds: 4, WritesPerPod: 1, ReadsPerPod: 0.6667, FailedWrites: 1, CPUShare: 0.1,
		DaemonCPU: 3.333, ServerCPU: 33.333, MemoryBefore: 80, MemoryPeak: 120, MemoryAfter: 85,
		IdleCalls: 3, IdleP50: number(2), IdleP99: number(4), MeanwhileCalls: 2, MeanwhileP50: number(3), MeanwhileP99: number(5),
		RatioP50: number(1.5), RatioP99: number(1.25),
	}
	got, err := orphansResultOf(3, run)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("orphansResultOf (-want +got):\n%s", diff)
	}
	if _, err := orphansResultOf(4, run); err == nil {
		t.Error("a pod that finalizerd has not written to is no failure")
	}
	run.meanwhile, run.traffic.beside = nil, 0
	if got, err := orphansResultOf(3, run); err != nil || got.MeanwhileP50 != nil || got.RatioP50 != nil || got.PerSecondBeside != nil {
		t.Errorf("without calls meanwhile: %+v, %v", got, err)
	}
}

func TestALongWorkIsToldOfTenTimes(t *testing.T) {
	var told []string
	tell := tenths{of: 200, what: "done", progress: func(message string) { told = append(told, message) }}
	for done := range 201 {
		tell.tell(done)
	}
	if len(told) != 11 || told[0] != "orphans: 0 of 200 done" || told[1] != "orphans: 20 of 200 done" {
		t.Errorf("told %d times: %q", len(told), told)
	}
}
