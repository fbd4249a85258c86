package e2e

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The built proxy runs with the arguments of the manifests, but for the port and
// the place of the CA file, and programs with the kubeconfig of the manifests, but
// for the port and the place of the token. Argo Server makes a client without
// credentials of what some of its callers send: it must not become the account's.
func TestTheProxyServesWithTheSidecarsArguments(t *testing.T) {
	f := newFixture(t)
	c := readComponent(t)
	token, account := f.tokenOf("argo")
	for name := range sidecarOf {
		t.Run(name, func(t *testing.T) {
			sidecar := c.apply(t, name).Spec.Template.Spec.InitContainers[0]
			address := f.startProxy(t, sidecar.Args)
			for _, probe := range []*corev1.Probe{sidecar.StartupProbe, sidecar.LivenessProbe} {
				checkProbe(t, suite.binary(t), probe, sidecar.Args, address)
			}
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
			config := c.clientConfig(t, address, file)
			if user, err := f.whoIs(config); err != nil || user != account {
				t.Errorf("the program is %q, %v", user, err)
			}
			if user, err := f.whoIs(rest.AnonymousClientConfig(config)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:anonymous") {
				t.Errorf("without credentials: %q, %v", user, err)
			}
			wrong := rest.AnonymousClientConfig(config)
			wrong.BearerToken = "nobody's"
			if user, err := f.whoIs(wrong); !apierrors.IsUnauthorized(err) {
				t.Errorf("with credentials that are wrong: %q, %v", user, err)
			}
		})
	}
}

// clientConfig is what programs make of the component's kubeconfig, with the proxy
// and the token elsewhere.
func (c component) clientConfig(t *testing.T, address, token string) *rest.Config {
	t.Helper()
	kubeconfig := c.kubeconfig.DeepCopy()
	for _, cluster := range kubeconfig.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			t.Fatal(err)
		}
		server.Host = address
		cluster.Server = server.String()
	}
	for _, user := range kubeconfig.AuthInfos {
		user.TokenFile = token
	}
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// tokenOf makes a service account and returns a token of it, with the name that the
// API server has for who sends it.
func (f *fixture) tokenOf(name string) (token, user string) {
	f.t.Helper()
	accounts := f.plane.admin.CoreV1().ServiceAccounts(f.ns)
	if _, err := accounts.Create(f.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	request, err := accounts.CreateToken(f.ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return request.Status.Token, "system:serviceaccount:" + f.ns + ":" + name
}

// whoIs returns the user's name as the API server has it.
func (f *fixture) whoIs(config *rest.Config) (string, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(f.ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

// checkProbe runs the command of a probe, whose program is that of the image, against
// the proxy that listens at the address in the place of the manifest's.
func checkProbe(t *testing.T, program string, probe *corev1.Probe, args []string, address string) {
	t.Helper()
	if probe == nil || probe.Exec == nil {
		t.Fatalf("no probe that the kubelet can make of a loopback address: %+v", probe)
	}
	dockerfile, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	command := probe.Exec.Command
	if !strings.Contains(string(dockerfile), fmt.Sprintf("ENTRYPOINT [%q]", command[0])) {
		t.Errorf("the image has no %s", command[0])
	}
	if listen := command[len(command)-1]; !slices.Contains(args, listen) {
		t.Errorf("the probe asks %s, the proxy gets %v", listen, args)
	}
	for at, serves := range map[string]bool{address: true, "127.0.0.1:1": false} {
		out, err := exec.Command(program, append(slices.Clone(command[1:]), "--listen="+at)...).CombinedOutput()
		if (err == nil) != serves {
			t.Errorf("the probe of %s: %v, %s", at, err, out)
		}
	}
}

// startProxy runs the built proxy with these arguments as if in a pod, and returns
// its address.
func (f *fixture) startProxy(t *testing.T, args []string) string {
	t.Helper()
	dir := t.TempDir()
	ca, kubeconfig := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(ca, f.plane.config.CAData, 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(f.plane.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(suite.binary(t), append(slices.Clip(args),
		"--listen=127.0.0.1:0", "--certificate-authority="+ca, "--write-kubeconfig="+kubeconfig)...)
	command.Env = append(cleanEnvironment(), "KUBERNETES_SERVICE_HOST="+server.Hostname(), "KUBERNETES_SERVICE_PORT="+server.Port())
	var log strings.Builder
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-ended
	})
	f.eventually("the proxy listens", func() (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("it ended: %s", log.String())
		default:
		}
		_, err := os.Stat(kubeconfig)
		return err == nil, nil
	})
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(config.Host, "https://")
}
