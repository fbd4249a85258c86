package argo

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	passedThrough = 10_000
	rounds        = 50
	maxAdded      = 500 * time.Microsecond
	maxGrowth     = 8 << 20
)

// clientOf is a client with a kubeconfig, and without a limit.
func (s *scene) clientOf(kubeconfig string) kubernetes.Interface {
	s.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		s.Fatal(err)
	}
	config.QPS, config.UserAgent = -1, "overhead"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	return client
}

// overhead compares a GET by way of the sidecar with a direct one, in turns, and watches the sidecar's memory meanwhile. What else the
// machine does can only add to a round, so the quietest round is the sidecar's own doing.
func overhead(s *scene) {
	s.controller.kill() // nothing else goes through the sidecar, and the processors are ours
	direct, proxied := s.clientOf(s.direct.controller), s.clientOf(s.argo.controller)
	get := func(client kubernetes.Interface) time.Duration {
		begin := time.Now()
		if _, err := client.CoreV1().ConfigMaps(argoNamespace).Get(s.ctx, "workflow-controller-configmap", metav1.GetOptions{}); err != nil {
			s.Fatal(err)
		}
		return time.Since(begin)
	}
	for range 500 { // connections, and the heaps of all who take part
		get(direct)
		get(proxied)
	}
	before := s.residentMemory(s.proxies[0])
	added := make([]time.Duration, rounds)
	best := time.Hour // of direct ones
	for i := range added {
		var with, without []time.Duration
		for range passedThrough / rounds {
			with, without = append(with, get(proxied)), append(without, get(direct))
		}
		added[i] = median(with) - median(without)
		best = min(best, median(without))
		if i%10 == 0 {
			s.Logf("p50 of a GET: %s direct, %s by way of the sidecar", median(without), median(with))
		}
	}
	after := s.residentMemory(s.proxies[0])
	note := fmt.Sprintf("memory %.1f MiB, after %d requests %.1f MiB", mebibytes(before), passedThrough, mebibytes(after))
	suite.report.add(figure{Level: s.level.String(), Story: s.story, What: "added to the p50 of a GET, median of rounds", Seconds: median(added).Seconds(), Note: note})
	suite.report.add(figure{Level: s.level.String(), Story: s.story, What: "in the quietest round", Seconds: slices.Min(added).Seconds()})
	// Where a direct GET takes more than a millisecond, the machine is the slow one.
	if bound := max(maxAdded, best/2); slices.Min(added) > bound {
		s.Errorf("the sidecar adds %s to the median GET, more than %s", slices.Min(added), bound)
	}
	if after > before+maxGrowth {
		s.Errorf("the sidecar grew from %.1f to %.1f MiB", mebibytes(before), mebibytes(after))
	}
}

func median(values []time.Duration) time.Duration {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

func mebibytes(bytes int) float64 { return float64(bytes) / (1 << 20) }

func (s *scene) residentMemory(c *child) int {
	s.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.command.Process.Pid))
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
			kibibytes, err := strconv.Atoi(fields[1])
			if err != nil {
				s.Fatal(err)
			}
			return kibibytes << 10
		}
	}
	s.Fatal("no VmRSS")
	return 0
}

// watchesStream: each event comes by way of the sidecar while the watch is open.
func watchesStream(s *scene) {
	watch, err := s.clientOf(s.argo.controller).CoreV1().Pods(s.ns).Watch(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	defer watch.Stop()
	var slowest time.Duration
	for i := range 20 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("watched-%d", i)},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "pretended"}}},
		}
		begin := time.Now()
		if _, err := s.admin.CoreV1().Pods(s.ns).Create(s.ctx, pod, metav1.CreateOptions{}); err != nil {
			s.Fatal(err)
		}
		select {
		case event, ok := <-watch.ResultChan():
			if got, isPod := event.Object.(*corev1.Pod); !ok || !isPod || got.Name != pod.Name {
				s.Fatalf("got %s %v", event.Type, event.Object)
			}
			slowest = max(slowest, time.Since(begin))
		case <-time.After(5 * time.Second):
			s.Fatalf("the event of %s does not come", pod.Name)
		}
	}
	s.Logf("the slowest of 20 events came %s after the request that made it began", slowest)
}
