package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/finalizerd/finalizerd/client"
	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
)

const callTimeout = 2 * time.Minute

// BulkCall is one call of finalizerd, made by a process of its own.
type BulkCall struct {
	Target, Namespace, Workflow string
	Delete                      bool // DeleteWorkflowPods; else ReleaseWorkflowPods
	NodeIDs                     []string
}

// CallReport is what became of it.
type CallReport struct {
	PID            int
	Began, Ended   time.Time
	Acted, Results int // pods with the outcome that was asked for, of how many
}

// Do makes the call.
func (b BulkCall) Do(ctx context.Context) (CallReport, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	service, err := client.New(b.Target, client.WithInsecure())
	if err != nil {
		return CallReport{}, err
	}
	defer service.Close()
	report := CallReport{Began: time.Now()}
	if b.Delete {
		answer, err := service.DeleteWorkflowPods(ctx, &finalizerv1.DeleteWorkflowPodsRequest{
			Namespace: b.Namespace, Workflow: b.Workflow, NodeIds: b.NodeIDs,
		})
		if err != nil {
			return report, err
		}
		report.Acted, report.Results = int(answer.GetSummary().GetDeleted()), len(answer.GetResults())
	} else {
		answer, err := service.ReleaseWorkflowPods(ctx, &finalizerv1.ReleaseWorkflowPodsRequest{
			Namespace: b.Namespace, Workflow: b.Workflow, NodeIds: b.NodeIDs,
		})
		if err != nil {
			return report, err
		}
		report.Acted, report.Results = int(answer.GetSummary().GetReleased()), len(answer.GetResults())
	}
	report.Ended = time.Now()
	return report, nil
}

// process is a started process that has yet to make its call.
type process struct {
	command        *exec.Cmd
	input          io.WriteCloser
	stdout, stderr bytes.Buffer
}

// startCaller starts a process that makes the call when let go.
func (s *story) startCaller(ctx context.Context, call BulkCall) (*process, error) {
	args := append(s.caller[1:len(s.caller):len(s.caller)],
		"--target="+call.Target, "--namespace="+call.Namespace, "--workflow="+call.Workflow, fmt.Sprintf("--delete=%t", call.Delete))
	p := &process{command: exec.CommandContext(ctx, s.caller[0], args...)}
	p.command.Stdout, p.command.Stderr = &p.stdout, &p.stderr
	var err error
	if p.input, err = p.command.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start a caller: %w", err)
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start a caller: %w", err)
	}
	if _, err := io.WriteString(p.input, strings.Join(call.NodeIDs, "\n")+"\n"); err != nil {
		p.kill()
		return nil, fmt.Errorf("start a caller: %w", err)
	}
	return p, nil
}

func (p *process) letGo() error { return p.input.Close() }

func (p *process) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// report waits for the end of the process.
func (p *process) report() (CallReport, error) {
	if err := p.command.Wait(); err != nil {
		return CallReport{}, fmt.Errorf("caller %d: %w: %s", p.command.Process.Pid, err, strings.TrimSpace(p.stderr.String()))
	}
	report := CallReport{}
	if err := json.Unmarshal(p.stdout.Bytes(), &report); err != nil {
		return CallReport{}, fmt.Errorf("caller %d: %w", p.command.Process.Pid, err)
	}
	report.PID = p.command.Process.Pid
	return report, nil
}
