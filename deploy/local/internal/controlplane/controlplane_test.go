package controlplane

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
)

func TestWorkflowDefinitionIsReadableAndHasNoStatusSubresource(t *testing.T) {
	definition, err := workflowDefinition()
	if err != nil {
		t.Fatal(err)
	}
	if definition.Spec.Versions[0].Subresources != nil {
		t.Error("the Workflow kind has subresources; Argo's minimal one has none")
	}
}

func TestCredentialsOfEveryUserMatchTheUsersFile(t *testing.T) {
	c := &ControlPlane{dir: t.TempDir(), ports: ports{etcd: 1, apiServer: 2}}
	c.options.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.writeCredentials(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(c.file(usersFile))
	if err != nil {
		t.Fatal(err)
	}
	reader := csv.NewReader(strings.NewReader(string(content)))
	reader.FieldsPerRecord = -1
	rows, err := reader.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var identities [][]string
	for i, user := range users() {
		identities = append(identities, rows[i][1:])
		config, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigOf(user))
		if err != nil {
			t.Fatal(err)
		}
		if config.BearerToken != rows[i][0] || config.Host != "https://127.0.0.1:2" {
			t.Errorf("%s: the kubeconfig has another token or server than kube-apiserver", user)
		}
	}
	want := [][]string{
		{"admin", "admin", "system:masters"},
		{"system:serviceaccount:finalizerd:finalizerd", "finalizerd", "system:serviceaccounts,system:serviceaccounts:finalizerd"},
		{"limited", "limited"},
	}
	if diff := cmp.Diff(want, identities); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
	if err := checkKubeconfig(c.options.Kubeconfig); err != nil {
		t.Errorf("a kubeconfig that we wrote is refused: %v", err)
	}
}

func TestNewRefusesToOverwriteSomebodysKubeconfig(t *testing.T) {
	tests := map[string]struct {
		content string
		wantErr bool
	}{
		"one of another cluster":     {"apiVersion: v1\nkind: Config\nclusters: [{name: production, cluster: {server: https://example.com}}]\n", true},
		"ours merged with another":   {"apiVersion: v1\nkind: Config\nclusters: [{name: finalizerd-local, cluster: {}}, {name: production, cluster: {}}]\n", true},
		"a file that is no config":   {"hello", true},
		"an empty file":              {"", true},
		"one that this package made": {"apiVersion: v1\nkind: Config\nclusters: [{name: finalizerd-local, cluster: {}}]\n", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := New(Options{Kubeconfig: path})
			if (err != nil) != test.wantErr {
				t.Errorf("New() = %v, want an error: %v", err, test.wantErr)
			}
		})
	}
}

func TestChildrenTakeTheSameFlagsFromAssetsAndFromThisProgram(t *testing.T) {
	builtIn := &ControlPlane{dir: "/d", options: Options{Executable: "/bin/local", AuditLog: "/audit"}}
	assets := &ControlPlane{dir: "/d", options: Options{Assets: "/assets", AuditLog: "/audit"}}
	for name, specs := range map[string][2][]string{
		"etcd":           {append([]string{builtIn.etcdSpec().Path}, builtIn.etcdSpec().Args...), append([]string{assets.etcdSpec().Path}, assets.etcdSpec().Args...)},
		"kube-apiserver": {append([]string{builtIn.apiServerSpec().Path}, builtIn.apiServerSpec().Args...), append([]string{assets.apiServerSpec().Path}, assets.apiServerSpec().Args...)},
	} {
		t.Run(name, func(t *testing.T) {
			if !slices.Equal(specs[0][:2], []string{"/bin/local", name}) || specs[1][0] != "/assets/"+name {
				t.Errorf("commands are %v and %v", specs[0][:2], specs[1][0])
			}
			if diff := cmp.Diff(specs[0][2:], specs[1][1:]); diff != "" {
				t.Errorf("flags (-built in +assets):\n%s", diff)
			}
		})
	}
}
