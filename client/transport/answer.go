package transport

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fault is what an error of the service means to the caller.
type fault int

const (
	faultDown      fault = iota // the service cannot be reached
	faultRefused                // not now: ask again later
	faultForeign                // the service is not in charge of this pod
	faultBusy                   // too many requests
	faultForbidden              // the service does not know us, or we may not
	faultBroken                 // the service's own fault
)

// classify is the one place that turns an error of the service into a fault.
func classify(err error) fault {
	switch client.Reason(err) {
	case finalizerv1.ErrorReason_ERROR_REASON_NOT_A_WORKFLOW_POD, finalizerv1.ErrorReason_ERROR_REASON_OTHER_INSTANCE:
		return faultForeign
	case finalizerv1.ErrorReason_ERROR_REASON_API_THROTTLED, finalizerv1.ErrorReason_ERROR_REASON_WORKFLOW_BUSY:
		return faultBusy
	}
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.Aborted:
		return faultRefused
	case codes.InvalidArgument, codes.NotFound:
		return faultForeign // a name that the service does not take
	case codes.ResourceExhausted:
		return faultBusy
	case codes.Unauthenticated, codes.PermissionDenied:
		return faultForbidden
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return faultDown
	}
	return faultBroken
}

// kubeStatus is the Status object of Kubernetes.
type kubeStatus struct {
	Kind       string        `json:"kind"`
	APIVersion string        `json:"apiVersion"`
	Metadata   struct{}      `json:"metadata"`
	Status     string        `json:"status"`
	Message    string        `json:"message"`
	Reason     string        `json:"reason"`
	Details    statusDetails `json:"details"`
	Code       int           `json:"code"`
}

type statusDetails struct {
	Name              string `json:"name,omitempty"`
	Kind              string `json:"kind,omitempty"`
	RetryAfterSeconds int    `json:"retryAfterSeconds,omitempty"`
}

// answer is a failure in the form of Kubernetes, always JSON: its clients decode
// failures by Content-Type.
func (c *call) answer(code int, reason, message string, retry time.Duration) *http.Response {
	s := kubeStatus{
		Kind: "Status", APIVersion: "v1", Status: "Failure", Message: message, Reason: reason, Code: code,
		Details: statusDetails{Name: c.target.pod, Kind: "pods", RetryAfterSeconds: int(math.Ceil(retry.Seconds()))},
	}
	body, err := json.Marshal(s)
	if err != nil {
		panic("transport: " + err.Error()) // strings and numbers
	}
	header := http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(body))}}
	if s.Details.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.Itoa(s.Details.RetryAfterSeconds))
	}
	return &http.Response{
		Status: strconv.Itoa(code) + " " + http.StatusText(code), StatusCode: code,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: c.req,
	}
}

// conflict is the answer that makes Argo queue the same work again.
func (c *call) conflict(err error) *http.Response {
	return c.answer(http.StatusConflict, "Conflict",
		"Operation cannot be fulfilled on pods \""+c.target.pod+"\": finalizerd refuses: "+status.Convert(err).Message(), 0)
}

func (c *call) gone() *http.Response {
	return c.answer(http.StatusNotFound, "NotFound", "pods \""+c.target.pod+"\" not found", 0)
}

// unable is the answer when the service could not do its work. client-go itself
// repeats a 429 and a 503 that say when.
func (c *call) unable(f fault, err error) *http.Response {
	retry, ok := client.RetryAfter(err)
	if !ok {
		retry = time.Second
	}
	message := "finalizerd: " + status.Convert(err).Message()
	switch f {
	case faultBusy:
		return c.answer(http.StatusTooManyRequests, "TooManyRequests", message, max(retry, time.Second))
	case faultForbidden:
		return c.answer(http.StatusForbidden, "Forbidden", message, 0)
	case faultBroken:
		return c.answer(http.StatusInternalServerError, "InternalError", message, 0)
	}
	return c.answer(http.StatusServiceUnavailable, "ServiceUnavailable", message, max(retry, time.Second))
}
