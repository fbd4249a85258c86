package process

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

const supervisorVariable = "PROCESS_TEST_SUPERVISOR_DIR"

// TestSupervisor is no test: it is the process that TestKilledSupervisorLeavesNoChild kills.
func TestSupervisor(t *testing.T) {
	dir := os.Getenv(supervisorVariable)
	if dir == "" {
		t.Skip("runs only as the child of another test")
	}
	_, err := Start(Spec{
		Name: "child", Path: "/bin/sh", LogFile: filepath.Join(dir, "log"),
		Args: []string{"-c", `exec 3>"$1"; echo up >&3; exec sleep 100`, "child", filepath.Join(dir, "pipe")},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestKilledSupervisorLeavesNoChild(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux kills the children of a process that is killed")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	supervisor := exec.Command(os.Args[0], "-test.run=^TestSupervisor$")
	supervisor.Env = append(os.Environ(), supervisorVariable+"="+dir)
	input, err := supervisor.StdinPipe() // held open, or the supervisor would end by itself
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	if err := supervisor.Start(); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.Open(path) // waits for the child, which alone holds the other end
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	greeting := make([]byte, 3)
	if _, err := io.ReadFull(pipe, greeting); err != nil || !bytes.Equal(greeting, []byte("up\n")) {
		t.Fatalf("child said %q, %v", greeting, err)
	}
	if err := supervisor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = supervisor.Wait()
	if err := pipe.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(pipe); err != nil {
		t.Errorf("child still holds the pipe: %v", err)
	}
}
