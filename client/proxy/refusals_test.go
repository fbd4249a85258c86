package proxy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/finalizerd/finalizerd/client/proxy"
	"github.com/finalizerd/finalizerd/client/transport"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestWhenTheServiceIsDown(t *testing.T) {
	const pod = `{"kind":"Pod","metadata":{"name":"a","uid":"u","ownerReferences":[{"apiVersion":"argoproj.io/v1alpha1","kind":"Workflow","name":"wf","uid":"w","controller":true}]}}`
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, pod) }))
	for _, tc := range []struct {
		when transport.WhenDown
		code int
	}{{transport.Fail, 503}, {transport.Bypass, 200}} {
		f := finalizerd{calls: make(chan string, 1), err: status.Error(codes.Unavailable, "down")}
		at := start(t, proxy.Config{Upstream: upstream, CAFile: ca, Service: f, Transport: transport.Options{WhenDown: tc.when}})
		if resp, answer := send(t, "DELETE", at+"/api/v1/namespaces/argo/pods/a", "", nil); resp.StatusCode != tc.code {
			t.Errorf("%d %s, want %d", resp.StatusCode, answer, tc.code)
		}
	}
}

func TestTheProxyAnswersItsOwnPathsAlone(t *testing.T) {
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "upstream "+r.URL.Path) }))
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") })
	at := start(t, proxy.Config{Upstream: upstream, CAFile: ca, Metrics: metrics})
	for _, tc := range []struct {
		path, host, want string
		code             int
	}{
		{proxy.HealthPath, "", "ok\n", 200},
		{proxy.MetricsPath, "", "metrics", 200},
		{proxy.OwnPath + "other", "", "404 page not found\n", 404},
		{"/healthz", "", "upstream /healthz", 200},
		{"/healthz", "localhost:8001", "upstream /healthz", 200},
		{"/healthz", "[::1]", "upstream /healthz", 200},
		{"/healthz", "evil.example:8001", "finalizerd proxy: the Host must be a loopback address\n", 403},
		{proxy.HealthPath, "evil.example", "finalizerd proxy: the Host must be a loopback address\n", 403},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", at+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = tc.host
		resp, err := caller(t).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tc.code || string(body) != tc.want {
			t.Errorf("%s for %q: %d %q", tc.path, tc.host, resp.StatusCode, body)
		}
	}
}

func TestAnAPIServerThatCannotBeReachedIsA503(t *testing.T) {
	gone, ca := apiServer(t, http.NotFoundHandler())
	stranger, _ := apiServer(t, http.NotFoundHandler())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Host = listener.Addr().String()
	listener.Close()
	other := writeFile(t, strangersCA(t))
	for name, tc := range map[string]struct {
		config     proxy.Config
		retryAfter string // with which client-go repeats by itself
	}{
		"nobody listens":                  {proxy.Config{Upstream: gone, CAFile: ca}, "1"},
		"its certificate is another CA's": {proxy.Config{Upstream: stranger, CAFile: other}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := send(t, "PUT", start(t, tc.config)+"/api", "x", nil)
			var st struct{ Kind, Reason string }
			if err := json.Unmarshal([]byte(body), &st); err != nil || resp.StatusCode != 503 || st.Kind != "Status" || st.Reason != "ServiceUnavailable" {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if got := resp.Header.Get("Retry-After"); got != tc.retryAfter {
				t.Errorf("Retry-After: %q, want %q", got, tc.retryAfter)
			}
		})
	}
}

func TestCertificatesAreReadForEachConnection(t *testing.T) {
	upstream, ca := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
	right, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, strangersCA(t))
	at := start(t, proxy.Config{Upstream: upstream, CAFile: file})
	if resp, _ := send(t, "GET", at+"/api", "", nil); resp.StatusCode != 503 {
		t.Errorf("before: %d", resp.StatusCode)
	}
	if err := os.WriteFile(file, right, 0o600); err != nil {
		t.Fatal(err)
	}
	if resp, _ := send(t, "GET", at+"/api", "", nil); resp.StatusCode != 200 {
		t.Errorf("after: %d", resp.StatusCode)
	}
}

func TestNewRefuses(t *testing.T) {
	https := &url.URL{Scheme: "https", Host: "127.0.0.1:6443"}
	for _, tc := range []struct {
		name, want string
		change     func(*proxy.Config)
	}{
		{"all interfaces", "only a loopback address", func(c *proxy.Config) { c.Listen = ":8001" }},
		{"all interfaces by number", "only a loopback address", func(c *proxy.Config) { c.Listen = "0.0.0.0:8001" }},
		{"a name", "only a loopback address", func(c *proxy.Config) { c.Listen = "example.com:8001" }},
		{"no port", "missing port", func(c *proxy.Config) { c.Listen = "127.0.0.1" }},
		{"a port that is none", "from 0 to 65535", func(c *proxy.Config) { c.Listen = "127.0.0.1:http2" }},
		{"no upstream", "http or https URL", func(c *proxy.Config) { c.Upstream = nil }},
		{"another scheme", "http or https URL", func(c *proxy.Config) { c.Upstream = &url.URL{Scheme: "unix", Host: "x"} }},
		{"no service", "service is nil", func(c *proxy.Config) { c.Service = nil }},
		{"a CA file that is not there", "CA file", func(c *proxy.Config) { c.CAFile = "/does/not/exist" }},
		{"a CA file without a certificate", "no certificate", func(c *proxy.Config) { c.CAFile = writeFile(t, []byte("x")) }},
		{"a token file that is not there", "token file", func(c *proxy.Config) { c.TokenFile = "/does/not/exist" }},
		{"a token file with two words", "not one token", func(c *proxy.Config) { c.TokenFile = writeFile(t, []byte("a b")) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := proxy.Config{Listen: "127.0.0.1:0", Upstream: https, Service: finalizerd{}}
			tc.change(&c)
			if _, err := proxy.New(c); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	for _, listen := range []string{"127.0.0.1:0", "127.8.8.8:1", "[::1]:8001", "localhost:8001"} {
		if _, err := proxy.New(proxy.Config{Listen: listen, Upstream: https, Service: finalizerd{}}); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
}

func TestRunFailsWhenTheAddressIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p, err := proxy.New(proxy.Config{Listen: taken.Addr().String(), Upstream: &url.URL{Scheme: "http", Host: "x"}, Service: finalizerd{}})
	if err != nil {
		t.Fatal(err)
	}
	var op *net.OpError
	if err := p.Run(t.Context()); !errors.As(err, &op) {
		t.Errorf("Run: %v", err)
	}
}

// strangersCA returns a certificate that signed nothing.
func strangersCA(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
