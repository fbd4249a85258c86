package transport_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Whoever wraps his client with this package keeps his Kubernetes version.
func TestTransportAndProxyImportWhatTheClientImports(t *testing.T) {
	allowed := regexp.MustCompile(`^(` + strings.Join([]string{
		`github\.com/finalizerd/finalizerd/client(/transport|/proxy)?`,
		`github\.com/finalizerd/finalizerd/gen/finalizer/v1`,
		`google\.golang\.org/(grpc|protobuf|genproto/googleapis/rpc)(/.*)?`,
		`golang\.org/x/(net|sys|text)/.*`,
	}, "|") + `)$`)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".", "../proxy").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths := strings.Fields(string(out))
	if len(paths) < 10 {
		t.Errorf("go list named %d packages", len(paths))
	}
	for _, path := range paths {
		if !allowed.MatchString(path) {
			t.Errorf("transport or proxy imports %s", path)
		}
	}
}
