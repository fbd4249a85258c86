package argo

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// write is one write on a pod that the API server has carried out, as it has logged it.
type write struct {
	verb, subresource, pod, user, agent string
	received, answered                  time.Time
}

func (w write) overlaps(o write) bool {
	return w.received.Before(o.answered) && o.received.Before(w.answered)
}

// podWrites reads the audit log: the successful writes on pods of a namespace, dry runs left out, in the order of arrival.
func (p *plane) podWrites(namespace string) ([]write, error) {
	content, err := os.ReadFile(filepath.Join(p.dir, "audit.jsonl"))
	if err != nil {
		return nil, err
	}
	var found []write
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var entry struct {
			Stage, Verb, UserAgent, RequestURI string
			User                               struct{ Username string }
			ObjectRef                          struct{ Resource, Subresource, Namespace, Name string }
			ResponseStatus                     struct{ Code int }
			RequestReceivedTimestamp           time.Time
			StageTimestamp                     time.Time
		}
		if err := json.Unmarshal(line, &entry); err != nil {
			return nil, err
		}
		if entry.Stage != "ResponseComplete" || entry.ObjectRef.Resource != "pods" || entry.ObjectRef.Namespace != namespace ||
			entry.ResponseStatus.Code >= 300 || strings.Contains(entry.RequestURI, "dryRun=") ||
			!slices.Contains([]string{"create", "update", "patch", "delete"}, entry.Verb) {
			continue
		}
		found = append(found, write{
			verb: entry.Verb, subresource: entry.ObjectRef.Subresource, pod: entry.ObjectRef.Name,
			user: entry.User.Username, agent: entry.UserAgent,
			received: entry.RequestReceivedTimestamp, answered: entry.StageTimestamp,
		})
	}
	slices.SortStableFunc(found, func(a, b write) int { return cmp.Or(a.received.Compare(b.received), a.answered.Compare(b.answered)) })
	return found, nil
}
