package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestWrongUseOfTheProxyIsOneSentence(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		code int
		want string
	}{
		{"an argument", nil, []string{"x"}, 2, "unknown command"},
		{"outside of a cluster", nil, nil, 2, "give --upstream"},
		{"no URL", nil, []string{"--upstream=127.0.0.1:6443"}, 2, "--upstream must be a URL"},
		{"a URL with a password", nil, []string{"--upstream=https://a:b@x"}, 2, "--upstream must be a URL"},
		{"all interfaces", nil, []string{"--upstream=http://x", "--listen=:8001"}, 2, "only a loopback address"},
		{"a wrong choice", nil, []string{"--upstream=http://x", "--when-down=wait"}, 2, "--when-down must be fail or bypass"},
		{"a wrong choice in the environment", []string{"FINALIZERD_WHEN_DOWN=wait"}, []string{"--upstream=http://x"}, 2, "--when-down must be fail or bypass"},
		{"no finalizer", nil, []string{"--upstream=http://x", "--finalizer="}, 2, "--finalizer must not be empty"},
		{"no time", nil, []string{"--upstream=http://x", "--call-timeout=0s"}, 2, "--call-timeout must be at least 1ms"},
		{"a wrong log level", nil, []string{"--upstream=http://x", "--log-level=loud"}, 2, "--log-level must be"},
		{"a CA file that is not there", nil, []string{"--upstream=https://x", "--certificate-authority=/does/not/exist"}, 2, "CA file"},
		{"a token file that is not there", nil, []string{"--upstream=http://x", "--account-token-file=/does/not/exist"}, 2, "token file"},
		{"a token to another machine in plaintext", nil, []string{"--upstream=http://x", "--target=10.0.0.1:2748", "--insecure", "--token-file=x"}, 2, "plaintext"},
		{"a port in use", nil, []string{"--upstream=http://x", "--listen=" + taken.Addr().String()}, 1, "choose another address with --listen"},
		{"a kubeconfig that cannot be written", nil, []string{"--upstream=http://x", "--listen=127.0.0.1:0", "--write-kubeconfig=/does/not/exist", "--shutdown-timeout=1ms"}, 1, "--write-kubeconfig"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			args := append([]string{"proxy"}, tc.args...)
			if !strings.Contains(strings.Join(args, " "), "--log-level") {
				args = append(args, "--log-level=error")
			}
			code, stdout, stderr := run(t, ctx, tc.env, args...)
			if code != tc.code || !strings.Contains(stderr, tc.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
				t.Errorf("exit %d, want %d and %q in one line:\n%s%s", code, tc.code, tc.want, stderr, stdout)
			}
		})
	}
}

func TestTheProxyFindsTheClusterOfItsPod(t *testing.T) {
	f := &proxyFlags{kubernetesHost: "fd00::1", kubernetesPort: "443"}
	u, ca, err := f.destination()
	if err != nil || u.String() != "https://[fd00::1]:443" || ca != serviceAccountDir+"ca.crt" {
		t.Errorf("%v %s %v", u, ca, err)
	}
	f.ca = "other.crt"
	if _, ca, err = f.destination(); err != nil || ca != "other.crt" {
		t.Errorf("%s %v", ca, err)
	}
	f.upstream, f.ca = "https://api.example:6443/prefix", ""
	if u, ca, err = f.destination(); err != nil || u.Path != "/prefix" || ca != "" {
		t.Errorf("%v %s %v", u, ca, err)
	}
}

func TestTheProxyWritesAKubeconfigThatWorks(t *testing.T) {
	seen := make(chan string, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		_, _ = io.WriteString(w, `{"major":"1"}`)
	}))
	defer upstream.Close()
	for _, tc := range []struct {
		name            string
		args            []string
		user, anonymous string // Authorization of the kubeconfig's user, and of nobody
	}{
		{"lending nothing", nil, "", ""},
		{"lending a token", []string{"--account-token-file=token"}, "Bearer secret", "Bearer secret"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			file := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile("token", []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			runProxy(t, append(tc.args, "--upstream="+upstream.URL, "--write-kubeconfig="+file, "--kubeconfig-namespace=argo")...)
			config := awaitKubeconfig(t, file)
			cfg, err := config.ClientConfig()
			if err != nil {
				t.Fatal(err)
			}
			if namespace, _, err := config.Namespace(); err != nil || namespace != "argo" {
				t.Errorf("namespace %q %v", namespace, err)
			}
			if content, err := os.ReadFile(file); err != nil || strings.Contains(string(content), "secret") {
				t.Errorf("the token is in the file, or %v", err)
			}
			if cfg.Insecure {
				t.Error("clients do not check the proxy's certificate")
			}
			for path, want := range map[string]string{
				"/finalizerd-proxy/healthz": "ok\n",
				"/finalizerd-proxy/metrics": `finalizerd_proxy_requests_total{action="bypassed"} 0`,
			} {
				if body := getAs(t, cfg, path); !strings.Contains(body, want) {
					t.Errorf("%s: %s", path, body)
				}
			}
			for who, as := range map[string]struct {
				config *rest.Config
				want   string
			}{"the user": {cfg, tc.user}, "nobody": {rest.AnonymousClientConfig(cfg), tc.anonymous}} {
				if body := getAs(t, as.config, "/version"); body != `{"major":"1"}` {
					t.Errorf("%s got %s", who, body)
				}
				if got := <-seen; got != as.want {
					t.Errorf("%s: Authorization: %q, want %q", who, got, as.want)
				}
			}
		})
	}
}

// In a pod too: what Argo Server leaves anonymous must not become its own account.
func TestNoTokenIsLentUnlessItIsAskedFor(t *testing.T) {
	if usual := newProxy(nil).Flags().Lookup("account-token-file").DefValue; usual != "" {
		t.Errorf("%s is lent by default", usual)
	}
}

// runProxy runs the proxy until the test ends.
func runProxy(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		code, _, stderr := run(t, ctx, nil, append([]string{"proxy", "--listen=127.0.0.1:0", "--shutdown-timeout=1s"}, args...)...)
		if code != 0 || !strings.Contains(stderr, `"msg":"stopped"`) {
			ended <- fmt.Errorf("exit %d: %s", code, stderr)
		}
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// getAs returns the body of the answer.
func getAs(t *testing.T, config *rest.Config, path string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(config.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// awaitKubeconfig returns the kubeconfig once it is there.
func awaitKubeconfig(t *testing.T, file string) clientcmd.ClientConfig {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		<-tick.C
		if _, err := os.Stat(file); err == nil {
			rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
			return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
		}
	}
	t.Fatal("no kubeconfig was written")
	return nil
}

func TestTheProxysHelpTeachesAndNamesEachVariableOnce(t *testing.T) {
	code, stdout, _ := run(t, t.Context(), nil, "proxy", "--help")
	if code != 0 {
		t.Fatalf("exit %d", code)
	}
	for _, want := range []string{
		"409 Conflict", "initContainers:", "KUBECONFIG=proxied.yaml kubectl get pods", "[FINALIZERD_LISTEN]", "[FINALIZERD_UPSTREAM]",
		"[FINALIZERD_CERTIFICATE_AUTHORITY]", "[FINALIZERD_TARGET]", "[FINALIZERD_WHEN_DOWN]", "[FINALIZERD_ADD_FINALIZER]",
		"[FINALIZERD_WRITE_KUBECONFIG]", "[FINALIZERD_ACCOUNT_TOKEN_FILE]", "[FINALIZERD_TOKEN_FILE]", "[FINALIZERD_CA_FILE]",
	} {
		if strings.Count(stdout, want) != 1 {
			t.Errorf("%q stands %d times in the help", want, strings.Count(stdout, want))
		}
	}
}
