package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// Result is one case, as its JSON line tells it. Rates are medians over the rounds; counts, processor times and percentiles
// are over all rounds together. A field that has no meaning for the case is null.
type Result struct {
	Case string `json:"case"`
	Pods int    `json:"pods"` // of one round

	OursPerSecond float64 `json:"ours_per_s"`
	BarePerSecond float64 `json:"bare_per_s"`
	Ratio         float64 `json:"ratio"` // ours to bare
	// WritesPerPod and ReadsPerPod are finalizerd's requests on pods and workflows, watches left out.
	WritesPerPod float64 `json:"writes_per_pod"`
	ReadsPerPod  float64 `json:"reads_per_pod"`
	// CPUShare is finalizerd's processor time to that of kube-apiserver and etcd, in finalizerd's rounds.
	CPUShare float64 `json:"cpu_share"`
	// AddedP50 is the median of a single call less that of the bare loop's patch, in milliseconds.
	AddedP50 *float64 `json:"added_p50_ms"`

	Rounds        int      `json:"rounds"` // of each side
	InFlight      int      `json:"in_flight"`
	OursP50       *float64 `json:"ours_p50_ms"`
	OursP99       *float64 `json:"ours_p99_ms"`
	BareP50       *float64 `json:"bare_p50_ms"`
	BareP99       *float64 `json:"bare_p99_ms"`
	DaemonCPU     float64  `json:"finalizerd_cpu_ms_per_pod"`
	ServerCPU     float64  `json:"server_cpu_ms_per_pod"`      // kube-apiserver and etcd, in finalizerd's rounds
	BareServerCPU float64  `json:"bare_server_cpu_ms_per_pod"` // the same, in the bare loop's
	// ClientCPU and BareClientCPU are of this process: it calls finalizerd, or is the bare loop, and its controllers watch.
	ClientCPU     float64 `json:"client_cpu_ms_per_pod"`
	BareClientCPU float64 `json:"bare_client_cpu_ms_per_pod"`
}

func resultOf(w workload, ours, bare []round) Result {
	r := Result{
		Case: w.name, Pods: ours[0].pods, Rounds: len(ours), InFlight: w.inFlight,
		OursPerSecond: rounded(medianRate(ours), 1), BarePerSecond: rounded(medianRate(bare), 1),
		Ratio: rounded(medianRate(ours)/medianRate(bare), 3),
	}
	all, rival := sum(ours), sum(bare)
	perPod := func(n float64) float64 { return n / float64(all.pods) }
	r.WritesPerPod, r.ReadsPerPod = rounded(perPod(float64(all.writes)), 4), rounded(perPod(float64(all.reads)), 4)
	r.DaemonCPU, r.ServerCPU = rounded(perPod(milliseconds(all.daemon)), 3), rounded(perPod(milliseconds(all.server)), 3)
	r.BareServerCPU = rounded(milliseconds(rival.server)/float64(rival.pods), 3)
	r.ClientCPU, r.BareClientCPU = rounded(perPod(milliseconds(all.client)), 3), rounded(milliseconds(rival.client)/float64(rival.pods), 3)
	if all.server > 0 {
		r.CPUShare = rounded(float64(all.daemon)/float64(all.server), 3)
	}
	r.OursP50, r.OursP99 = percentile(all.latencies, 0.50), percentile(all.latencies, 0.99)
	r.BareP50, r.BareP99 = percentile(rival.latencies, 0.50), percentile(rival.latencies, 0.99)
	if r.OursP50 != nil && r.BareP50 != nil {
		added := rounded(*r.OursP50-*r.BareP50, 3)
		r.AddedP50 = &added
	}
	return r
}

func medianRate(rounds []round) float64 {
	rates := make([]float64, len(rounds))
	for i, r := range rounds {
		rates[i] = float64(r.pods) / r.took.Seconds()
	}
	slices.Sort(rates)
	middle := len(rates) / 2
	if len(rates)%2 == 0 {
		return (rates[middle-1] + rates[middle]) / 2
	}
	return rates[middle]
}

func sum(rounds []round) round {
	var all round
	for _, r := range rounds {
		all.pods += r.pods
		all.writes += r.writes
		all.reads += r.reads
		all.daemon += r.daemon
		all.server += r.server
		all.client += r.client
		all.latencies = append(all.latencies, r.latencies...)
	}
	return all
}

// percentile is in milliseconds, by nearest rank; nil of nothing.
func percentile(latencies []time.Duration, share float64) *float64 {
	if len(latencies) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(latencies))
	at := int(math.Ceil(share*float64(len(sorted)))) - 1
	value := rounded(milliseconds(sorted[max(at, 0)]), 3)
	return &value
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func rounded(x float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(x*scale) / scale
}

// WriteTable writes the results for people.
func WriteTable(out io.Writer, results []Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\tpods\tours/s\tbare/s\tratio\twrites/pod\treads/pod\tCPU share\tCPU ms/pod\tserver\tclient\tbare server\tbare client\tp50 ms\tbare p50\tadded p50\tp99\tbare p99\t")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%.3f\t%.3f\t%.4f\t%.1f%%\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t%s\t%s\t\n",
			r.Case, r.Pods, r.OursPerSecond, r.BarePerSecond, r.Ratio, r.WritesPerPod, r.ReadsPerPod, 100*r.CPUShare,
			r.DaemonCPU, r.ServerCPU, r.ClientCPU, r.BareServerCPU, r.BareClientCPU, cell(r.OursP50), cell(r.BareP50), cell(r.AddedP50), cell(r.OursP99), cell(r.BareP99))
	}
	return w.Flush()
}

func cell(value *float64) string {
	if value == nil {
		return "-"
	}
	return strconv.FormatFloat(*value, 'f', 2, 64)
}
