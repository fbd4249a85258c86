package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const (
	controlPlaneVariable = "FINALIZERD_E2E_CONTROL_PLANE"
	grpcurlVariable      = "FINALIZERD_E2E_GRPCURL"
	readyWithin          = 4 * time.Minute
)

// suite is what TestMain brings up for all tests. It is set once, before any of
// them.
var suite *environment

// environment is the control plane and the finalizerd that most tests share.
type environment struct {
	*controlPlane
	shared *daemon
	build  func() (path string, err error) // of cmd/finalizerd
}

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "e2e: -short: nothing is tested")
		return
	}
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (int, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "finalizerd-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	binary, err := controlPlaneBinary(ctx, dir)
	if err != nil {
		return 1, err
	}
	plane, err := startControlPlane(ctx, binary, filepath.Join(dir, "plane"))
	if err != nil {
		return 1, err
	}
	defer plane.stop()
	d, err := startDaemon(ctx, plane, daemonOptions{name: "shared"})
	if err != nil {
		return 1, err
	}
	defer d.stop()
	suite = &environment{
		controlPlane: plane, shared: d,
		build: sync.OnceValues(func() (string, error) { return buildFinalizerd(dir) }),
	}
	return m.Run(), nil
}
