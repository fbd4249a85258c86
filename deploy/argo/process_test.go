package argo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const startWithin = 2 * time.Minute

// child is a process that ends with this one at the latest.
type child struct {
	name    string
	command *exec.Cmd
	stdin   io.Closer
	logFile string
	ended   chan struct{} // closed when it has ended
	once    sync.Once
}

// spec says what to start. Both of its outputs go to the file <name>.log of the folder, and each line to said, if that is not
// nil, from one goroutine each.
type spec struct {
	name, dir, path string
	args, env       []string
	said            func(line string)
}

func start(s spec) (*child, error) {
	log, err := os.OpenFile(filepath.Join(s.dir, s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	c := &child{name: s.name, command: exec.Command(s.path, s.args...), logFile: log.Name(), ended: make(chan struct{})}
	c.command.Env = append(cleanEnvironment(), s.env...)
	c.command.SysProcAttr = dieWithParent()
	if c.stdin, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	read, write := io.Pipe()
	c.command.Stdout, c.command.Stderr = write, write
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewReader(read); ; {
			line, err := lines.ReadString('\n')
			_, _ = log.WriteString(line)
			if s.said != nil && line != "" {
				s.said(strings.TrimSuffix(line, "\n"))
			}
			if err != nil {
				return
			}
		}
	})
	go func() {
		defer close(c.ended)
		_ = c.command.Wait()
		_ = write.Close()
		reading.Wait()
		_ = log.Close()
	}()
	return c, nil
}

// kill ends the process at once, and waits until it has.
func (c *child) kill() {
	if c == nil {
		return
	}
	c.once.Do(func() { _ = c.command.Process.Kill() })
	<-c.ended
}

// closeInput ends a process that ends with its input.
func (c *child) closeInput() {
	_ = c.stdin.Close()
	<-c.ended
}

// startAndHear starts a process and waits until hear finds something in one of its lines, which is returned.
func startAndHear(ctx context.Context, s spec, hear func(line string) (string, bool)) (*child, string, error) {
	heard := make(chan string, 1)
	s.said = func(line string) {
		if found, ok := hear(line); ok {
			select {
			case heard <- found:
			default:
			}
		}
	}
	c, err := start(s)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	select {
	case found := <-heard:
		return c, found, nil
	case <-c.ended:
		return nil, "", fmt.Errorf("%s ended before it was ready; %s", s.name, tail(c.logFile))
	case <-ctx.Done():
		c.kill()
		return nil, "", fmt.Errorf("%s was not ready in time; %s", s.name, tail(c.logFile))
	}
}

func tail(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return file + " ends with:\n" + strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// cleanEnvironment is without what the programs would take for settings of theirs.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "FINALIZERD_") || strings.HasPrefix(entry, "KUBECONFIG=") || strings.HasPrefix(entry, "ARGO_")
	})
}
