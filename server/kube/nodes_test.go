package kube

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

func pack(t testing.TB, s string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func TestDecodeWorkflow(t *testing.T) {
	no := false
	key := wf("w")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	exists := func(change func(*finalizer.Workflow)) finalizer.Workflow {
		w := finalizer.Workflow{Key: key, Exists: true, UID: "u", Nodes: map[string]finalizer.Node{}}
		change(&w)
		return w
	}
	one := map[string]finalizer.Node{"n": {Type: "Pod", Phase: "Failed", Synced: &no, BoundaryID: "b", StartedAt: at, FinishedAt: at}}
	nodeJSON := `{"n":{"id":"n","type":"Pod","phase":"Failed","boundaryID":"b","taskResultSynced":false,"startedAt":"2026-01-02T03:04:05Z","finishedAt":"2026-01-02T03:04:05Z","outputs":{"x":[1]}}}`
	bomb := pack(t, `{"n":{"x":"`+strings.Repeat("A", 100_000)+`"}}`)
	truncated := base64.StdEncoding.EncodeToString(func() []byte {
		b, _ := base64.StdEncoding.DecodeString(pack(t, nodeJSON))
		return b[:len(b)-4]
	}())
	cases := map[string]struct {
		body    string
		want    finalizer.Workflow
		unknown string // a part of it
		fails   bool
	}{
		"no status yet":      {body: `{"metadata":{"uid":"u"}}`, want: exists(func(*finalizer.Workflow) {})},
		"a null status":      {body: `{"metadata":{"uid":"u"},"status":null}`, want: exists(func(*finalizer.Workflow) {})},
		"being deleted":      {body: `{"metadata":{"uid":"u","deletionTimestamp":"2026-01-02T03:04:05Z"}}`, want: exists(func(w *finalizer.Workflow) { w.Deleting = true })},
		"completed by label": {body: `{"metadata":{"uid":"u","labels":{"workflows.argoproj.io/completed":"true"}}}`, want: exists(func(w *finalizer.Workflow) { w.Completed = true })},
		"completed by phase": {body: `{"metadata":{"uid":"u"},"status":{"phase":"Error"}}`, want: exists(func(w *finalizer.Workflow) { w.Phase, w.Completed = "Error", true })},
		"running":            {body: `{"metadata":{"uid":"u"},"status":{"phase":"Running"}}`, want: exists(func(w *finalizer.Workflow) { w.Phase = "Running" })},
		"running since":      {body: `{"metadata":{"uid":"u"},"status":{"phase":"Running","startedAt":"2026-01-02T03:04:05Z","conditions":[{"type":"PodRunning","status":"True"}]}}`, want: exists(func(w *finalizer.Workflow) { w.Phase, w.StartedAt = "Running", at })},
		"retried":            {body: `{"metadata":{"uid":"u"},"status":{"startedAt":"2026-01-02T03:04:05Z","conditions":[{"type":"PodRunning"},{"type":"Completed","status":"False"}]}}`, want: exists(func(w *finalizer.Workflow) { w.StartedAt, w.CompletedOnce = at, true })},
		"resubmitted":        {body: `{"metadata":{"uid":"u","labels":{"workflows.argoproj.io/resubmitted-from-workflow":"v"}}}`, want: exists(func(w *finalizer.Workflow) { w.Resubmitted = true })},
		"a pod that is made anew": {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{"phase":"Pending","restartingPodUID":"p"}}}}`, want: exists(func(w *finalizer.Workflow) {
			w.Nodes = map[string]finalizer.Node{"n": {Phase: "Pending", RestartingPod: "p"}}
		})},
		"retried with offloaded nodes": {body: `{"metadata":{"uid":"u"},"status":{"phase":"Running","startedAt":"2026-01-02T03:04:05Z","conditions":[{"type":"Completed"}],"offloadNodeStatusVersion":"fnv:1"}}`, unknown: "offloaded", want: exists(func(w *finalizer.Workflow) { w.StartedAt, w.CompletedOnce = at, true })},
		"conditions of another shape":  {body: `{"metadata":{"uid":"u"},"status":{"startedAt":7,"conditions":{"type":"Completed"}}}`, want: exists(func(*finalizer.Workflow) {})},
		"plain nodes":                  {body: `{"metadata":{"uid":"u"},"status":{"nodes":` + nodeJSON + `}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = one })},
		"compressed nodes":             {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + pack(t, nodeJSON) + `"}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = one })},
		"compressed null":              {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + pack(t, "null") + `"}}`, want: exists(func(*finalizer.Workflow) {})},
		"odd node times":               {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{"phase":"Running","startedAt":17,"finishedAt":"yesterday"}}}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = map[string]finalizer.Node{"n": {Phase: "Running"}} })},
		"null node times":              {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{"phase":"Pending","startedAt":null}}}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = map[string]finalizer.Node{"n": {Phase: "Pending"}} })},
		"offloaded nodes":              {body: `{"metadata":{"uid":"u"},"status":{"offloadNodeStatusVersion":"fnv:1"}}`, unknown: "offloaded"},
		"offloaded wins over nodes":    {body: `{"metadata":{"uid":"u"},"status":{"offloadNodeStatusVersion":"fnv:1","nodes":` + nodeJSON + `}}`, unknown: "offloaded"},
		"a status of another shape":    {body: `{"metadata":{"uid":"u"},"status":[1]}`, unknown: "status cannot be read"},
		"nodes of another shape":       {body: `{"metadata":{"uid":"u"},"status":{"nodes":[1]}}`, unknown: "nodes cannot be read"},
		"a node of another shape":      {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{"taskResultSynced":"maybe"}}}}`, unknown: "nodes cannot be read"},
		"compressed: no base64":        {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"%%"}}`, unknown: "cannot be unpacked"},
		"compressed: no gzip":          {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"aGVsbG8gaGVsbG8gaGVsbG8="}}`, unknown: "cannot be unpacked"},
		"compressed: cut short":        {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + truncated + `"}}`, unknown: "cannot be read"},
		"compressed: trailing data":    {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + pack(t, nodeJSON+"{}") + `"}}`, unknown: "cannot be read"},
		"compressed: a bomb":           {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + bomb + `"}}`, unknown: "more than 10000 bytes"},
		"no JSON":                      {body: `<html>`, fails: true},
		"JSON that is no workflow":     {body: `{"kind":"Status"}`, fails: true},
		"an empty answer":              {body: ``, fails: true},
		"metadata of another shape":    {body: `{"metadata":[]}`, fails: true},
		"a body that is cut short":     {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{`, fails: true},
		"labels of another shape":      {body: `{"metadata":{"uid":"u","labels":{"a":1}}}`, fails: true},
		"a phase of another shape":     {body: `{"metadata":{"uid":"u"},"status":{"phase":{}}}`, unknown: "status cannot be read"},
		"a node that is null is kept":  {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":null}}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = map[string]finalizer.Node{"n": {}} })},
	}
	for name, tc := range cases {
		t.Run("B34: "+name, func(t *testing.T) {
			got, err := decodeWorkflow([]byte(tc.body), key, 10_000)
			if tc.fails != (err != nil) {
				t.Fatalf("error %v, want one: %v", err, tc.fails)
			}
			if tc.fails {
				return
			}
			if tc.unknown != "" {
				if !strings.Contains(got.Unknown, tc.unknown) || got.Nodes != nil || !got.Exists ||
					!got.StartedAt.Equal(tc.want.StartedAt) || got.CompletedOnce != tc.want.CompletedOnce {
					t.Errorf("got %+v, want Unknown to contain %q, no nodes, and the rest of %+v", got, tc.unknown, tc.want)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreUnexported(finalizer.Workflow{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestDecodeNodesBoundsTheirNumber(t *testing.T) {
	if nodes, err := readNodes(strings.NewReader(`{"a":{},"b":{}}`), 2); err != nil || len(nodes) != 2 {
		t.Errorf("got %v, %v", nodes, err)
	}
	for _, more := range []string{`{"a":{},"b":{},"c":{}}`, `{"a":{},"a":{},"a":{}}`} {
		if _, err := readNodes(strings.NewReader(more), 2); err == nil || !strings.Contains(err.Error(), "more than 2") {
			t.Errorf("got %v", err)
		}
	}
}

// bombs are what small inputs can hide, by name: each unpacks to, or nests,
// far more than it weighs.
func bombs() map[string]string {
	return map[string]string{
		"one huge node":            `{"n":{"x":"` + strings.Repeat("A", 1<<19) + `"}}`,
		"a huge ID":                `{"` + strings.Repeat("A", 1<<19) + `":{}}`,
		"spaces":                   strings.Repeat(" ", 1<<19),
		"very many nodes":          `{` + strings.Repeat(`"a":{},`, 1<<16) + `"b":{}}`,
		"deep arrays":              `{"n":{"x":` + strings.Repeat("[", 1<<17),
		"deep objects":             `{"n":` + strings.Repeat(`{"x":`, 1<<17),
		"deep, at the top":         strings.Repeat("[", 1<<17),
		"a deep node that closes":  `{"n":{"x":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}}`,
		"a number without an end":  `{"n":{"x":` + strings.Repeat("9", 1<<19),
		"a time that is no time":   `{"n":{"startedAt":"` + strings.Repeat("9", 1<<19) + `"}}`,
		"a phase that is too long": `{"n":{"phase":"` + strings.Repeat("9", 1<<19) + `"}}`,
	}
}

// allocated returns how many bytes f allocates, garbage included.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// allocationPerByte is more than the decoder allocates, garbage included, for a
// byte of JSON: `"a":{},` is what costs most.
const allocationPerByte = 200

func TestDecodeNodesIsBoundedInMemory(t *testing.T) {
	const bound = 1 << 16
	for name, body := range bombs() {
		t.Run("B34: "+name, func(t *testing.T) {
			s := wireStatus{CompressedNodes: pack(t, body)}
			var nodes map[string]finalizer.Node
			var err error
			got := allocated(func() { nodes, err = decodeNodes(s, bound) })
			if limit := uint64(bound*allocationPerByte + 1<<20); got > limit {
				t.Errorf("%d bytes allocated, want at most %d", got, limit)
			}
			if len(body) > bound && (err == nil || nodes != nil) {
				t.Errorf("%d bytes were read past the bound of %d: %d nodes, %v", len(body), bound, len(nodes), err)
			}
		})
	}
}

func FuzzDecodeNodes(f *testing.F) {
	for _, s := range []string{
		`{}`, `null`, `[`, `{"a":{"x":[[[[{}]]]]}}`, `{"a":{}}{}`, `{"":null,"":{}}`, "{\"\xff\":{}}",
		`{"n":{"phase":"Succeeded","startedAt":"2026-01-02T03:04:05Z","taskResultSynced":false,"boundaryID":"b","type":"Pod"}}`,
		`{"n":{"startedAt":{"a":1},"finishedAt":[null]}}`, `{"n":{"phase":7}}`, `{"n":1e999999}`,
	} {
		f.Add([]byte(s), pack(f, s), true)
	}
	for _, s := range bombs() {
		f.Add([]byte(s[:min(len(s), 1<<12)]), pack(f, s), false)
	}
	valid := pack(f, `{"n":{}}`)
	for _, s := range []string{
		"", "H4sIAAAAAAAA", "====", "%%", valid[:len(valid)-8], valid + "!", valid + valid, "\n" + valid + "\r\n",
		valid[:10] + "AAAA" + valid[14:], strings.Repeat("A", 1<<12), pack(f, string(make([]byte, 1<<20))),
		base64.StdEncoding.EncodeToString(bytes.Repeat(unbase64(f, pack(f, "")), 100)), // empty members, one after another
	} {
		f.Add([]byte(nil), s, false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, packed string, repack bool) {
		const bound = 1 << 16
		if repack {
			packed = pack(t, string(raw))
		}
		for _, s := range []wireStatus{{Nodes: raw}, {CompressedNodes: packed}} {
			var nodes map[string]finalizer.Node
			var err error
			got := allocated(func() { nodes, err = decodeNodes(s, bound) })
			if (nodes == nil) != (err != nil) {
				t.Fatalf("nodes %v with error %v", nodes, err)
			}
			if s.Nodes == nil && len(nodes) > bound/5 {
				t.Fatalf("%d nodes from at most %d bytes", len(nodes), bound)
			}
			unpacked := bound
			if s.Nodes != nil {
				unpacked = len(raw)
			}
			if limit := uint64((unpacked+len(packed))*allocationPerByte + 1<<20); got > limit {
				t.Fatalf("%d bytes allocated, want at most %d", got, limit)
			}
		}
	})
}

func unbase64(t testing.TB, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
