package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// argoClientGo is the client-go of Argo Workflows v4.0.5.
const argoClientGo = "v0.33.1"

// The workflow controller and Argo Server import this package and must not have
// to move their Kubernetes version for it. This builds such a program: go needs
// its module cache or its proxy for client-go.
func TestImportingTheClientRaisesNoKubernetesVersion(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), `module example.com/argo

go 1.26.0

require (
	github.com/finalizerd/finalizerd/client v0.0.0
	k8s.io/client-go `+argoClientGo+`
)

replace (
	github.com/finalizerd/finalizerd/client => `+here+`
	github.com/finalizerd/finalizerd/gen/finalizer => `+filepath.Join(here, "..", "gen", "finalizer")+`
)
`)
	write(t, filepath.Join(dir, "main.go"), `package main

import (
	"fmt"

	"github.com/finalizerd/finalizerd/client"
	"k8s.io/client-go/util/flowcontrol"
)

func main() {
	c, err := client.InCluster()
	if err != nil {
		panic(err)
	}
	defer c.Close()
	fmt.Println(flowcontrol.NewFakeAlwaysRateLimiter().QPS())
}
`)
	goRun(t, dir, "mod", "tidy")
	for _, module := range []string{"k8s.io/client-go", "k8s.io/apimachinery", "k8s.io/api"} {
		if got, want := goRun(t, dir, "list", "-m", module), module+" "+argoClientGo; got != want {
			t.Errorf("go list -m %s: %s, want %s", module, got, want)
		}
	}
	goRun(t, dir, "build", "-o", os.DevNull, "./...")
}

// What the importer compiles is the standard library, gRPC, protobuf and the
// generated code: no Kubernetes, no gateway, nothing of the server.
func TestTheClientImportsOnlyGRPCAndProtobuf(t *testing.T) {
	allowed := regexp.MustCompile(`^(` + strings.Join([]string{
		`github\.com/finalizerd/finalizerd/client`,
		`github\.com/finalizerd/finalizerd/gen/finalizer/v1`,
		`google\.golang\.org/(grpc|protobuf|genproto/googleapis/rpc)(/.*)?`,
		`golang\.org/x/(net|sys|text)/.*`,
	}, "|") + `)$`)
	out := goRun(t, ".", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	for _, path := range strings.Fields(out) {
		if !allowed.MatchString(path) {
			t.Errorf("the client imports %s", path)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// goRun returns what the go command prints, trimmed.
func goRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return strings.TrimSpace(string(out))
}
