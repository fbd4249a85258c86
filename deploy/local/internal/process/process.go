// Package process runs one child process so that it can never outlive this one.
//
// A child logs to a file, leaves its pid in another, is stopped by SIGTERM and, when that takes too long, by SIGKILL. It
// gets a process group of its own, so an interrupt typed at the terminal reaches only the supervisor, which then stops its
// children in the order it wants. On Linux the kernel also kills the child when the supervisor dies, however that happens;
// elsewhere a supervisor that is killed leaves its children behind.
//
// The package imports the standard library only. It does not restart anything: see the caller.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Spec says what to start.
type Spec struct {
	Name    string   // how errors call it
	Path    string   // the executable
	Args    []string // without the executable's own name
	LogFile string   // stdout and stderr are appended here
	PIDFile string   // written after the start, removed after the end; optional
}

// Process is a started child. Its methods may be called from several goroutines at once.
type Process struct {
	spec Spec
	cmd  *exec.Cmd
	done chan struct{}
	err  error // written before done is closed
}

// Start starts the child. It fails if the executable, the log file or the pid file is unusable; nothing is left running then.
func Start(spec Spec) (*Process, error) {
	logFile, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Env = withoutPrefix(os.Environ(), "ETCD_")
	cmd.SysProcAttr = attributes()

	p := &Process{spec: spec, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel's parent-death signal follows the thread that forked, not the process. This thread therefore has to
		// stay until the child has ended; it is never unlocked, so it ends with this goroutine.
		runtime.LockOSThread()
		defer logFile.Close()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
		if spec.PIDFile != "" {
			_ = os.Remove(spec.PIDFile)
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if spec.PIDFile != "" {
		if err := os.WriteFile(spec.PIDFile, []byte(strconv.Itoa(p.PID())+"\n"), 0o644); err != nil {
			p.Stop(0)
			return nil, fmt.Errorf("start %s: %w", spec.Name, err)
		}
	}
	return p, nil
}

// PID is the child's process id. It stays the same after the child has ended, when the system may reuse it.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended, for whatever reason.
func (p *Process) Done() <-chan struct{} { return p.done }

// Failure describes an end that nobody asked for, with the last lines of the log. Call it only after Done is closed.
func (p *Process) Failure() error {
	<-p.done
	state := "exit status 0"
	if p.err != nil {
		state = p.err.Error()
	}
	return fmt.Errorf("%s (pid %d) ended: %s\nlast lines of %s:\n%s", p.spec.Name, p.PID(), state, p.spec.LogFile, tail(p.spec.LogFile, 15))
}

// Stop asks the child to end, waits for that, and kills it when grace has passed. It returns when the child has ended, and
// may be called on one that already has.
func (p *Process) Stop(grace time.Duration) {
	if grace > 0 {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
			return
		case <-time.After(grace):
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// tail returns the last lines of a file, each cut to a readable length, or why it could not be read.
func tail(path string, lines int) string {
	const maxBytes, maxLine = 16 << 10, 400
	f, err := os.Open(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	buf := make([]byte, min(info.Size(), maxBytes))
	n, err := f.ReadAt(buf, info.Size()-int64(len(buf)))
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return "  (" + err.Error() + ")"
	}
	all := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	for i, line := range all {
		if len(line) > maxLine {
			line = line[:maxLine] + "..."
		}
		all[i] = "  " + line
	}
	return strings.Join(all, "\n")
}

// withoutPrefix drops the variables by which a user's shell would reconfigure a child.
func withoutPrefix(environment []string, prefix string) []string {
	kept := make([]string, 0, len(environment))
	for _, variable := range environment {
		if !strings.HasPrefix(variable, prefix) {
			kept = append(kept, variable)
		}
	}
	return kept
}
