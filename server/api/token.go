package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// A pageToken is the position after which the next page begins, bound to the
// filters of its query: base64url of a checksum and JSON. The checksum finds
// tokens that were cut or edited; it is no secret, and need not be one, because
// a token grants nothing that the query itself does not.
type pageToken struct {
	Version   int    `json:"v"`
	Namespace string `json:"ns,omitempty"`
	Workflow  string `json:"wf,omitempty"`
	Reason    int32  `json:"r,omitempty"`
	AfterNS   string `json:"ans"`
	AfterName string `json:"an"`
	AfterUID  string `json:"au,omitempty"`
}

const (
	tokenVersion = 1
	maxToken     = 2048
	sumLen       = 8
)

func sealToken(r *pb.ListPodsRequest, after finalizer.PodID) string {
	body, err := json.Marshal(pageToken{
		Version: tokenVersion, Namespace: r.GetNamespace(), Workflow: r.GetWorkflow(), Reason: int32(r.GetReason()),
		AfterNS: after.Namespace, AfterName: after.Name, AfterUID: string(after.UID),
	})
	if err != nil {
		return "" // cannot be: strings and numbers only
	}
	sum := sha256.Sum256(body)
	return base64.RawURLEncoding.EncodeToString(append(sum[:sumLen:sumLen], body...))
}

// openToken returns the position, or an error whose text is fit for the caller.
func openToken(r *pb.ListPodsRequest) (finalizer.PodID, error) {
	broken := errors.New("is not a token that this service gave")
	if len(r.GetPageToken()) > maxToken {
		return finalizer.PodID{}, broken
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(r.GetPageToken())
	// The decoder skips line breaks.
	if err != nil || len(raw) <= sumLen || strings.ContainsAny(r.GetPageToken(), "\r\n") {
		return finalizer.PodID{}, broken
	}
	sum, body := raw[:sumLen], raw[sumLen:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:sumLen]) {
		return finalizer.PodID{}, broken
	}
	var t pageToken
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if dec.Decode(&t) != nil || t.Version != tokenVersion {
		return finalizer.PodID{}, broken
	}
	if t.Namespace != r.GetNamespace() || t.Workflow != r.GetWorkflow() || t.Reason != int32(r.GetReason()) {
		return finalizer.PodID{}, errors.New("belongs to another query: namespace, workflow and reason must stay the same from page to page")
	}
	if len(validation.IsDNS1123Label(t.AfterNS)) > 0 || len(validation.IsDNS1123Subdomain(t.AfterName)) > 0 {
		return finalizer.PodID{}, broken
	}
	return finalizer.PodID{Namespace: t.AfterNS, Name: t.AfterName, UID: types.UID(t.AfterUID)}, nil
}
