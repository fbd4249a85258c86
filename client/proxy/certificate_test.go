package proxy_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/finalizerd/finalizerd/client/proxy"
)

func TestTheCertificateIsForLoopbackAloneAndOutlivesTheProcess(t *testing.T) {
	upstream, ca := apiServer(t, http.NotFoundHandler())
	at, certificate := startCertified(t, proxy.Config{Upstream: upstream, CAFile: ca})
	_, another := startCertified(t, proxy.Config{Upstream: upstream, CAFile: ca})
	if bytes.Equal(certificate, another) {
		t.Error("two proxies have one certificate")
	}
	address := strings.TrimPrefix(at, "https://")
	for _, tc := range []struct {
		name, host string
		trusted    []byte
		next       []string
		negotiated string
		ok         bool
	}{
		{"HTTP/2 or HTTP/1.1", "127.0.0.1", certificate, []string{"h2", "http/1.1"}, "http/1.1", true},
		{"HTTP/2", "127.0.0.1", certificate, []string{"h2"}, "h2", true},
		{"HTTP/1.1", "127.0.0.1", certificate, []string{"http/1.1"}, "http/1.1", true},
		{"no choice", "127.0.0.1", certificate, nil, "", true},
		{"by name", "localhost", certificate, nil, "", true},
		{"IPv6", "::1", certificate, nil, "", true},
		{"another host", "example.com", certificate, nil, "", false},
		{"another proxy's certificate", "127.0.0.1", another, nil, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(tc.trusted)
			conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: tc.host, NextProtos: tc.next})
			if (err == nil) != tc.ok {
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			defer conn.Close()
			if got := conn.ConnectionState().NegotiatedProtocol; got != tc.negotiated {
				t.Errorf("negotiated %q", got)
			}
		})
	}
	block, rest := pem.Decode(certificate)
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one certificate: %s", certificate)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if leaf.IsCA || leaf.PublicKeyAlgorithm != x509.ECDSA || leaf.NotAfter.Before(time.Now().AddDate(9, 0, 0)) || leaf.NotBefore.After(time.Now()) {
		t.Errorf("CA %t, %s, from %s to %s", leaf.IsCA, leaf.PublicKeyAlgorithm, leaf.NotBefore, leaf.NotAfter)
	}
}

func TestPlainHTTPIsNotServed(t *testing.T) {
	upstream, ca := apiServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it reached the API server") }))
	at := start(t, proxy.Config{Upstream: upstream, CAFile: ca})
	if resp, body := send(t, "GET", "http://"+strings.TrimPrefix(at, "https://")+"/api", "", nil); resp.StatusCode != 400 || !strings.Contains(body, "HTTPS") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}
