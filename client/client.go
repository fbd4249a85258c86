package client

import (
	"errors"
	"fmt"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc"
)

// Client is a connection to finalizerd with all methods of the service. It is
// safe for concurrent use.
type Client struct {
	finalizerv1.FinalizerServiceClient
	conn *grpc.ClientConn
}

// New returns a client of the service at target, a gRPC target such as
// "dns:///finalizerd.finalizerd.svc:2748", "127.0.0.1:2748" or
// "unix:///run/finalizerd.sock". It connects with the first call, not here: a
// service that is down is not an error of New.
//
// Without options the connection is TLS checked against the roots of the
// system, and calls carry no credentials. New fails when options contradict each
// other, when a file named by one cannot be used, and when plaintext would leave
// the machine unasked (see WithInsecure). Close the client after use.
func New(target string, opts ...Option) (*Client, error) {
	var s settings
	s.timeout = DefaultTimeout
	s.userAgent = defaultUserAgent
	for _, opt := range opts {
		opt(&s)
	}
	if target == "" {
		return nil, errors.New("finalizerd client: the target is empty")
	}
	dial, err := s.dialOptions(target)
	if err != nil {
		return nil, fmt.Errorf("finalizerd client: %w", err)
	}
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, fmt.Errorf("finalizerd client: %w", err)
	}
	return &Client{FinalizerServiceClient: finalizerv1.NewFinalizerServiceClient(conn), conn: conn}, nil
}

// Close ends the connections; calls under way fail with CANCELLED. A second
// Close returns an error and does nothing.
func (c *Client) Close() error { return c.conn.Close() }
