package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestProxyCheckTellsWhetherTheProxyServes(t *testing.T) {
	answering := func(status int, body string) string {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/finalizerd-proxy/healthz" {
				status = http.StatusNotFound
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }))
	defer plain.Close()
	serves := answering(200, "ok\n")
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		code int
		want string // in the one line of an error
	}{
		{"it serves", nil, []string{"--listen=" + serves}, 0, ""},
		{"as the proxy's environment says", []string{"FINALIZERD_LISTEN=" + serves, "FINALIZERD_WHEN_DOWN=fail"}, nil, 0, ""},
		{"past a proxy of the environment", []string{"HTTP_PROXY=http://127.0.0.1:1"}, []string{"--listen=" + serves}, 0, ""},
		{"nothing listens", nil, []string{"--listen=" + closed.Addr().String()}, 1, "no proxy serves at"},
		{"it does not answer", nil, []string{"--timeout=20ms", "--listen=" + silent.Addr().String()}, 1, "does not answer in time"},
		{"another program's 404", nil, []string{"--listen=" + answering(404, "ok\n")}, 1, "is not finalizerd's proxy: it answers 404"},
		{"another program's 200", nil, []string{"--listen=" + answering(200, "<html>")}, 1, "is not finalizerd's proxy"},
		{"another program without TLS", nil, []string{"--listen=" + plain.Listener.Addr().String()}, 1, "no proxy serves at"},
		{"a free port is no address", nil, []string{"--listen=127.0.0.1:0"}, 2, "--listen must be"},
		{"no port", nil, []string{"--listen=127.0.0.1"}, 2, "--listen must be"},
		{"no host that can be", nil, []string{"--listen=a b:1"}, 2, "--listen must be"},
		{"no time", nil, []string{"--timeout=0s"}, 2, "--timeout must be"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := run(t, t.Context(), tc.env, append([]string{"proxy", "check"}, tc.args...)...)
			if code != tc.code || stdout != "" || (stderr == "") != (tc.want == "") || !strings.Contains(stderr, tc.want) || strings.Count(stderr, "\n") > 1 {
				t.Errorf("exit %d, want %d and %q:\n%s%s", code, tc.code, tc.want, stderr, stdout)
			}
		})
	}
}
