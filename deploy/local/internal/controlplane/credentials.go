package controlplane

import (
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// User is one of the people and programs whose kubeconfigs lie in the control plane's folder.
type User string

// Admin may do everything. Finalizerd is the service account system:serviceaccount:finalizerd:finalizerd, with the rights
// that RBAC objects give it: none at first. Limited may do nothing but ask who it is and which APIs there are.
const (
	Admin      User = "admin"
	Finalizerd User = "finalizerd"
	Limited    User = "limited"
)

func users() []User { return []User{Admin, Finalizerd, Limited} }

func (u User) kubeconfigName() string {
	if u == Admin {
		return "kubeconfig"
	}
	return string(u) + ".kubeconfig"
}

// identity is what kube-apiserver takes the user for.
func (u User) identity() (name string, groups []string) {
	switch u {
	case Admin:
		return "admin", []string{"system:masters"}
	case Finalizerd:
		return "system:serviceaccount:finalizerd:finalizerd", []string{"system:serviceaccounts", "system:serviceaccounts:finalizerd"}
	default:
		return string(u), nil
	}
}

const (
	servingCertFile = "apiserver.crt"
	servingKeyFile  = "apiserver.key"
	tokenKeyFile    = "service-account.key"
	usersFile       = "users.csv"
	auditPolicyFile = "audit-policy.yaml"
	clusterName     = "finalizerd-local"
)

//go:embed audit-policy.yaml
var auditPolicy []byte

// writeCredentials makes new keys and tokens, and the files for kube-apiserver and for its users.
func (c *ControlPlane) writeCredentials() error {
	// The bundle holds the serving certificate and the one that signed it, so it serves clients as the authority too.
	bundle, servingKey, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		return fmt.Errorf("make the serving certificate: %w", err)
	}
	tokenKey, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return fmt.Errorf("make the service account key: %w", err)
	}
	var tokens strings.Builder
	for _, user := range users() {
		token := rand.Text()
		name, groups := user.identity()
		fmt.Fprintf(&tokens, "%s,%s,%s", token, name, user)
		if len(groups) > 0 {
			fmt.Fprintf(&tokens, ",%q", strings.Join(groups, ","))
		}
		tokens.WriteByte('\n')
		if err := clientcmd.WriteToFile(c.kubeconfig(user, token, bundle), c.KubeconfigOf(user)); err != nil {
			return fmt.Errorf("write the kubeconfig of %s: %w", user, err)
		}
		if user == Admin && c.options.Kubeconfig != "" {
			if err := clientcmd.WriteToFile(c.kubeconfig(user, token, bundle), c.options.Kubeconfig); err != nil {
				return fmt.Errorf("write the kubeconfig: %w", err)
			}
		}
	}
	for name, content := range map[string][]byte{
		servingCertFile: bundle,
		servingKeyFile:  servingKey,
		tokenKeyFile:    tokenKey,
		usersFile:       []byte(tokens.String()),
		auditPolicyFile: auditPolicy,
	} {
		if err := os.WriteFile(c.file(name), content, 0o600); err != nil {
			return fmt.Errorf("write credentials: %w", err)
		}
	}
	return nil
}

func (c *ControlPlane) kubeconfig(user User, token string, authority []byte) clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters[clusterName] = &clientcmdapi.Cluster{
		Server:                   fmt.Sprintf("https://127.0.0.1:%d", c.ports.apiServer),
		CertificateAuthorityData: authority,
	}
	config.AuthInfos[string(user)] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[clusterName] = &clientcmdapi.Context{Cluster: clusterName, AuthInfo: string(user), Namespace: "default"}
	config.CurrentContext = clusterName
	return *config
}

// checkKubeconfig refuses a file that is somebody's own: writing it would lose the way to another cluster.
func checkKubeconfig(path string) error {
	if path == "" {
		return nil
	}
	config, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kubeconfig %s exists and is not ours to overwrite: %w", path, err)
	}
	if _, ours := config.Clusters[clusterName]; !ours || len(config.Clusters) != 1 {
		return fmt.Errorf("kubeconfig %s exists and is not ours to overwrite: give the name of a file that does not exist", path)
	}
	return nil
}
