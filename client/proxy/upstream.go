package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/finalizerd/finalizerd/client/transport"
)

// upstream is the way to the API server.
type upstream struct {
	// many carries the requests side by side over HTTP/2; upgrading is for those
	// that take a connection over, which HTTP/2 has no way for.
	many, upgrading *http.Transport
}

func newUpstream(caFile string) (*upstream, error) {
	d := &dialer{caFile: caFile, net: net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}}
	if _, err := d.config("h2"); err != nil {
		return nil, err
	}
	var both, one http.Protocols
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	one.SetHTTP1(true)
	return &upstream{
		many:      d.transport(&both, "h2", "http/1.1"),
		upgrading: d.transport(&one, "http/1.1"),
	}, nil
}

// RoundTrip sends req.
func (u *upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Upgrade") != "" {
		return u.upgrading.RoundTrip(req)
	}
	req, err := repeatable(req)
	if err != nil {
		return nil, err
	}
	return u.many.RoundTrip(req)
}

// repeatable returns the request with its body in memory, if it is of a known
// length that is not too large. An API server that takes leave of a connection
// (GOAWAY: before it stops, or with --goaway-chance) names requests that it did
// not look at, which net/http then sends again, if it can have the body again.
func repeatable(req *http.Request) (*http.Request, error) {
	if req.GetBody != nil || req.ContentLength <= 0 || req.ContentLength > transport.DefaultMaxBody {
		return req, nil
	}
	body := make([]byte, req.ContentLength)
	_, err := io.ReadFull(req.Body, body)
	_ = req.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	again := req.WithContext(req.Context()) // a copy
	again.Body = io.NopCloser(bytes.NewReader(body))
	again.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return again, nil
}

// CloseIdleConnections closes what nobody uses.
func (u *upstream) CloseIdleConnections() {
	u.many.CloseIdleConnections()
	u.upgrading.CloseIdleConnections()
}

// dialer checks the API server against the file's certificates of now.
type dialer struct {
	caFile string
	net    net.Dialer
}

func (d *dialer) transport(p *http.Protocols, next ...string) *http.Transport {
	return &http.Transport{
		Protocols:   p,
		DialContext: d.net.DialContext,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			config, err := d.config(next...)
			if err != nil {
				return nil, err
			}
			return (&tls.Dialer{NetDialer: &d.net, Config: config}).DialContext(ctx, network, address)
		},
		// Bytes pass as they are, compressed or not.
		DisableCompression:    true,
		MaxIdleConns:          100,
		MaxIdleConnsPerHost:   100,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		// A dead connection would leave watches silent for ever.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
}

func (d *dialer) config(next ...string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: next}
	if d.caFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(d.caFile)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA file %s: no certificate in it", d.caFile)
	}
	return config, nil
}
