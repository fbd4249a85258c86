package kube

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Check asks the API server for its version, for use at start-up. The error is a
// sentence that says what to do.
func (c *Client) Check(ctx context.Context) error {
	err := c.version.Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s (%w)", advice(err, c.host), err)
}

// advice says what to do about an API server that does not answer as one.
func advice(err error, host string) string {
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var address *url.Error
	var timeout net.Error
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("the API server at %s does not accept the credentials: renew the token or certificate in the kubeconfig, or mount a service account token", host)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the API server at %s does not let the account read /version: bind it to the ClusterRole system:public-info-viewer", host)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("what answers at %s is no API server: correct the server address in the kubeconfig", host)
	case apierrors.IsBadRequest(err):
		return fmt.Sprintf("what answers at %s does not understand the request: an API server that speaks TLS needs https:// in the kubeconfig", host)
	case errors.As(err, &unknown), errors.As(err, &name), errors.As(err, &invalid):
		return fmt.Sprintf("the certificate of the API server at %s is not trusted: correct certificate-authority-data, tls-server-name or the server address in the kubeconfig", host)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Sprintf("the API server at %s does not speak TLS: use http:// or the right port in the kubeconfig", host)
	case errors.As(err, &dns):
		return fmt.Sprintf("the name of the API server at %s cannot be resolved: correct the server address in the kubeconfig, or the DNS of this host", host)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("nothing listens at %s: start the API server, or correct the server address in the kubeconfig", host)
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the API server at %s does not answer in time: check the network, a firewall or network policy, and the server address in the kubeconfig", host)
	case errors.As(err, &address):
		return fmt.Sprintf("the API server at %s cannot be reached: check the network and the server address in the kubeconfig", host)
	}
	return fmt.Sprintf("the API server at %s failed to tell its version: check its health and its log", host)
}
