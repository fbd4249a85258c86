package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const supervisorVariable = "PROCESS_TEST_SUPERVISOR_DIR"

// TestMain makes this executable also the process that
// TestKilledSupervisorLeavesNoChild kills.
func TestMain(m *testing.M) {
	dir := os.Getenv(supervisorVariable)
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := supervise(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// supervise starts a child and stays until standard input ends.
func supervise(dir string) error {
	_, err := Start(Spec{
		Name: "child", Path: "/bin/sh", LogFile: filepath.Join(dir, "log"),
		Args: []string{"-c", `exec 3>"$1"; echo up >&3; exec sleep 100`, "child", filepath.Join(dir, "pipe")},
	})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// Only Linux kills the children of a process that is killed.
func TestKilledSupervisorLeavesNoChild(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	supervisor := exec.Command(os.Args[0])
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
