package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/finalizerd/finalizerd/server/api"
)

// Defaults of a Frontend.
const (
	DefaultGRPCAddress     = "127.0.0.1:2748"
	DefaultHTTPAddress     = "127.0.0.1:2749"
	DefaultDeadline        = 30 * time.Second
	DefaultShutdownTimeout = 25 * time.Second

	// MaxMessage bounds a request, over gRPC and REST alike.
	MaxMessage = 4 << 20
	// hardMaxMessage is where gRPC itself stops reading. Between the two, a
	// request is read and refused with ErrorInfo; above, grpc-go ends the call
	// with a bare RESOURCE_EXHAUSTED before any of our code runs.
	hardMaxMessage = 4 * MaxMessage

	maxStreams  = 1000 // concurrent calls on one connection
	maxDeadline = 24*time.Hour + 5*time.Minute
)

// Frontend is what callers see: the listeners and what is served on them, in
// front of a core. Core and Log are required; the other zero values mean the
// defaults above.
type Frontend struct {
	Core api.Core
	// Finalizer is FIN. Empty: finalizer.DefaultFinalizer.
	Finalizer string
	// Checks make up readiness. None: always ready.
	Checks []Check
	Log    *slog.Logger
	// Registry is served at /metrics and gets the metrics of RPCs. Nil: a new
	// one.
	Registry *prometheus.Registry

	// GRPCAddress and HTTPAddress are host:port; port 0 takes a free one.
	GRPCAddress, HTTPAddress string
	// AllowUnauthenticated permits addresses that are not loopback.
	AllowUnauthenticated bool
	// DefaultDeadline is given to unary calls that come without one.
	DefaultDeadline time.Duration
	// DrainDelay is waited for between "not ready" and the refusal of new
	// connections, so that load balancers can take notice. 0: no delay.
	DrainDelay time.Duration
	// ShutdownTimeout bounds how long calls under way may take after the drain
	// delay.
	ShutdownTimeout time.Duration
	// Listening, if set, is called once when both listeners accept.
	Listening func(Addresses)
}

// Addresses are the bound addresses.
type Addresses struct{ GRPC, HTTP net.Addr }

// Check is one condition of readiness.
type Check struct {
	Name string
	// Every is how often a passing check is repeated. 0: a second. A failing
	// one is repeated sooner.
	Every time.Duration
	// Run returns nil when the condition holds. The error's text is shown at
	// /readyz. A Notice is shown too, and does not count as failure.
	Run func(context.Context) error
}

// Notice is what operators should know about a service that is ready all the
// same. It is shown at /readyz and logged when it comes and when it goes.
type Notice string

// Error returns the text.
func (n Notice) Error() string { return string(n) }

func (f *Frontend) setDefaults() {
	f.GRPCAddress = cmp.Or(f.GRPCAddress, DefaultGRPCAddress)
	f.HTTPAddress = cmp.Or(f.HTTPAddress, DefaultHTTPAddress)
	f.DefaultDeadline = cmp.Or(f.DefaultDeadline, DefaultDeadline)
	f.ShutdownTimeout = cmp.Or(f.ShutdownTimeout, DefaultShutdownTimeout)
	if f.Registry == nil {
		f.Registry = prometheus.NewRegistry()
	}
}

// CheckAddress refuses an address that is not host:port or, unless open is set,
// whose host is anything but loopback.
func CheckAddress(address string, open bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not an address of the form host:port, such as %s", address, DefaultGRPCAddress)
	}
	if open || isLoopback(host) {
		return nil
	}
	return fmt.Errorf("refusing to listen on %q: the service does not authenticate its callers, and this address is not loopback; "+
		"use 127.0.0.1, or --danger-listen-without-authentication if something else keeps strangers away", address)
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func listen(ctx context.Context, what, address string, open bool) (net.Listener, error) {
	if err := CheckAddress(address, open); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for %s on %s: %w; choose another with --%s-address", what, address, cause(err), what)
	}
	return lis, nil
}

// cause strips the operation and address that *net.OpError repeats.
func cause(err error) error {
	if op, ok := err.(*net.OpError); ok {
		return op.Err
	}
	return err
}
