package controlplane

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// sweep waits until its input ends, which happens when this process does, and then removes what it was given. The pause is
// for the children, which the kernel kills in the same moment and which may be writing.
const sweep = `cat >/dev/null; for pause in 0.2 0.5 1 2; do sleep $pause; rm -rf -- "$@"; done`

// prepareDir makes the folder, and returns what removes the files that must not stay.
func (c *ControlPlane) prepareDir() (remove func(), err error) {
	var removed []string
	if c.options.Dir != "" {
		c.dir = c.options.Dir
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the folder: %w", err)
		}
	} else {
		if c.dir, err = os.MkdirTemp("", "finalizerd-local-"); err != nil {
			return nil, fmt.Errorf("make the folder: %w", err)
		}
		removed = append(removed, c.dir)
	}
	if c.options.Kubeconfig != "" {
		removed = append(removed, c.options.Kubeconfig)
	}
	if len(removed) == 0 {
		return func() {}, nil
	}
	dismiss, err := startSweeper(removed)
	if err != nil {
		_ = os.RemoveAll(removed[0])
		return nil, err
	}
	return func() {
		for _, path := range removed {
			_ = os.RemoveAll(path)
		}
		dismiss()
	}, nil
}

// startSweeper starts the one child that outlives us, for seconds: it removes the paths in case we are killed. In the
// ordinary course we remove them ourselves and dismiss it.
func startSweeper(paths []string) (dismiss func(), err error) {
	command := exec.Command("sh", append([]string{"-c", sweep, "sweep"}, paths...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's interrupt
	held, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the sweeper: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the sweeper: %w", err)
	}
	return func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = held.Close()
		_ = command.Wait()
	}, nil
}
