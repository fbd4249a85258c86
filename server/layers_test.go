package server

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	module  = "github.com/finalizerd/finalizerd"
	grpcMod = "google.golang.org/grpc"
	genPkg  = module + "/gen"
)

// The arrows of the design: which packages, by prefix, a package may not depend
// on, directly or through others.
var arrows = map[string][]string{
	"server/lane":      {module + "/", grpcMod, "k8s.io/", "sigs.k8s.io/", "golang.org/x/", "google.golang.org/"},
	"server/finalizer": {grpcMod, genPkg, "k8s.io/client-go", "k8s.io/api/", module + "/server/kube", module + "/server/api", module + "/client"},
	"server/kube":      {grpcMod, genPkg, module + "/server/api", module + "/server/lane/", module + "/client"},
	"server/reconcile": {grpcMod, genPkg, "k8s.io/client-go/rest", module + "/server/api", module + "/client"},
	"server/api":       {"k8s.io/client-go", "k8s.io/api/", "github.com/grpc-ecosystem", module + "/server/kube", module + "/server/reconcile", module + "/client"},
	"server/auth":      {module + "/server/finalizer", module + "/server/kube", module + "/server/lane"},
	"gen/openapi":      {module + "/server", "k8s.io/", grpcMod},
	"gen/gateway":      {module + "/server", "k8s.io/"},
}

// Nothing in the root module may depend on these.
var nowhere = []string{module + "/deploy", "k8s.io/kubernetes", "go.etcd.io/etcd", "k8s.io/apiserver"}

func TestLayers(t *testing.T) {
	deps := dependencies(t)
	for pkg, imports := range deps {
		refused := slices.Clone(nowhere)
		for prefix, more := range arrows {
			if within(pkg, module+"/"+prefix) {
				refused = append(refused, more...)
			}
		}
		for _, dep := range imports {
			if dep == pkg {
				continue
			}
			for _, no := range refused {
				if strings.HasPrefix(dep, no) && !within(dep, pkg) {
					t.Errorf("%s depends on %s, and may not on %s", unprefixed(pkg), dep, no)
				}
			}
		}
	}
	for _, must := range []string{"server", "server/api", "server/kube", "server/finalizer", "server/lane", "cmd/finalizerd"} {
		if deps[module+"/"+must] == nil {
			t.Errorf("go list did not tell of %s", must)
		}
	}
}

// The command serves, which is package server's, and calls, which is the
// client's; it looks behind neither.
func TestCommandImportsServerAndClientAlone(t *testing.T) {
	allowed := []string{module + "/server", module + "/client", module + "/client/transport", module + "/client/proxy", genPkg + "/finalizer/v1"}
	for _, dep := range golist(t, "-f", `{{join .Imports "\n"}}`, module+"/cmd/finalizerd") {
		if within(dep, module) && !slices.Contains(allowed, dep) {
			t.Errorf("cmd/finalizerd imports %s", dep)
		}
	}
}

// What importers of the client get is gRPC and protobuf.
func TestGeneratedClientPullsInNoGatewayAndNoKubernetes(t *testing.T) {
	out := golist(t, "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", genPkg+"/finalizer/v1")
	for _, dep := range out {
		allowed := []string{genPkg + "/finalizer", grpcMod, "google.golang.org/protobuf", "google.golang.org/genproto/googleapis/rpc", "golang.org/x/"}
		if !slices.ContainsFunc(allowed, func(p string) bool { return strings.HasPrefix(dep, p) }) {
			t.Errorf("the generated client depends on %s", dep)
		}
	}
}

func within(pkg, parent string) bool { return pkg == parent || strings.HasPrefix(pkg, parent+"/") }

func unprefixed(pkg string) string { return strings.TrimPrefix(pkg, module+"/") }

// dependencies returns all dependencies of each package of the root module.
func dependencies(t *testing.T) map[string][]string {
	t.Helper()
	deps := make(map[string][]string)
	for _, line := range golist(t, "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"/server/...", module+"/cmd/...", module+"/gen/...") {
		fields := strings.Fields(line)
		deps[fields[0]] = fields
	}
	return deps
}

func golist(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}
