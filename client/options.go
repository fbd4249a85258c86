package client

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// DefaultTimeout is the deadline of a unary call whose context has none.
const DefaultTimeout = 30 * time.Second

const defaultUserAgent = "finalizerd-client"

// maxAnswer bounds one answer, in bytes. gRPC's own 4 MiB is too little for the
// snapshot of a workflow of 10,000 pods.
const maxAnswer = 64 << 20

// serviceConfig is the client's part of the contract "only UNAVAILABLE is safe
// to retry blindly".
//
// round_robin: behind a headless Service the attempt after an UNAVAILABLE lands
// on another replica, whose connection is open already; behind a cluster IP
// there is one address and it is the same as pick_first.
//
// No waitForReady: it would turn "nobody listens" into DEADLINE_EXCEEDED, of
// which the caller cannot know whether the work was done. The retry policy
// covers refused connections as well.
const serviceConfig = `{
  "loadBalancingConfig": [{"round_robin": {}}],
  "methodConfig": [{
    "name": [{"service": "finalizer.v1.FinalizerService"}],
    "retryPolicy": {
      "maxAttempts": 4,
      "initialBackoff": "0.1s",
      "maxBackoff": "2s",
      "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE"]
    }
  }]
}`

// Option changes a default of New. Of two that set the same thing the later
// wins.
type Option func(*settings)

type settings struct {
	tls            bool
	caFile         string
	insecure       bool
	insecureRemote bool
	tokenFile      string
	userAgent      string
	timeout        time.Duration
	dial           []grpc.DialOption
}

// WithTLS checks the server against the certificates in a PEM file, or against
// the roots of the system if caFile is empty, which is also the default. The
// file is read again for each connection, so a rotated CA is taken up without a
// restart. The server's name is the host of the target.
func WithTLS(caFile string) Option {
	return func(s *settings) { s.tls, s.caFile = true, caFile }
}

// WithInsecure speaks plaintext, to this machine only: New refuses a target that
// is neither a loopback address, "localhost" nor a unix socket. What leaves the
// machine in plaintext can be read and changed on the way, and a call that
// releases a pod is worth changing.
func WithInsecure() Option {
	return func(s *settings) { s.insecure = true }
}

// WithInsecureRemote speaks plaintext to any target, for networks that protect
// traffic themselves (a mesh, WireGuard). New refuses it together with
// WithTokenFile unless the target is on this machine: a service-account token
// read on the wire is good for every API that accepts it.
func WithInsecureRemote() Option {
	return func(s *settings) { s.insecure, s.insecureRemote = true, true }
}

// WithTokenFile sends the token in the file, trimmed, as a bearer token with
// each call. The file is read by New, which fails when it cannot be, then again
// when it has changed and at least each minute, as projected service-account
// tokens rotate. When it cannot be read later, calls fail with UNAUTHENTICATED;
// a stale token is never sent instead.
func WithTokenFile(path string) Option {
	return func(s *settings) { s.tokenFile = path }
}

// WithUserAgent names the caller, for example "argo-server/v4.0.5", in the
// service's logs.
func WithUserAgent(agent string) Option {
	return func(s *settings) { s.userAgent = agent }
}

// WithDefaultTimeout replaces DefaultTimeout. Zero or less: calls without a
// deadline have none.
func WithDefaultTimeout(d time.Duration) Option {
	return func(s *settings) { s.timeout = d }
}

// WithDialOptions passes options to grpc.NewClient, after the client's own, so
// that they win. Transport credentials set here are not seen by the check that
// WithInsecure describes; a token is still never sent over them in plaintext to
// another machine.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, opts...) }
}

func (s *settings) dialOptions(target string) ([]grpc.DialOption, error) {
	local := onThisMachine(target)
	transport, err := s.transport(target, local)
	if err != nil {
		return nil, err
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithUserAgent(s.userAgent),
		grpc.WithDefaultServiceConfig(serviceConfig),
		// A TXT record in DNS must not be able to change what is retried.
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		// Finds a dead peer before the next call does. The server allows a ping
		// each 10 s, also without a call.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithChainUnaryInterceptor(deadline(s.timeout), requestID),
	}
	if s.tokenFile != "" {
		token := &tokenFile{path: s.tokenFile, secureOnly: !local}
		if _, err := token.current(); err != nil {
			return nil, err
		}
		opts = append(opts, grpc.WithPerRPCCredentials(token))
	}
	return append(opts, s.dial...), nil
}

func (s *settings) transport(target string, local bool) (credentials.TransportCredentials, error) {
	switch {
	case s.insecure && s.tls:
		return nil, errors.New("WithTLS and WithInsecure exclude each other")
	case s.insecure && !local && s.tokenFile != "":
		return nil, fmt.Errorf("a token must not go to %q in plaintext: use WithTLS", target)
	case s.insecure && !local && !s.insecureRemote:
		return nil, fmt.Errorf("plaintext to %q would leave this machine: use WithTLS, or WithInsecureRemote if the network protects it", target)
	case s.insecure:
		return insecure.NewCredentials(), nil
	}
	return newRoots(s.caFile)
}
