package argo

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// binVariable names the folder with the programs local, finalizerd, workflow-controller and argo-server.
const binVariable = "FINALIZERD_E2E_BIN"

// suite is set once, before any test.
var suite struct {
	bin      string
	dir      string
	logLevel string
	report   report
}

func TestMain(m *testing.M) {
	keep := flag.String("argo.keep", "", "folder that keeps logs, kubeconfigs and audit logs")
	flag.StringVar(&suite.logLevel, "argo.loglevel", "warn", "log level of Argo's controller")
	flag.Parse()
	code, err := runSuite(m, *keep)
	if err != nil {
		fmt.Fprintln(os.Stderr, "argo:", err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M, keep string) (int, error) {
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "argo: -short: nothing is tested")
		return 0, nil
	}
	bin, err := filepath.Abs(os.Getenv(binVariable))
	if err != nil {
		return 1, err
	}
	if os.Getenv(binVariable) == "" {
		return 1, fmt.Errorf("%s must name the folder of the programs; 'make e2e-argo' builds them and sets it", binVariable)
	}
	suite.bin, suite.dir = bin, keep
	if keep == "" {
		if suite.dir, err = os.MkdirTemp("", "finalizerd-argo-"); err != nil {
			return 1, err
		}
		defer os.RemoveAll(suite.dir)
	}
	code := m.Run()
	return code, suite.report.print(os.Stdout)
}

func program(name string) string { return filepath.Join(suite.bin, name) }

// TestLevels runs the stories at each level, on a control plane of its own.
func TestLevels(t *testing.T) {
	for _, level := range []level{stock, reconciler, sidecar} {
		t.Run(level.String(), func(t *testing.T) { newSetup(t, level).tell(t, stories()) })
	}
}

// TestSidecar is about the sidecar alone.
func TestSidecar(t *testing.T) {
	newSetup(t, sidecar).tell(t, []story{
		{"B22_controller_and_server_on_one_workflow_at_once", 6 * time.Minute, writesDoNotInterleave},
		{"examples_end_as_without_it", 8 * time.Minute, examplesEndAlike},
		{"watches_stream", time.Minute, watchesStream},
		{"overhead_of_a_GET", 3 * time.Minute, overhead},
	})
}

func (s *setup) tell(t *testing.T, stories []story) {
	for _, story := range stories {
		t.Run(story.name, func(t *testing.T) {
			s.reset(t)
			ctx, cancel := context.WithTimeout(t.Context(), story.atMost)
			defer cancel()
			story.tell(&scene{T: t, setup: s, ctx: ctx, story: story.name, ns: s.namespace(t)})
		})
	}
}
