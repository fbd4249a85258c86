package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T, script string) (*Process, Spec) {
	t.Helper()
	dir := t.TempDir()
	spec := Spec{
		Name: "child", Path: "/bin/sh", Args: []string{"-c", script, "child", filepath.Join(dir, "pipe")},
		LogFile: filepath.Join(dir, "log"), PIDFile: filepath.Join(dir, "pid"),
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(0) })
	return p, spec
}

// awaitUp returns when the child has written its first byte into the pipe.
func awaitUp(t *testing.T, spec Spec) {
	t.Helper()
	if _, err := os.ReadFile(spec.Args[len(spec.Args)-1]); err != nil {
		t.Fatal(err)
	}
}

func TestStop(t *testing.T) {
	tests := map[string]struct {
		script string
		grace  time.Duration
		want   syscall.Signal // the end; -1 means exit
	}{
		"ends a child that obeys":             {`trap 'exit 0' TERM; echo >"$1"; while :; do sleep 0.05; done`, time.Minute, -1},
		"kills a child that does not":         {`trap '' TERM; echo >"$1"; while :; do sleep 0.05; done`, time.Millisecond, syscall.SIGKILL},
		"kills at once when there is no time": {`echo >"$1"; exec sleep 100`, 0, syscall.SIGKILL},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, spec := start(t, test.script)
			awaitUp(t, spec)
			pid, err := os.ReadFile(spec.PIDFile)
			if err != nil || strings.TrimSpace(string(pid)) != strconv.Itoa(p.PID()) {
				t.Errorf("pid file has %q, %v; want %d", pid, err, p.PID())
			}
			p.Stop(test.grace)
			if got := p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != test.want {
				t.Errorf("child ended by signal %v, want %v", got, test.want)
			}
			if _, err := os.Stat(spec.PIDFile); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("pid file is still there: %v", err)
			}
			p.Stop(test.grace) // once more is harmless
		})
	}
}

func TestFailureTellsHowAndShowsTheLog(t *testing.T) {
	p, _ := start(t, `for i in $(seq 100); do echo line $i; done; echo the cause >&2; exit 3`)
	err := p.Failure()
	for _, want := range []string{"child", "exit status 3", "line 100", "the cause"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "line 50\n") {
		t.Errorf("error has more than the last lines: %v", err)
	}
}

func TestStartFailsWithoutAnExecutable(t *testing.T) {
	_, err := Start(Spec{Name: "child", Path: filepath.Join(t.TempDir(), "absent"), LogFile: filepath.Join(t.TempDir(), "log")})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Start() = %v, want a file that does not exist", err)
	}
}
