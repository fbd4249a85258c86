package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	remotecommandconsts "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/remotecommand"
	kubeletexec "k8s.io/kubelet/pkg/cri/streaming/remotecommand"
)

const (
	execIdle     = time.Minute
	execCreation = 10 * time.Second
)

// serveExec serves what the API server asks of a kubelet when somebody execs into a pod. ended carries why it ended.
func (k *Kubelet) serveExec(ctx context.Context) (port int32, ended <-chan error, err error) {
	certificate, err := selfSigned()
	if err != nil {
		return 0, nil, fmt.Errorf("kubelet: certificate: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, fmt.Errorf("kubelet: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := kubeletexec.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		name := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod")}
		kubeletexec.ServeExec(w, r, executor{k, name}, name.Name, "", r.PathValue("container"), r.URL.Query()["command"], options,
			execIdle, execCreation, remotecommandconsts.SupportedStreamingProtocols)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: execCreation,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}}, // SPDY upgrades HTTP/1.1
	}
	result := make(chan error, 1)
	go func() { result <- server.ServeTLS(listener, "", "") }()
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	return int32(listener.Addr().(*net.TCPAddr).Port), result, nil
}

// executor takes every command for Argo's "kill": its one number is the signal.
type executor struct {
	kubelet *Kubelet
	pod     types.NamespacedName
}

func (e executor) ExecInContainer(_ context.Context, _ string, _ types.UID, _ string, command []string, _ io.Reader, _, _ io.WriteCloser,
	_ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	for _, word := range command {
		number, err := strconv.ParseInt(word, 10, 32)
		if err != nil {
			continue
		}
		e.kubelet.mu.Lock()
		defer e.kubelet.mu.Unlock()
		for _, known := range e.kubelet.lives {
			if known.name == e.pod {
				known.signal(int32(number))
			}
		}
		return nil
	}
	return errors.New("no signal in the command")
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
