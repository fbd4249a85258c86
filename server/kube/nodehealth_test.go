package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

var (
	nodeMade    = time.Unix(1_700_000_000, 0)
	nodeChanged = time.Unix(1_700_000_500, 0)
)

func clusterNode(name string, conditions ...corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "nu", CreationTimestamp: metav1.Time{Time: nodeMade}},
		Status:     corev1.NodeStatus{Conditions: conditions},
	}
}

func condition(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
	return corev1.NodeCondition{Type: kind, Status: status, LastTransitionTime: metav1.Time{Time: nodeChanged}}
}

func TestNodeHealth(t *testing.T) {
	pressure := condition(corev1.NodeMemoryPressure, corev1.ConditionTrue)
	timeless := condition(corev1.NodeReady, corev1.ConditionFalse)
	timeless.LastTransitionTime = metav1.Time{}
	proto := func(n *corev1.Node) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { sendProto(t, w, 200, n) }
	}
	status := func(s *metav1.Status) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { sendJSON(t, w, int(s.Code), s) }
	}
	raw := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(body))
		}
	}
	cases := map[string]struct {
		answer http.HandlerFunc
		want   finalizer.NodeHealth
		kind   finalizer.Kind
		fault  string
	}{
		"ready":                             {answer: proto(clusterNode("n", pressure, condition(corev1.NodeReady, corev1.ConditionTrue))), want: finalizer.NodeHealth{Known: true, Ready: true, Since: nodeChanged}},
		"not ready":                         {answer: proto(clusterNode("n", pressure, condition(corev1.NodeReady, corev1.ConditionFalse))), want: finalizer.NodeHealth{Known: true, Since: nodeChanged}},
		"its kubelet is not heard of":       {answer: proto(clusterNode("n", condition(corev1.NodeReady, corev1.ConditionUnknown))), want: finalizer.NodeHealth{Known: true, Since: nodeChanged}},
		"no Ready condition":                {answer: proto(clusterNode("n", pressure)), want: finalizer.NodeHealth{Known: true, Since: nodeMade}},
		"not ready since nobody knows when": {answer: proto(clusterNode("n", timeless)), kind: finalizer.KindUnavailable},
		"in JSON": {answer: func(w http.ResponseWriter, _ *http.Request) {
			sendJSON(t, w, 200, clusterNode("n", condition(corev1.NodeReady, corev1.ConditionTrue)))
		}, want: finalizer.NodeHealth{Known: true, Ready: true, Since: nodeChanged}},
		"gone, proven":                          {answer: status(missing("nodes", "n")), want: finalizer.NodeHealth{Known: true, Gone: true}},
		"another node is gone":                  {answer: status(missing("nodes", "m")), kind: finalizer.KindUnavailable},
		"a 404 of what is no API server":        {answer: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "404 page not found", 404) }, kind: finalizer.KindUnavailable},
		"another node answers":                  {answer: proto(clusterNode("m", condition(corev1.NodeReady, corev1.ConditionFalse))), kind: finalizer.KindUnavailable},
		"no node at all":                        {answer: raw(`{}`), kind: finalizer.KindUnavailable},
		"an object of another kind":             {answer: raw(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"n","uid":"u"}}`), kind: finalizer.KindUnavailable},
		"the API server fails":                  {answer: status(failure(503, metav1.StatusReasonServiceUnavailable, "x", nil)), kind: finalizer.KindUnavailable},
		"B14: the account may not read nodes":   {answer: status(failure(403, metav1.StatusReasonForbidden, `User "u" cannot get resource "nodes"`, nil)), kind: finalizer.KindForbidden, fault: "get nodes"},
		"a connection that breaks is no answer": {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, kind: finalizer.KindUnavailable},
	}
	for name, tc := range cases {
		t.Run("B20: "+name, func(t *testing.T) {
			s := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/api/v1/nodes/n" {
					t.Errorf("asked for %s", r.URL)
				}
				tc.answer(w, r)
			})
			c := s.client(t, Options{Namespaces: []string{"ns"}})
			got, err := c.Nodes.NodeHealth(t.Context(), "n")
			if (tc.kind != 0) != (err != nil) || (err != nil && finalizer.KindOf(err) != tc.kind) {
				t.Fatalf("error %v, want kind %d", err, tc.kind)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			fault := ""
			for _, f := range c.Faults() {
				fault += f.Verb + " " + f.Resource
			}
			if fault != tc.fault {
				t.Errorf("faults %q, want %q", fault, tc.fault)
			}
			before := len(s.requests())
			again, err := c.Nodes.NodeHealth(t.Context(), "n")
			if remembered := len(s.requests()) == before; remembered != (tc.kind == 0) || again != got || (err != nil) == remembered {
				t.Errorf("asked again: remembered %v, got %+v, %v", remembered, again, err)
			}
		})
	}
	if _, err := newAPIServer(t, nil).client(t, Options{}).Nodes.NodeHealth(t.Context(), ""); finalizer.KindOf(err) != finalizer.KindInternal || err == nil {
		t.Errorf("a node without a name: %v", err)
	}
}

func TestNodeReadsAreShared(t *testing.T) {
	open := make(chan struct{})
	s := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		<-open
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		sendProto(t, w, 200, clusterNode(name, condition(corev1.NodeReady, corev1.ConditionTrue)))
	})
	c := s.client(t, Options{})
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := c.Nodes.NodeHealth(ctx, "n"); first <- err }()
	eventually(t, "the first asker's read", func() bool { return len(s.requests()) == 1 })
	leave()
	if err := <-first; finalizer.KindOf(err) != finalizer.KindCanceled {
		t.Errorf("who leaves gets %v", err)
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if h, err := c.Nodes.NodeHealth(t.Context(), "n"); err != nil || !h.Ready {
				t.Errorf("got %+v, %v", h, err)
			}
		})
	}
	close(open)
	all.Wait()
	if n := len(s.requests()); n != 1 {
		t.Errorf("%d reads for 51 askers, want 1", n)
	}
}

func TestNodeMemoryEndsAndIsBounded(t *testing.T) {
	n := &Nodes{memory: 15 * time.Second}
	now := time.Unix(0, 0)
	n.remember("a", finalizer.NodeHealth{Known: true}, now)
	if _, ok := n.recall("a", now.Add(15*time.Second-1)); !ok {
		t.Error("forgotten too soon")
	}
	if _, ok := n.recall("a", now.Add(15*time.Second)); ok {
		t.Error("remembered for too long")
	}
	for i := range maxNodesRemembered + 500 {
		n.remember(fmt.Sprint(i), finalizer.NodeHealth{Known: true}, now.Add(time.Minute))
	}
	if len(n.known) > maxNodesRemembered {
		t.Errorf("%d nodes remembered, want at most %d", len(n.known), maxNodesRemembered)
	}
	if _, ok := n.known["a"]; ok {
		t.Error("an old answer stayed while newer ones were dropped")
	}
}
