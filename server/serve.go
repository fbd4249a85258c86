package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
)

// Serve opens the listeners and answers until ctx ends or a listener fails. It
// then stops in this order: readiness and health say no, DrainDelay passes,
// watches end with UNAVAILABLE, HTTP and then gRPC finish what is under way, at
// most ShutdownTimeout, and what is left after that ends with UNAVAILABLE too.
// It returns nil after ctx ended, and leaves no goroutine behind.
func Serve(ctx context.Context, f Frontend) error {
	s, err := open(ctx, f)
	if err != nil {
		return err
	}
	return s.run(ctx)
}

// open listens and answers nobody yet. What it returns must be run.
func open(ctx context.Context, f Frontend) (*front, error) {
	f.setDefaults()
	grpcLis, err := listen(ctx, "grpc", f.GRPCAddress, f.AllowUnauthenticated)
	if err != nil {
		return nil, err
	}
	httpLis, err := listen(ctx, "http", f.HTTPAddress, f.AllowUnauthenticated)
	if err != nil {
		return nil, errors.Join(err, grpcLis.Close())
	}
	s, err := newFront(f)
	if err != nil {
		return nil, errors.Join(err, grpcLis.Close(), httpLis.Close())
	}
	s.grpcLis, s.httpLis = grpcLis, httpLis
	return s, nil
}

// front is a Frontend with all its parts.
type front struct {
	Frontend
	drain   *drain
	ready   *readiness
	grpc    *grpc.Server
	inner   *bufconn.Listener // where the gateway dials grpc
	gateway *grpc.ClientConn
	http    *http.Server

	grpcLis, httpLis net.Listener
}

func newFront(f Frontend) (*front, error) {
	s := &front{Frontend: f, drain: newDrain(), inner: bufconn.Listen(1 << 20)}
	calls, err := newCallMetrics(f.Registry)
	if err != nil {
		return nil, err
	}
	s.ready = newReadiness(f.Checks, f.Log, pb.FinalizerService_ServiceDesc.ServiceName)
	svc := api.New(api.Config{Core: f.Core, Finalizer: f.Finalizer, Log: f.Log})
	s.grpc = newGRPCServer(f, svc, s.ready.health, s.drain, calls)
	calls.InitializeMetrics(s.grpc)

	mux, conn, err := newGateway(s.inner)
	if err != nil {
		return nil, err
	}
	s.gateway = conn
	s.http = &http.Server{
		Handler:           routes(mux, s.ready, f.Registry, !f.AllowUnauthenticated),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// No ReadTimeout and no WriteTimeout: they would end watches. Bodies
		// have their own deadline.
		ErrorLog: slog.NewLogLogger(f.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

func (s *front) run(ctx context.Context) error {
	// What runs ends with life, which outlasts ctx by the shutdown.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, failed := errgroup.WithContext(life)
	g.Go(func() error { return served("gRPC", s.grpc.Serve(s.grpcLis)) })
	g.Go(func() error { return served("gateway", s.grpc.Serve(s.inner)) })
	g.Go(func() error { return served("HTTP", s.http.Serve(s.httpLis)) })
	g.Go(func() error { return s.ready.run(life) })
	if s.Listening != nil {
		s.Listening(Addresses{GRPC: s.grpcLis.Addr(), HTTP: s.httpLis.Addr()})
	}

	select {
	case <-ctx.Done():
	case <-failed.Done():
	}
	s.stop(failed)
	end()
	return errors.Join(g.Wait(), s.gateway.Close())
}

func served(what string, err error) error {
	if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("%s listener failed: %w", what, err)
}

// stop drains. It returns when no call is left.
func (s *front) stop(failed context.Context) {
	s.ready.close()
	if s.DrainDelay > 0 && failed.Err() == nil {
		t := time.NewTimer(s.DrainDelay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-failed.Done():
		}
	}
	s.drain.watches()
	hard := time.AfterFunc(s.ShutdownTimeout, s.drain.all)
	defer hard.Stop()
	// Calls that were told to end get a little time to say so.
	bound, cancel := context.WithTimeout(context.Background(), s.ShutdownTimeout+time.Second)
	defer cancel()
	if err := s.http.Shutdown(bound); err != nil {
		s.Log.Warn("HTTP connections were cut at shutdown", "err", err)
		_ = s.http.Close() // errors of closing what is cut anyway
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
	case <-bound.Done():
		s.Log.Warn("gRPC calls were cut at shutdown", "timeout", s.ShutdownTimeout)
		s.grpc.Stop()
		<-done
	}
}
