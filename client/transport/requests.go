package transport

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// maxAnswer bounds an answer of the API server that is kept in memory: one pod,
// which etcd holds below 1.5 MiB, in the longer of its encodings.
const maxAnswer = 8 << 20

// buffer reads the body of req and closes it.
func (t *roundTripper) buffer(req *http.Request, to target) (*call, error) {
	c := &call{roundTripper: t, ctx: req.Context(), req: req, target: to}
	if req.Body == nil || req.Body == http.NoBody {
		return c, nil
	}
	if req.ContentLength > t.options.MaxBody {
		c.tooLarge = true
		return c, nil
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, t.options.MaxBody+1))
	if err != nil {
		_ = req.Body.Close()
		return nil, fmt.Errorf("read the request's body: %w", err)
	}
	if int64(len(body)) > t.options.MaxBody {
		c.tooLarge = true
		c.req = req.Clone(c.ctx)
		c.req.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), req.Body), req.Body}
		return c, nil
	}
	c.body = body
	return c, req.Body.Close()
}

// forward sends the caller's request as it came.
func (c *call) forward() (*http.Response, error) {
	if c.body == nil {
		return c.next.RoundTrip(c.req)
	}
	return c.next.RoundTrip(c.with(c.body))
}

// with returns the caller's request with another body.
func (c *call) with(body []byte) *http.Request {
	req := c.clone()
	if len(body) == 0 {
		req.Body, req.GetBody, req.ContentLength = http.NoBody, nil, 0
		return req
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.ContentLength = int64(len(body))
	req.TransferEncoding = nil
	if req.Header.Get("Content-Length") != "" {
		req.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	return req
}

// clone copies the caller's request: a RoundTripper must not change it.
func (c *call) clone() *http.Request {
	req := c.req.Clone(c.ctx)
	if req.Header == nil {
		req.Header = http.Header{}
	}
	return req
}

// get returns a GET of the pod with the caller's credentials, whoever they are,
// and its Accept header unless accept names another.
func (c *call) get(name, accept string) *http.Request {
	req := c.clone()
	req.Method, req.Body, req.GetBody = http.MethodGet, nil, nil
	req.ContentLength, req.TransferEncoding = 0, nil
	u := *c.req.URL
	u.RawQuery = ""
	u.Path = strings.TrimRight(u.Path, "/")
	if c.req.Method == http.MethodPost {
		u.Path += "/" + name
	}
	req.URL = &u
	for _, h := range []string{"Content-Type", "Content-Length", "Accept-Encoding", "Expect"} {
		req.Header.Del(h)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	return req
}

// metadataOnly asks for JSON, and for no more than the metadata where the API
// server knows how.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// read returns the pod as it is, or the API server's answer if that is not 200.
func (c *call) read(name string) (*object, *kept, error) {
	answer, err := c.keep(c.get(name, metadataOnly))
	if err != nil {
		return nil, nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, answer, nil
	}
	var pod object
	if err := json.Unmarshal(answer.body, &pod); err != nil || pod.Metadata.UID == "" {
		return nil, nil, fmt.Errorf("the API server's answer for pod %s/%s is none: %w", c.target.namespace, name, errOr(err, "no UID"))
	}
	return &pod, answer, nil
}

func errOr(err error, text string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%s", text)
}

// kept is an answer whose body has been read.
type kept struct {
	*http.Response
	body []byte
}

func (k *kept) ok() bool { return k.StatusCode >= 200 && k.StatusCode < 300 }

// keep sends req and reads all of the answer.
func (c *call) keep(req *http.Request) (*kept, error) {
	resp, err := c.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the API server's answer: %w", err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("the API server's answer for pod %s/%s is over %d bytes", c.target.namespace, c.target.pod, maxAnswer)
	}
	return &kept{resp, body}, nil
}

// give returns the answer to the caller, as the one to its own request.
func (c *call) give(k *kept) *http.Response {
	resp := *k.Response
	resp.Body = io.NopCloser(bytes.NewReader(k.body))
	resp.ContentLength = int64(len(k.body))
	resp.TransferEncoding = nil
	resp.Request = c.req
	return &resp
}

// rehearse sends the caller's request with dryRun: the API server says whether
// this caller may, and what it would have answered.
func (c *call) rehearse(req *http.Request) (*kept, error) {
	u := *req.URL
	query := u.Query()
	query.Set("dryRun", "All")
	u.RawQuery = query.Encode()
	req.URL = &u
	return c.keep(req)
}

// live returns the pod of that UID in the form that the caller asked for, and
// last if it is gone.
func (c *call) live(uid string, last *kept) *http.Response {
	answer, err := c.keep(c.get(c.target.pod, ""))
	// The UID is in plain text in all encodings. A successor has another.
	if err != nil || answer.StatusCode != http.StatusOK || !bytes.Contains(answer.body, []byte(uid)) {
		return c.give(last)
	}
	return c.give(answer)
}
