package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func run(t *testing.T, ctx context.Context, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(ctx, args, environ, &out, &errs)
	return code, out.String(), errs.String()
}

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"k","cluster":{"server":"` + server +
		`"}}],"users":[{"name":"u","user":{}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// An API server that knows its version and forbids all else.
func forbidding(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/version" {
			_, _ = w.Write([]byte(`{"major":"1","minor":"37"}`))
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"forbidden"}`))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestWrongUseAndFailuresAreOneSentence(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	closed := "http://127.0.0.1:1" // nothing listens on tcpmux
	good := kubeconfig(t, forbidding(t))
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		code int
		want string
	}{
		{"an unknown command", nil, []string{"nope"}, 2, "unknown command"},
		{"an unknown flag", nil, []string{"serve", "--nope"}, 2, "--nope"},
		{"an argument to serve", nil, []string{"serve", "x"}, 2, "unknown command"},
		{"a wrong duration", nil, []string{"serve", "--min-age", "soon"}, 2, "--min-age"},
		{"a negative duration", nil, []string{"serve", "--min-age=-1s"}, 2, "--min-age must be at least 0s"},
		{"too short a memory", nil, []string{"serve", "--request-memory=1m"}, 2, "--request-memory must be at least 10m"},
		{"a wrong number", nil, []string{"serve", "--max-waiters=many"}, 2, "--max-waiters"},
		{"no waiters", nil, []string{"serve", "--max-waiters=0"}, 2, "--max-waiters must be at least 1"},
		{"no writes", nil, []string{"serve", "--max-writes-in-flight=1"}, 2, "--max-writes-in-flight must be at least 2"},
		{"a finalizer without a domain", nil, []string{"serve", "--finalizer=status"}, 2, "--finalizer must be a qualified name"},
		{"an instance id that is no label", nil, []string{"serve", "--instanceid=a b"}, 2, "--instanceid must be a label value"},
		{"a wrong log format", nil, []string{"serve", "--log-format=xml"}, 2, "--log-format must be json or text"},
		{"a wrong log level", nil, []string{"serve", "--log-level=loud"}, 2, "--log-level must be"},
		{"a wrong mode", nil, []string{"serve", "--reconcile=maybe"}, 2, "--reconcile must be off, report or on"},
		{"a wrong choice for unowned pods", nil, []string{"serve", "--unowned=delete"}, 2, "--unowned must be report or release"},
		{"a namespace that is none", nil, []string{"serve", "--namespaces=argo,Nope"}, 2, "--namespaces must be a comma-separated list of namespaces, got \"Nope\""},
		{"an empty namespace in the list", nil, []string{"serve", "--namespaces=argo,"}, 2, "--namespaces must be"},
		{"a namespace that is none in the environment", []string{"FINALIZERD_NAMESPACES=a/b"}, []string{"serve"}, 2, "--namespaces must be"},
		{"no workers", nil, []string{"serve", "--reconcile-workers=0"}, 2, "--reconcile-workers must be at least 1"},
		{"a negative hold", nil, []string{"serve", "--max-hold=-1s"}, 2, "--max-hold must be at least 0s"},
		{"a blink of a lost node", nil, []string{"serve", "--node-lost-after=1ms"}, 2, "--node-lost-after must be at least 1s"},
		{"reads without a pause", nil, []string{"serve", "--workflow-read-interval=0"}, 2, "--workflow-read-interval must be at least 100ms"},
		{"a resync all the time", nil, []string{"serve", "--resync=1s"}, 2, "--resync must be at least 10s"},
		{"all interfaces", nil, []string{"serve", "--grpc-address=:2748"}, 2, "--danger-listen-without-authentication"},
		{"an address without a port", nil, []string{"serve", "--http-address=127.0.0.1"}, 2, "--http-address"},
		{"a wrong value in the environment", []string{"FINALIZERD_MIN_AGE=soon"}, []string{"serve"}, 2, "FINALIZERD_MIN_AGE"},
		{"an unknown variable", []string{"FINALIZERD_MINAGE=1s"}, []string{"serve"}, 2, "FINALIZERD_MINAGE belongs to no flag"},
		{"a context without a kubeconfig", nil, []string{"serve", "--context=c"}, 2, "--context c needs"},
		{"no cluster at all", nil, []string{"serve"}, 1, "give --kubeconfig"},
		{"a kubeconfig that is not there", nil, []string{"serve", "--kubeconfig=/does/not/exist"}, 1, "--kubeconfig"},
		{"a context that is not there", nil, []string{"serve", "--kubeconfig=" + good, "--context=nope"}, 1, "nope"},
		{"an unreachable cluster", []string{"KUBECONFIG=" + kubeconfig(t, closed)}, []string{"serve"}, 1, "start the API server"},
		{"a port in use", nil, []string{"serve", "--kubeconfig=" + good, "--grpc-address=" + taken.Addr().String()}, 1, "choose another with --grpc-address"},
		{"a wrong output of pods", nil, []string{"pods", "-o", "xml"}, 2, "--output must be table or json"},
		{"a workflow without a namespace", nil, []string{"pods", "--workflow=w"}, 2, "--workflow needs --namespace"},
		{"an unknown reason", nil, []string{"release-all", "--reason=BORED"}, 2, "--reason must be one of ASSERTED, ATTEMPT_SUPERSEDED"},
		{"contradicting transports", nil, []string{"pods", "--insecure", "--tls"}, 2, "--insecure excludes"},
		{"a wrong transport in the environment", []string{"FINALIZERD_TLS=maybe"}, []string{"pods"}, 2, "FINALIZERD_TLS"},
		{"a token that must not leave in plaintext", nil, []string{"release-all", "--insecure", "--target=10.0.0.1:2748", "--token-file=main.go"}, 2, "must not go"},
		{"a service that is not there", nil, []string{"pods", "--target=127.0.0.1:1"}, 1, "correct --target"},
		{"a wrong output of version", nil, []string{"version", "-o", "xml"}, 2, "--output must be text or json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			code, stdout, stderr := run(t, ctx, tc.env, append(tc.args, quiet(tc.args)...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit %d, want %d and %q in:\n%s", code, tc.code, tc.want, stderr)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "finalizerd: ") || stdout != "" {
				t.Errorf("not one sentence on standard error: %q, and %q", stderr, stdout)
			}
		})
	}
}

// quiet keeps log lines out of what a failure prints.
func quiet(args []string) []string {
	if args[0] != "serve" || len(args) > 1 && strings.HasPrefix(args[1], "--log") {
		return nil
	}
	return []string{"--log-level=error"}
}

func TestHelpNamesEachVariable(t *testing.T) {
	code, stdout, _ := run(t, t.Context(), nil, "serve", "--help")
	if code != 0 {
		t.Fatalf("exit %d", code)
	}
	for _, want := range []string{
		"FINALIZERD_KUBECONFIG", "FINALIZERD_CONTEXT", "FINALIZERD_GRPC_ADDRESS", "FINALIZERD_HTTP_ADDRESS",
		"FINALIZERD_DANGER_LISTEN_WITHOUT_AUTHENTICATION", "FINALIZERD_FINALIZER", "FINALIZERD_INSTANCEID", "FINALIZERD_MAX_WAITERS",
		"FINALIZERD_MAX_WRITES_IN_FLIGHT", "FINALIZERD_DEFAULT_DEADLINE", "FINALIZERD_SHUTDOWN_TIMEOUT", "FINALIZERD_REQUEST_MEMORY",
		"FINALIZERD_LOG_FORMAT", "FINALIZERD_LOG_LEVEL", "FINALIZERD_MIN_AGE", "FINALIZERD_CLOCK_TOLERANCE", "FINALIZERD_DRAIN_DELAY",
		"FINALIZERD_NAMESPACES", "FINALIZERD_RECONCILE", "FINALIZERD_CAPTURE_GRACE", "FINALIZERD_HIDDEN_AFTER", "FINALIZERD_NODE_LOST_AFTER",
		"FINALIZERD_MAX_HOLD", "FINALIZERD_UNOWNED", "FINALIZERD_RECONCILE_WORKERS", "FINALIZERD_WORKFLOW_READ_INTERVAL", "FINALIZERD_RESYNC",
	} {
		if !strings.Contains(stdout, "["+want+"]") {
			t.Errorf("the help lacks %s", want)
		}
	}
	if strings.Contains(stdout, "[FINALIZERD_HELP]") {
		t.Error("help is no variable")
	}
}

func TestFlagBeatsVariableBeatsDefault(t *testing.T) {
	env := []string{
		"FINALIZERD_MIN_AGE=7s", "FINALIZERD_LOG_LEVEL=debug", "FINALIZERD_INSTANCEID=", "FINALIZERD_NAMESPACES=argo,team-a",
		// Set by Kubernetes beside a Service named finalizerd.
		"FINALIZERD_SERVICE_HOST=10.0.0.1", "FINALIZERD_SERVICE_PORT=2748", "FINALIZERD_SERVICE_PORT_GRPC=2748",
		"FINALIZERD_PORT=tcp://10.0.0.1:2748", "FINALIZERD_PORT_2748_TCP=tcp://10.0.0.1:2748", "FINALIZERD_PORT_2748_TCP_ADDR=10.0.0.1",
		"FINALIZERD_METRICS_SERVICE_HOST=10.0.0.2",
	}
	cmd := newServe(env)
	if err := cmd.ParseFlags([]string{"--log-level=warn"}); err != nil {
		t.Fatal(err)
	}
	if err := applyEnv(cmd.Flags(), env); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"log-level": "warn", "min-age": "7s", "clock-tolerance": "5s", "instanceid": "",
		"reconcile": "on", "capture-grace": "10s", "hidden-after": "15s", "node-lost-after": "5m0s", "max-hold": "0s", "unowned": "report",
		"workflow-read-interval": "3s", "resync": "10m0s", "namespaces": "[argo,team-a]"} {
		if got := cmd.Flags().Lookup(flag).Value.String(); got != want {
			t.Errorf("--%s is %s, want %s", flag, got, want)
		}
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := run(t, t.Context(), nil, "version")
	if code != 0 || !strings.HasPrefix(stdout, "finalizerd ") || !strings.Contains(stdout, "go1.") {
		t.Errorf("exit %d, %q", code, stdout)
	}
	code, stdout, _ = run(t, t.Context(), nil, "version", "-o", "json")
	var v version
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || code != 0 || v.Go == "" {
		t.Errorf("exit %d, %q, %v", code, stdout, err)
	}
}
