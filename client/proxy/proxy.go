package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/finalizerd/finalizerd/client/transport"
)

// OwnPath begins the paths that the proxy answers itself; no API server has
// them.
const OwnPath = "/finalizerd-proxy/"

// HealthPath answers 200 while the proxy serves. It asks neither the API server
// nor finalizerd: a restart of the proxy would mend neither.
const HealthPath = OwnPath + "healthz"

// MetricsPath is where Config.Metrics is served.
const MetricsPath = OwnPath + "metrics"

// DefaultShutdownTimeout is how long Run lets requests finish.
const DefaultShutdownTimeout = 5 * time.Second

// Config says what to stand between.
type Config struct {
	// Listen is a loopback host:port; port 0 takes a free one.
	Listen string
	// Upstream is the URL of the API server, http or https; it may have a path.
	Upstream *url.URL
	// CAFile has the certificates that the API server is checked against, in
	// PEM. It is read for each connection. Empty: the roots of the system.
	CAFile string
	// TokenFile has a bearer token that is lent to requests that come without
	// credentials; those that have some keep them. Whoever reaches the proxy then
	// acts with that account, as with kubectl proxy: not for a pod that serves
	// others, since a caller whom the program left anonymous would not stay so.
	// It is read again as it is replaced. Empty: none is lent.
	TokenFile string
	// Service is finalizerd.
	Service transport.Service
	// Transport has the choices of package transport. BasePath is set by New.
	Transport transport.Options
	// Metrics, if not nil, is served at MetricsPath.
	Metrics http.Handler
	// Log gets faults of the way to the API server. Nil: they are dropped.
	Log *slog.Logger
	// ShutdownTimeout bounds how long Run lets requests finish once its context
	// is done. Watches do not finish by themselves, so it is mostly used up.
	// 0: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Listening, if not nil, is called once with the address and the certificate,
	// in PEM, that callers can check the proxy against.
	Listening func(address net.Addr, certificate []byte)
}

// Proxy is a handler for requests to the API server.
type Proxy struct {
	config  Config
	own     *http.ServeMux // OwnPath
	proxied http.Handler   // all else, unseen by a mux, which would clean paths
	up      *upstream
	account *account

	certificate tls.Certificate
	pem         []byte // the certificate
}

// New checks the configuration. It fails when Listen is not loopback, when the
// upstream is no http or https URL, and when the CA file or the token file
// cannot be used now.
func New(c Config) (*Proxy, error) {
	host, err := loopbackHost(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if c.Upstream == nil || c.Upstream.Host == "" || c.Upstream.Scheme != "http" && c.Upstream.Scheme != "https" {
		return nil, fmt.Errorf("proxy: the upstream must be an http or https URL, got %q", c.Upstream)
	}
	if c.Service == nil {
		return nil, errors.New("proxy: the service is nil")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = DefaultShutdownTimeout
	}
	up, err := newUpstream(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	account, err := newAccount(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	certificate, pem, err := newCertificate(host)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	c.Transport.BasePath = c.Upstream.Path
	p := &Proxy{config: c, own: http.NewServeMux(), up: up, account: account, certificate: certificate, pem: pem}
	p.own.HandleFunc(HealthPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	if c.Metrics != nil {
		p.own.Handle(MetricsPath, c.Metrics)
	}
	p.proxied = p.reverse()
	return p, nil
}

// ServeHTTP answers one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isLoopback(hostOf(r.Host)) {
		// A page in a browser whose name was made to resolve to this machine.
		http.Error(w, "finalizerd proxy: the Host must be a loopback address", http.StatusForbidden)
		return
	}
	if fromElsewhere(r.Header) {
		// Browsers let any page open WebSockets, and send what it may not read.
		http.Error(w, "finalizerd proxy: the Origin must be a loopback address", http.StatusForbidden)
		return
	}
	if strings.HasPrefix(r.URL.Path, OwnPath) {
		p.own.ServeHTTP(w, r)
		return
	}
	p.proxied.ServeHTTP(w, r)
}

// loopbackHost returns the host to listen on. It refuses addresses that other
// machines reach: they could not tell the proxy's certificate from any other, and
// what comes through has the credentials of whoever sends it.
func loopbackHost(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("listen on %q: %w", address, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("listen on %q: the port must be a number from 0 to 65535", address)
	}
	if !isLoopback(host) {
		return "", fmt.Errorf("listen on %q: only a loopback address is allowed, such as 127.0.0.1:8001", address)
	}
	return host, nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// hostOf returns the host of a Host header, which may have a port.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}
	return strings.Trim(header, "[]")
}

// fromElsewhere tells whether a web page made the request that is not of this
// machine. "null", which pages without an origin have, is elsewhere.
func fromElsewhere(header http.Header) bool {
	for _, origin := range header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || !isLoopback(u.Hostname()) {
			return true
		}
	}
	return false
}

// Run listens and serves until ctx is done; then it lets requests finish for as
// long as ShutdownTimeout, cuts off the rest and returns nil. It may be called
// once.
func (p *Proxy) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.config.Listen)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	server := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(p.config.Log.Handler(), slog.LevelDebug),
		TLSConfig:         p.tlsConfig(),
	}
	defer p.up.CloseIdleConnections()
	if p.config.Listening != nil {
		p.config.Listening(listener.Addr(), p.pem)
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("proxy: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.config.ShutdownTimeout)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close()
	}
	<-served
	return nil
}

// tlsConfig prefers HTTP/1.1 where the caller offers both: upgrades need it, and on
// loopback HTTP/2 takes longer for a request.
func (p *Proxy) tlsConfig() *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{p.certificate}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1", "h2"},
	}
}

// reverse passes requests on, each part of an answer as soon as it comes.
func (p *Proxy) reverse() http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(p.config.Upstream)
			// The bytes of the query, also of one that Go would not parse.
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			p.account.lend(r.In.Header, r.Out.Header)
		},
		Transport:     transport.New(p.config.Service, p.config.Transport)(p.up),
		FlushInterval: -1,
		BufferPool:    &buffers{},
		ErrorLog:      slog.NewLogLogger(p.config.Log.Handler(), slog.LevelWarn),
		ErrorHandler:  p.failed,
	}
}

// unreachable is what clients of Kubernetes read as "try again".
const unreachable = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"finalizerd proxy: the API server cannot be reached","reason":"ServiceUnavailable","code":503}` + "\n"

func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		// The caller has left. One who closed only his sending half would read a
		// return from here as a 200.
		panic(http.ErrAbortHandler)
	}
	p.config.Log.Warn("the API server cannot be reached", "method", r.Method, "path", r.URL.Path, "error", err)
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		// The request was not sent, and client-go itself repeats it.
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, unreachable)
}

// buffers keeps the memory of copies flat.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get returns a buffer for httputil.ReverseProxy.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[]byte); ok {
		return *buffer
	}
	return make([]byte, bufferSize)
}

// Put takes it back.
func (b *buffers) Put(buffer []byte) { b.pool.Put(&buffer) }
