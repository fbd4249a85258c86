package audit

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const line = `{"stage":"ResponseComplete","verb":"patch","userAgent":"finalizerd/dev","objectRef":{"resource":"pods","namespace":"demo","name":"hello-1"},` +
	`"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z","stageTimestamp":"2026-01-02T03:04:05.000009Z"}` + "\n"

func TestSinceReadsCompleteLinesBehindTheOffset(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := Request{
		Verb: "patch", Resource: "pods", Namespace: "demo", Name: "hello-1", UserAgent: "finalizerd/dev", Code: 200,
		Received: at.Add(time.Microsecond), Answered: at.Add(9 * time.Microsecond),
	}
	tests := map[string]struct {
		content string
		offset  int64
		want    []Request
	}{
		"all":                               {content: line + line, want: []Request{want, want}},
		"only what comes behind the offset": {content: line + line, offset: int64(len(line)), want: []Request{want}},
		"not a line that is being written":  {content: line + line[:50], want: []Request{want}},
		"not the beginning of a watch":      {content: `{"stage":"ResponseStarted","verb":"watch"}` + "\n"},
		"nothing of an empty log":           {},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			log := Log{Path: filepath.Join(t.TempDir(), "audit.jsonl")}
			if err := os.WriteFile(log.Path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := log.Since(tt.offset)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Since (-want +got):\n%s", diff)
			}
		})
	}
}
