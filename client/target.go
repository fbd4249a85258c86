package client

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
)

// Where finalizerd is to be found in a cluster, and what overrides it.
const (
	DefaultTarget    = "dns:///finalizerd.finalizerd.svc:2748"
	TargetEnv        = "FINALIZERD_TARGET"
	DefaultTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
)

// InCluster returns a client for use in a pod: the target is that of the
// environment variable FINALIZERD_TARGET, or DefaultTarget if it is empty, and
// calls carry the service-account token of the pod if it has one. opts come
// after these defaults. The pod's token, unlike a token file named in opts, is
// left out where New would refuse it: in plaintext to another machine.
func InCluster(opts ...Option) (*Client, error) {
	return fromEnvironment(os.Getenv, DefaultTokenFile, opts)
}

func fromEnvironment(getenv func(string) string, podToken string, opts []Option) (*Client, error) {
	target := getenv(TargetEnv)
	if target == "" {
		target = DefaultTarget
	}
	var asked settings
	for _, opt := range opts {
		opt(&asked)
	}
	if asked.tokenFile != "" || asked.insecure && !onThisMachine(target) {
		return New(target, opts...)
	}
	switch _, err := os.Stat(podToken); {
	case err == nil:
		return New(target, append([]Option{WithTokenFile(podToken)}, opts...)...)
	case errors.Is(err, fs.ErrNotExist):
		return New(target, opts...)
	default:
		return nil, fmt.Errorf("finalizerd client: look for the pod's token: %w", err)
	}
}

// onThisMachine reports whether what is sent to the gRPC target stays on this
// machine. In doubt it says no.
func onThisMachine(target string) bool {
	for _, scheme := range []string{"unix:", "unix-abstract:"} {
		if strings.HasPrefix(target, scheme) {
			return true
		}
	}
	endpoint := target
	for _, scheme := range []string{"dns:", "passthrough:"} {
		rest, found := strings.CutPrefix(target, scheme)
		if !found {
			continue
		}
		endpoint = rest
		if authority, ok := strings.CutPrefix(rest, "//"); ok {
			_, endpoint, _ = strings.Cut(authority, "/")
		}
		break
	}
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(endpoint, "["), "]")
	}
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
