package kube

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
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
		"no status yet":               {body: `{"metadata":{"uid":"u"}}`, want: exists(func(*finalizer.Workflow) {})},
		"a null status":               {body: `{"metadata":{"uid":"u"},"status":null}`, want: exists(func(*finalizer.Workflow) {})},
		"being deleted":               {body: `{"metadata":{"uid":"u","deletionTimestamp":"2026-01-02T03:04:05Z"}}`, want: exists(func(w *finalizer.Workflow) { w.Deleting = true })},
		"completed by label":          {body: `{"metadata":{"uid":"u","labels":{"workflows.argoproj.io/completed":"true"}}}`, want: exists(func(w *finalizer.Workflow) { w.Completed = true })},
		"completed by phase":          {body: `{"metadata":{"uid":"u"},"status":{"phase":"Error"}}`, want: exists(func(w *finalizer.Workflow) { w.Completed = true })},
		"running":                     {body: `{"metadata":{"uid":"u"},"status":{"phase":"Running"}}`, want: exists(func(*finalizer.Workflow) {})},
		"plain nodes":                 {body: `{"metadata":{"uid":"u"},"status":{"nodes":` + nodeJSON + `}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = one })},
		"compressed nodes":            {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + pack(t, nodeJSON) + `"}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = one })},
		"compressed null":             {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + pack(t, "null") + `"}}`, want: exists(func(*finalizer.Workflow) {})},
		"odd node times":              {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{"phase":"Running","startedAt":17,"finishedAt":"yesterday"}}}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = map[string]finalizer.Node{"n": {Phase: "Running"}} })},
		"null node times":             {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{"phase":"Pending","startedAt":null}}}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = map[string]finalizer.Node{"n": {Phase: "Pending"}} })},
		"offloaded nodes":             {body: `{"metadata":{"uid":"u"},"status":{"offloadNodeStatusVersion":"fnv:1"}}`, unknown: "offloaded"},
		"offloaded wins over nodes":   {body: `{"metadata":{"uid":"u"},"status":{"offloadNodeStatusVersion":"fnv:1","nodes":` + nodeJSON + `}}`, unknown: "offloaded"},
		"a status of another shape":   {body: `{"metadata":{"uid":"u"},"status":[1]}`, unknown: "status cannot be read"},
		"nodes of another shape":      {body: `{"metadata":{"uid":"u"},"status":{"nodes":[1]}}`, unknown: "nodes cannot be read"},
		"a node of another shape":     {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{"taskResultSynced":"maybe"}}}}`, unknown: "nodes cannot be read"},
		"compressed: no base64":       {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"%%"}}`, unknown: "cannot be unpacked"},
		"compressed: no gzip":         {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"aGVsbG8gaGVsbG8gaGVsbG8="}}`, unknown: "cannot be unpacked"},
		"compressed: cut short":       {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + truncated + `"}}`, unknown: "cannot be read"},
		"compressed: trailing data":   {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + pack(t, nodeJSON+"{}") + `"}}`, unknown: "cannot be read"},
		"compressed: a bomb":          {body: `{"metadata":{"uid":"u"},"status":{"compressedNodes":"` + bomb + `"}}`, unknown: "more than 10000 bytes"},
		"no JSON":                     {body: `<html>`, fails: true},
		"JSON that is no workflow":    {body: `{"kind":"Status"}`, fails: true},
		"an empty answer":             {body: ``, fails: true},
		"metadata of another shape":   {body: `{"metadata":[]}`, fails: true},
		"a body that is cut short":    {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":{`, fails: true},
		"labels of another shape":     {body: `{"metadata":{"uid":"u","labels":{"a":1}}}`, fails: true},
		"a phase of another shape":    {body: `{"metadata":{"uid":"u"},"status":{"phase":{}}}`, unknown: "status cannot be read"},
		"a node that is null is kept": {body: `{"metadata":{"uid":"u"},"status":{"nodes":{"n":null}}}`, want: exists(func(w *finalizer.Workflow) { w.Nodes = map[string]finalizer.Node{"n": {}} })},
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
				if !strings.Contains(got.Unknown, tc.unknown) || got.Nodes != nil || !got.Exists {
					t.Errorf("got %+v, want Unknown to contain %q and no nodes", got, tc.unknown)
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
	if _, err := readNodes(strings.NewReader(`{"a":{},"b":{},"c":{}}`), 2); err == nil || !strings.Contains(err.Error(), "more than 2") {
		t.Errorf("got %v", err)
	}
}

func FuzzDecodeNodes(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `{"n":{"phase":"Succeeded","startedAt":"2026-01-02T03:04:05Z"}}`, `[`, `{"a":{"x":[[[[{}]]]]}}`, `{"a":{}}{}`} {
		f.Add([]byte(s), pack(f, s), true)
		f.Add([]byte(s), "H4sIAAAAAAAA", false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, packed string, repack bool) {
		const bound = 1 << 16
		if repack {
			packed = pack(t, string(raw))
		}
		for _, s := range []wireStatus{{Nodes: raw}, {CompressedNodes: packed}} {
			nodes, err := decodeNodes(s, bound)
			if (nodes == nil) != (err != nil) {
				t.Fatalf("nodes %v with error %v", nodes, err)
			}
			if s.Nodes == nil && len(nodes) > bound/5 {
				t.Fatalf("%d nodes from at most %d bytes", len(nodes), bound)
			}
		}
	})
}
