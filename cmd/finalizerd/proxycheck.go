package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/finalizerd/finalizerd/client/proxy"
)

const proxyCheckHelp = `Ask the proxy of the same pod whether it serves, for exec probes: it listens
on a loopback address, which the kubelet cannot reach. Ends with 0 if it serves
and with 1 if not. It asks neither the API server nor the service: a restart of
the proxy would mend neither.

Example, which keeps the other containers from starting before the proxy:

  startupProbe:
    exec: {command: [/finalizerd, proxy, check]}
    periodSeconds: 1
    failureThreshold: 60`

func newProxyCheck(environ []string) *cobra.Command {
	var listen string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Ask the proxy of the same pod whether it serves",
		Long:  proxyCheckHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, port, err := net.SplitHostPort(listen); err != nil || port == "" || port == "0" {
				return &usageError{fmt.Errorf("--listen must be the host:port that the proxy listens on, got %q", listen)}
			}
			if timeout <= 0 {
				return &usageError{fmt.Errorf("--timeout must be more than 0, got %s", timeout)}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return checkProxy(ctx, listen)
		},
	}
	// The other variables of the container are those of the proxy's flags.
	usual := cmp.Or(lookup(environ, envName("listen")), defaultListen)
	cmd.Flags().StringVar(&listen, "listen", usual, "`host:port` that the proxy listens on ["+envName("listen")+"]")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "longest time to wait for the answer")
	return cmd
}

// checkProxy returns nil if a proxy of ours answers there. It goes past any proxy
// of the environment.
func checkProxy(ctx context.Context, address string) error {
	direct := &http.Transport{
		DisableKeepAlives: true,
		// The certificate is in the proxy's memory alone, and no secret is sent.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+proxy.HealthPath, nil)
	if err != nil {
		return &usageError{fmt.Errorf("--listen must be a host:port, got %q", address)}
	}
	resp, err := direct.RoundTrip(req)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("the proxy at %s does not answer in time", address)
		}
		return fmt.Errorf("no proxy serves at %s: %w", address, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64))
	if err != nil || resp.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != "ok" {
		return fmt.Errorf("what serves at %s is not finalizerd's proxy: it answers %s", address, resp.Status)
	}
	return nil
}
