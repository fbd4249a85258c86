package proxy

import (
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"testing"

	"github.com/finalizerd/finalizerd/client/transport"
)

// New listens on nothing, so any address of loopback will do on any machine.
func TestTheCertificateIsForTheAddressToListenOn(t *testing.T) {
	const other = "127.8.8.8"
	var unasked struct{ transport.Service }
	p, err := New(Config{Listen: other + ":0", Upstream: &url.URL{Scheme: "http", Host: "api"}, Service: unasked})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(p.pem)
	if block == nil {
		t.Fatalf("no certificate: %s", p.pem)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{other, "127.0.0.1", "::1", "localhost"} {
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if leaf.VerifyHostname("127.8.8.9") == nil {
		t.Error("it is for an address that nobody listens on")
	}
}
