// Package audit reads the audit log of the local API server: which request on pods and workflows came when, from whom, and
// how it ended. It is the one witness that is not the program under test.
//
// It imports standard packages only. The log is read as it is written, so the line of a request may come a moment after
// its answer; see Settled.
package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

const settle = 100 * time.Millisecond

// Request is one request that the API server has answered.
type Request struct {
	Verb                                        string // as in RBAC
	Resource, Subresource, Namespace, Name, UID string // UID is empty where the server did not note it
	UserAgent                                   string
	Code                                        int
	Received, Answered                          time.Time
}

// Log is the audit log in one file.
type Log struct{ Path string }

// End returns the present end of the log, to be given to Since.
func (l Log) End() (int64, error) {
	info, err := os.Stat(l.Path)
	if err != nil {
		return 0, fmt.Errorf("audit log: %w", err)
	}
	return info.Size(), nil
}

// Since returns the requests logged behind the offset, in the order of their answers. A line that is not complete yet is
// left out.
func (l Log) Since(offset int64) ([]Request, error) {
	file, err := os.Open(l.Path)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.NewSectionReader(file, offset, 1<<40))
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	var requests []Request
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var entry event
		if err := json.Unmarshal(line, &entry); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		if entry.Stage == "ResponseComplete" {
			requests = append(requests, entry.request())
		}
	}
	return requests, nil
}

// Settled is Since, once the log has stopped growing for a moment.
func (l Log) Settled(ctx context.Context, offset int64) ([]Request, error) {
	ticker := time.NewTicker(settle)
	defer ticker.Stop()
	last := int64(-1)
	for {
		end, err := l.End()
		if err != nil {
			return nil, err
		}
		if end == last {
			return l.Since(offset)
		}
		last = end
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
	}
}

// event is the part of audit.k8s.io/v1 Event that is used.
type event struct {
	Stage     string `json:"stage"`
	Verb      string `json:"verb"`
	UserAgent string `json:"userAgent"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		UID         string `json:"uid"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received time.Time `json:"requestReceivedTimestamp"`
	Answered time.Time `json:"stageTimestamp"`
}

func (e *event) request() Request {
	return Request{
		Verb: e.Verb, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
		Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, UID: e.ObjectRef.UID,
		UserAgent: e.UserAgent, Code: e.ResponseStatus.Code, Received: e.Received, Answered: e.Answered,
	}
}
