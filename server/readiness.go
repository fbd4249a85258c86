package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	checkEvery   = time.Second
	recheckEvery = 250 * time.Millisecond
	checkTimeout = 10 * time.Second
)

// readiness repeats the checks and remembers their answers, so that a probe
// costs nothing, and tells gRPC's health service.
type readiness struct {
	checks   []Check
	services []string
	health   *health.Server
	log      *slog.Logger

	mu      sync.Mutex
	answers []error // by check
	closed  bool
	ready   bool // as told last
}

var errNotChecked = errors.New("not checked yet")

func newReadiness(checks []Check, log *slog.Logger, service string) *readiness {
	r := &readiness{
		checks: checks, services: []string{"", service}, health: health.NewServer(), log: log,
		answers: make([]error, len(checks)),
	}
	for i := range r.answers {
		r.answers[i] = errNotChecked
	}
	r.tell(false)
	return r
}

// run checks until ctx ends.
func (r *readiness) run(ctx context.Context) error {
	r.update(func() {}) // without checks: ready now
	var g errgroup.Group
	for i := range r.checks {
		g.Go(func() error { r.repeat(ctx, i); return nil })
	}
	return g.Wait()
}

func (r *readiness) repeat(ctx context.Context, i int) {
	check := r.checks[i]
	if check.Every <= 0 {
		check.Every = checkEvery
	}
	for {
		bound, cancel := context.WithTimeout(ctx, checkTimeout)
		err := check.Run(bound)
		cancel()
		if ctx.Err() != nil {
			return
		}
		r.update(func() { r.answer(i, err) })
		wait := check.Every
		if failed(err) {
			wait = min(wait, recheckEvery)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// failed reports whether an answer counts against readiness.
func failed(answer error) bool {
	var n Notice
	return answer != nil && !errors.As(answer, &n)
}

// answer is called with the lock.
func (r *readiness) answer(i int, err error) {
	before, name := r.answers[i], r.checks[i].Name
	r.answers[i] = err
	var was, is Notice
	errors.As(before, &was)
	errors.As(err, &is)
	switch {
	case was == is:
	case is != "":
		r.log.Warn("notice", "check", name, "notice", string(is))
	case err == nil:
		r.log.Info("notice is void", "check", name, "notice", string(was))
	}
}

// update changes an answer, and tells if readiness changed with it.
func (r *readiness) update(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	err := r.verdict()
	if (err == nil) == r.ready || r.closed {
		return
	}
	r.ready = err == nil
	if r.ready {
		r.log.Info("ready")
	} else {
		r.log.Warn("not ready any more", "err", err)
	}
	r.tell(r.ready)
}

// close says no for good.
func (r *readiness) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.health.Shutdown()
}

func (r *readiness) tell(ready bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		st = healthpb.HealthCheckResponse_SERVING
	}
	for _, s := range r.services {
		r.health.SetServingStatus(s, st)
	}
}

func (r *readiness) verdict() error {
	if r.closed {
		return errors.New("shutting down")
	}
	for i, err := range r.answers {
		if failed(err) {
			return fmt.Errorf("%s: %w", r.checks[i].Name, err)
		}
	}
	return nil
}

// notices returns what is told although nothing fails, a line each.
func (r *readiness) notices() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for i, err := range r.answers {
		if err != nil && !failed(err) {
			fmt.Fprintf(&b, "notice: %s: %v\n", r.checks[i].Name, err)
		}
	}
	return b.String()
}

// report returns all answers for people, and whether the service is ready.
func (r *readiness) report() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	line := func(name string, err error) {
		switch {
		case failed(err):
			fmt.Fprintf(&b, "[-] %s: %v\n", name, err)
		case err != nil:
			fmt.Fprintf(&b, "[+] %s: ok, but %v\n", name, err)
		default:
			fmt.Fprintf(&b, "[+] %s: ok\n", name)
		}
	}
	for i, err := range r.answers {
		line(r.checks[i].Name, err)
	}
	if r.closed {
		line("shutdown", errors.New("the service is stopping"))
	}
	return b.String(), r.verdict()
}
