package proxy_test

import (
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"crypto/tls"

	"github.com/finalizerd/finalizerd/client/proxy"
)

// BenchmarkPassThroughGET reads one pod of 8 KiB straight from a TLS server and
// through the proxy, in turns, and reports both medians, their ratio, and by how
// much the heap grew.
func BenchmarkPassThroughGET(b *testing.B) {
	pod := strings.Repeat(`{"kind":"Pod"}`, 600)
	upstream, ca := apiServer(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, pod)
	}))
	at := start(b, proxy.Config{Upstream: upstream, CAFile: ca})
	straight := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer straight.CloseIdleConnections()
	through := caller(b)
	get := func(rt http.RoundTripper, base string) time.Duration {
		req, err := http.NewRequestWithContext(b.Context(), "GET", base+"/api/v1/namespaces/argo/pods/a", nil)
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		resp, err := rt.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || int(n) != len(pod) {
			b.Fatal(n, err)
		}
		return time.Since(began)
	}
	for range 500 {
		get(straight, upstream.String())
		get(through, at)
	}
	before := heap()
	var direct, proxied []time.Duration
	for b.Loop() {
		direct = append(direct, get(straight, upstream.String()))
		proxied = append(proxied, get(through, at))
	}
	grown := heap() - before
	d, p := median(direct), median(proxied)
	b.ReportMetric(float64(d.Microseconds()), "direct-µs")
	b.ReportMetric(float64(p.Microseconds()), "proxied-µs")
	b.ReportMetric(float64(p)/float64(d), "ratio")
	b.ReportMetric(float64(grown)/1024, "heap-KiB")
	if b.N > 1 {
		b.Logf("p50 direct %s, proxied %s, ratio %.2f, heap %+d KiB over %d requests", d, p, float64(p)/float64(d), grown/1024, b.N)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
