package proxy_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/finalizerd/finalizerd/client/proxy"
)

func TestCredentialsAreLentOnlyWhenAskedAndOnlyToThoseWithout(t *testing.T) {
	got := make(chan http.Header, 1)
	upstream, ca := apiServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	asSidecar := start(t, proxy.Config{Upstream: upstream, CAFile: ca})
	lending := start(t, proxy.Config{Upstream: upstream, CAFile: ca, TokenFile: writeFile(t, []byte("of-the-account\n"))})
	const lent = "Bearer of-the-account"
	for _, tc := range []struct {
		name                        string
		header                      http.Header
		atTheSidecar, whereItIsLent string // Authorization as the API server gets it
	}{
		{"none: anonymous", http.Header{}, "", lent},
		{"a token", http.Header{"Authorization": {"Bearer own"}}, "Bearer own", "Bearer own"},
		{"a user without name and password", http.Header{"Authorization": {"Basic Og=="}}, "Basic Og==", "Basic Og=="},
		{"a header without anything in it", http.Header{"Authorization": {""}}, "", ""},
		{"a header for this hop alone", http.Header{"Authorization": {"Bearer own"}, "Connection": {"Authorization"}}, "", ""},
		{"the protocol of a WebSocket", http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
			"Sec-Websocket-Protocol": {"v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.b3du"},
		}, "", ""},
		{"a WebSocket without", http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"v5.channel.k8s.io"},
		}, "", lent},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for at, want := range map[string]string{asSidecar: tc.atTheSidecar, lending: tc.whereItIsLent} {
				sendHeader(t, "GET", at+"/api/v1/namespaces/argo/pods/a/exec?command=sh", tc.header.Clone())
				if h := <-got; h.Get("Authorization") != want {
					t.Errorf("lending %t: Authorization: %q, want %q", at == lending, h["Authorization"], want)
				}
			}
		})
	}
}

func TestWebPagesFromElsewhereAreRefused(t *testing.T) {
	var got atomic.Int64
	upstream, ca := apiServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Add(1) }))
	at := start(t, proxy.Config{Upstream: upstream, CAFile: ca, TokenFile: writeFile(t, []byte("of-the-account"))})
	for _, tc := range []struct {
		name    string
		origins []string
		code    int
	}{
		{"no page", nil, 200},
		{"one of this machine", []string{"http://localhost:3000"}, 200},
		{"one of this machine by number", []string{"https://[::1]:8001"}, 200},
		{"another", []string{"https://evil.example"}, 403},
		{"another that begins like ours", []string{"http://localhost.evil.example"}, 403},
		{"one without an origin", []string{"null"}, 403},
		{"an origin that is none", []string{"%"}, 403},
		{"two", []string{"http://localhost", "https://evil.example"}, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for path, header := range map[string]http.Header{
				"/api/v1/namespaces/argo/pods": {"Content-Type": {"text/plain"}},
				"/api/v1/namespaces/argo/pods/a/exec": {
					"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Fetch-Site": {"cross-site"},
				},
				proxy.HealthPath: {},
			} {
				header["Origin"] = tc.origins
				if resp := sendHeader(t, "POST", at+path, header); resp.StatusCode != tc.code {
					t.Errorf("%s: %d, want %d", path, resp.StatusCode, tc.code)
				}
			}
			if reached := got.Swap(0); (reached > 0) != (tc.code == 200) {
				t.Errorf("%d requests reached the API server", reached)
			}
		})
	}
}

// sendHeader sends a request without a body.
func sendHeader(t *testing.T, method, at string, header http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, at, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := caller(t).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp
}
