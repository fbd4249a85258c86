package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
)

// roots is TLS whose roots are read from a file at each handshake. Handshakes
// are rare, so there is nothing to cache, and nothing to go stale.
type roots struct {
	credentials.TransportCredentials // for all but the handshake
	caFile                           string
}

// newRoots fails when the file holds no certificate now.
func newRoots(caFile string) (credentials.TransportCredentials, error) {
	config, err := tlsConfig(caFile)
	if err != nil {
		return nil, err
	}
	creds := credentials.NewTLS(config)
	if caFile == "" {
		return creds, nil
	}
	return &roots{TransportCredentials: creds, caFile: caFile}, nil
}

// ClientHandshake checks the server against the file's certificates of now. A
// file that cannot be used fails this handshake; gRPC tries again later.
func (r *roots) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := tlsConfig(r.caFile)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

// Clone returns a copy that reads the same file.
func (r *roots) Clone() credentials.TransportCredentials {
	return &roots{TransportCredentials: r.TransportCredentials.Clone(), caFile: r.caFile}
}

func tlsConfig(caFile string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA file %s: no certificate in it", caFile)
	}
	return config, nil
}
