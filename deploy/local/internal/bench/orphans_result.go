package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/finalizerd/finalizerd/deploy/local/internal/audit"
)

// OrphansResult is the case orphans, as its JSON line tells it.
type OrphansResult struct {
	Case      string `json:"case"`
	Pods      int    `json:"pods"` // held when finalizerd started
	Workflows int    `json:"workflows"`

	// Writes a second, in the audit log: while single calls for another workflow go on, for which finalizerd's own work
	// steps back, and once they have ended.
	PerSecondBeside *float64 `json:"ours_per_s_beside_calls"`
	PerSecondAlone  *float64 `json:"ours_per_s"`
	Seconds         float64  `json:"seconds"` // from the start of the process until no pod was left
	// WritesPerPod and ReadsPerPod are requests on pods and workflows, watches and the single calls' left out.
	WritesPerPod float64 `json:"writes_per_pod"`
	ReadsPerPod  float64 `json:"reads_per_pod"`
	FailedWrites int     `json:"failed_writes"` // answered other than 200; they are among the writes
	CPUShare     float64 `json:"cpu_share"`     // finalizerd's processor time to that of kube-apiserver and etcd
	DaemonCPU    float64 `json:"finalizerd_cpu_ms_per_pod"`
	ServerCPU    float64 `json:"server_cpu_ms_per_pod"`
	// Resident memory of finalizerd: once it has seen all and may not write, at most while it releases, and at rest afterwards.
	MemoryBefore float64 `json:"rss_before_mib"`
	MemoryPeak   float64 `json:"rss_peak_mib"`
	MemoryAfter  float64 `json:"rss_after_mib"`
	// Single calls for another workflow, one at a time: before, with the same pods in view, and while finalizerd releases.
	IdleCalls      int      `json:"idle_calls"`
	IdleP50        *float64 `json:"idle_p50_ms"`
	IdleP99        *float64 `json:"idle_p99_ms"`
	MeanwhileCalls int      `json:"meanwhile_calls"`
	MeanwhileP50   *float64 `json:"meanwhile_p50_ms"`
	MeanwhileP99   *float64 `json:"meanwhile_p99_ms"`
	RatioP50       *float64 `json:"p50_ratio"` // the aim is 3 at most
	RatioP99       *float64 `json:"p99_ratio"`
}

// traffic is what finalizerd sent for the orphans.
type traffic struct {
	writes, reads, failed int
	beside                int       // writes that came before the single calls had ended
	first, last           time.Time // the first write's arrival, the last one's answer
	probed                time.Time // the end of the single calls
}

// trafficOf leaves out the single calls, whose pods are in another namespace. The lists at the start are of all namespaces
// and count.
func trafficOf(log []audit.Request, probed time.Time) traffic {
	t := traffic{probed: probed}
	for _, request := range log {
		if !strings.HasPrefix(request.UserAgent, userAgent) || request.Namespace == namespace {
			continue
		}
		switch kindOf(request) {
		case reading:
			t.reads++
		case writing:
			if t.writes == 0 || request.Received.Before(t.first) {
				t.first = request.Received
			}
			if request.Answered.After(t.last) {
				t.last = request.Answered
			}
			t.writes++
			if request.Received.Before(probed) {
				t.beside++
			}
			if request.Code != 200 {
				t.failed++
			}
		}
	}
	return t
}

// orphansResultOf fails if finalizerd did not write what the work needs: then somebody else let the pods go.
func orphansResultOf(pods int, run orphansRun) (OrphansResult, error) {
	t := run.traffic
	if t.writes < pods {
		return OrphansResult{}, fmt.Errorf("the audit log has %d writes of finalizerd, %d are needed", t.writes, pods)
	}
	perPod := func(n float64) float64 { return n / float64(pods) }
	r := OrphansResult{
		Case: orphansCase, Pods: pods, Workflows: run.workflows,
		PerSecondBeside: rate(t.beside, t.first, t.probed), PerSecondAlone: rate(t.writes-t.beside, t.probed, t.last),
		Seconds:      rounded(run.cost.took.Seconds(), 1),
		WritesPerPod: rounded(perPod(float64(t.writes)), 4), ReadsPerPod: rounded(perPod(float64(t.reads)), 4), FailedWrites: t.failed,
		DaemonCPU: rounded(perPod(milliseconds(run.cost.daemon)), 3), ServerCPU: rounded(perPod(milliseconds(run.cost.server)), 3),
		MemoryBefore: run.before.now, MemoryPeak: run.after.peak, MemoryAfter: run.after.now,
		IdleCalls: len(run.idle), IdleP50: percentile(run.idle, 0.50), IdleP99: percentile(run.idle, 0.99),
		MeanwhileCalls: len(run.meanwhile), MeanwhileP50: percentile(run.meanwhile, 0.50), MeanwhileP99: percentile(run.meanwhile, 0.99),
	}
	if run.cost.server > 0 {
		r.CPUShare = rounded(float64(run.cost.daemon)/float64(run.cost.server), 3)
	}
	r.RatioP50, r.RatioP99 = ratio(r.MeanwhileP50, r.IdleP50), ratio(r.MeanwhileP99, r.IdleP99)
	return r, nil
}

// rate is a second; nil of nothing.
func rate(n int, from, to time.Time) *float64 {
	if n == 0 || !from.Before(to) {
		return nil
	}
	value := rounded(float64(n)/to.Sub(from).Seconds(), 1)
	return &value
}

// ratio is nil if one of the two is, or the second is 0.
func ratio(a, b *float64) *float64 {
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	value := rounded(*a / *b, 2)
	return &value
}

// WriteOrphansTable writes the result for people.
func WriteOrphansTable(out io.Writer, r OrphansResult) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\tpods\tworkflows\tours/s\tbeside calls\tseconds\twrites/pod\treads/pod\tCPU share\tRSS before\tpeak\tafter MiB\tidle p50 ms\tmeanwhile\tratio\tidle p99\tmeanwhile\tratio\t")
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%.1f\t%.3f\t%.4f\t%.1f%%\t%.0f\t%.0f\t%.0f\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
		r.Case, r.Pods, r.Workflows, cell(r.PerSecondAlone), cell(r.PerSecondBeside), r.Seconds, r.WritesPerPod, r.ReadsPerPod, 100*r.CPUShare, r.MemoryBefore, r.MemoryPeak, r.MemoryAfter,
		cell(r.IdleP50), cell(r.MeanwhileP50), cell(r.RatioP50), cell(r.IdleP99), cell(r.MeanwhileP99), cell(r.RatioP99))
	return w.Flush()
}
