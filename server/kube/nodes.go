package kube

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// maxNodes bounds what one workflow's nodes may cost in memory: an unpacked byte
// of JSON can become twenty in a map.
const maxNodes = 200_000

// wireWorkflow is what is read of a stored Workflow. The status stays raw, so
// that an odd status does not hide the metadata.
type wireWorkflow struct {
	Metadata struct {
		UID               types.UID         `json:"uid"`
		DeletionTimestamp json.RawMessage   `json:"deletionTimestamp"`
		Labels            map[string]string `json:"labels"`
	} `json:"metadata"`
	Status json.RawMessage `json:"status"`
}

type wireStatus struct {
	Phase                    string          `json:"phase"`
	Nodes                    json.RawMessage `json:"nodes"`
	CompressedNodes          string          `json:"compressedNodes"`
	OffloadNodeStatusVersion string          `json:"offloadNodeStatusVersion"`
	StartedAt                lenientTime     `json:"startedAt"`
	Conditions               json.RawMessage `json:"conditions"`
}

// completedOnce looks for the condition Completed. Conditions that cannot be read
// count as none.
func (s wireStatus) completedOnce() bool {
	var conditions []struct {
		Type string `json:"type"`
	}
	if !present(s.Conditions) || json.Unmarshal(s.Conditions, &conditions) != nil {
		return false
	}
	for _, c := range conditions {
		if c.Type == "Completed" {
			return true
		}
	}
	return false
}

type wireNode struct {
	Type          string      `json:"type"`
	Phase         string      `json:"phase"`
	BoundaryID    string      `json:"boundaryID"`
	Synced        *bool       `json:"taskResultSynced"`
	StartedAt     lenientTime `json:"startedAt"`
	FinishedAt    lenientTime `json:"finishedAt"`
	RestartingPod types.UID   `json:"restartingPodUID"`
}

// lenientTime reads RFC 3339; anything else is the zero time.
type lenientTime struct{ time.Time }

// UnmarshalJSON never fails.
func (t *lenientTime) UnmarshalJSON(b []byte) error {
	t.Time = time.Time{}
	var s string
	if json.Unmarshal(b, &s) == nil {
		if at, err := time.Parse(time.RFC3339, s); err == nil {
			t.Time = at
		}
	}
	return nil
}

// decodeWorkflow reads a Workflow as the API server answers it. An error means
// that it is no Workflow; a status that cannot be read is Unknown. maxUnpacked
// bounds the size of compressed nodes once unpacked, in bytes.
func decodeWorkflow(body []byte, key finalizer.WorkflowKey, maxUnpacked int64) (finalizer.Workflow, error) {
	var w wireWorkflow
	if err := json.Unmarshal(body, &w); err != nil {
		return finalizer.Workflow{}, fmt.Errorf("not a workflow: %w", err)
	}
	if w.Metadata.UID == "" {
		return finalizer.Workflow{}, errors.New("not a workflow: it has no UID")
	}
	out := finalizer.Workflow{
		Key: key, Exists: true, UID: w.Metadata.UID,
		Deleting:    present(w.Metadata.DeletionTimestamp),
		Completed:   w.Metadata.Labels[finalizer.LabelCompleted] == "true",
		Resubmitted: w.Metadata.Labels[finalizer.LabelResubmitted] != "",
	}
	var s wireStatus
	if present(w.Status) {
		if err := json.Unmarshal(w.Status, &s); err != nil {
			out.Unknown = fmt.Sprintf("the status cannot be read: %v", err)
			return out, nil
		}
	}
	out.Phase, out.StartedAt, out.CompletedOnce = s.Phase, s.StartedAt.Time, s.completedOnce()
	switch s.Phase {
	case "Succeeded", "Failed", "Error":
		out.Completed = true
	}
	nodes, err := decodeNodes(s, maxUnpacked)
	if err != nil {
		out.Unknown = err.Error()
		return out, nil
	}
	out.SetNodes(nodes)
	return out, nil
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// decodeNodes returns the nodes by ID, never nil without an error. Memory is
// bounded by maxUnpacked and maxNodes, whatever the input.
func decodeNodes(s wireStatus, maxUnpacked int64) (map[string]finalizer.Node, error) {
	switch {
	case s.OffloadNodeStatusVersion != "":
		return nil, fmt.Errorf("the node status is offloaded (version %.64q)", s.OffloadNodeStatusVersion)
	case s.CompressedNodes != "":
		packed := base64.NewDecoder(base64.StdEncoding, strings.NewReader(s.CompressedNodes))
		unpacked, err := gzip.NewReader(packed)
		if err != nil {
			return nil, fmt.Errorf("compressedNodes cannot be unpacked: %w", err)
		}
		bounded := &io.LimitedReader{R: unpacked, N: maxUnpacked + 1}
		nodes, err := readNodes(bounded, maxNodes)
		if bounded.N <= 0 {
			return nil, fmt.Errorf("compressedNodes unpack to more than %d bytes", maxUnpacked)
		}
		if err != nil {
			return nil, fmt.Errorf("compressedNodes cannot be read: %w", err)
		}
		return nodes, nil
	case present(s.Nodes):
		nodes, err := readNodes(bytes.NewReader(s.Nodes), maxNodes)
		if err != nil {
			return nil, fmt.Errorf("the nodes cannot be read: %w", err)
		}
		return nodes, nil
	}
	return map[string]finalizer.Node{}, nil
}

// readNodes reads one JSON object of at most so many nodes, repeats of an ID
// included, one by one and to the very end: only there does gzip verify its
// checksum.
func readNodes(r io.Reader, most int) (map[string]finalizer.Node, error) {
	dec := json.NewDecoder(r)
	first, err := dec.Token()
	if err != nil {
		return nil, err
	}
	nodes := map[string]finalizer.Node{}
	switch first {
	case json.Delim('{'):
	case nil: // null
		return nodes, atEnd(dec)
	default:
		return nil, errors.New("they are not an object")
	}
	for read := 0; dec.More(); read++ {
		id, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := id.(string)
		if !ok {
			return nil, errors.New("a node has no ID")
		}
		var n wireNode
		if err := dec.Decode(&n); err != nil {
			return nil, err
		}
		if read >= most {
			return nil, fmt.Errorf("they are more than %d", most)
		}
		nodes[name] = finalizer.Node{
			Type: intern(n.Type), Phase: intern(n.Phase), BoundaryID: n.BoundaryID, Synced: n.Synced,
			StartedAt: n.StartedAt.Time, FinishedAt: n.FinishedAt.Time, RestartingPod: n.RestartingPod,
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	return nodes, atEnd(dec)
}

func atEnd(dec *json.Decoder) error {
	switch _, err := dec.Token(); {
	case err == io.EOF:
		return nil
	case err != nil:
		return err
	}
	return errors.New("something follows the object")
}
