// Package demo plays the story of finalizerd on a control plane, says in plain sentences what happens, and checks it.
//
// It speaks with finalizerd over its API alone, and with the API server as kubectl, Argo Server and the workflow controller
// do. It imports packages scenario, daemon and audit. It leaves its namespaces behind: the control plane goes with them.
package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/client"

	"github.com/finalizerd/finalizerd/deploy/local/internal/audit"
	"github.com/finalizerd/finalizerd/deploy/local/internal/daemon"
	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

const (
	namespace   = "story"
	patience    = 30 * time.Second
	pollPeriod  = 50 * time.Millisecond
	watchedHold = 2 * time.Second // for how long a held pod is seen to stay
)

// Options tells Play with what. All fields are required.
type Options struct {
	Config *rest.Config // an administrator's; the control plane has a pretended kubelet
	// Daemon says how to start finalizerd, which is started anew for each part of the story. Its Args are replaced.
	Daemon   daemon.Options
	AuditLog string    // file that the API server writes its audit log to
	Caller   []string  // the command that makes a BulkCall: see its flags in Play's caller
	Out      io.Writer // the story
	Ready    func()    // called when the first finalizerd is ready, before the first line of the story
}

// Play plays all. The error names the first check that did not hold, or what kept it from being made.
func Play(ctx context.Context, options Options) error {
	controller, err := scenario.New(options.Config, "workflow-controller")
	if err != nil {
		return err
	}
	kubectl, err := scenario.New(options.Config, "kubectl")
	if err != nil {
		return err
	}
	server, err := scenario.New(options.Config, "argo-server")
	if err != nil {
		return err
	}
	s := &story{
		out: options.Out, controller: controller, kubectl: kubectl, server: server, daemon: options.Daemon,
		audit: audit.Log{Path: options.AuditLog}, caller: options.Caller,
	}
	if err := controller.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	// With its reconciler on, finalizerd would do by itself what the callers of these chapters ask for.
	if err := s.served(ctx, []string{"--reconcile=report"}, func(ctx context.Context) error {
		options.Ready()
		for _, chapter := range []func(context.Context) error{s.hold, s.retry, s.race} {
			if err := chapter(ctx); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.founding(ctx); err != nil {
		return err
	}
	s.say("\nEvery check held.")
	return nil
}

// story is one play.
type story struct {
	out io.Writer
	// The same cluster, in the names of three.
	controller, kubectl, server *scenario.Cluster
	daemon                      daemon.Options
	service                     *client.Client // of the finalizerd that runs now
	rest, target                string         // where it is
	audit                       audit.Log
	caller                      []string
	uncaptured                  scenario.Pod // deleted, and its result is not stored
}

// served calls use while a finalizerd with these further flags runs.
func (s *story) served(ctx context.Context, flags []string, use func(context.Context) error) error {
	options := s.daemon
	options.Args = flags
	return daemon.During(ctx, options, func(ctx context.Context, d *daemon.Daemon) error {
		service, err := d.Connect()
		if err != nil {
			return err
		}
		defer service.Close()
		s.service, s.rest, s.target = service, d.URL(), d.GRPCAddress()
		return use(ctx)
	})
}

func (s *story) say(format string, values ...any) { fmt.Fprintf(s.out, format+"\n", values...) }

// check says the sentence, and fails with it and what was found instead if it does not hold.
func (s *story) check(holds bool, sentence, found string) error {
	if !holds {
		s.say("   ✗ %s", sentence)
		return fmt.Errorf("check failed: %s; found: %s", sentence, found)
	}
	s.say("   ✓ %s", sentence)
	return nil
}

// cast is castUnseen, and waits until finalizerd sees the pods.
func (s *story) cast(ctx context.Context, name string, life scenario.Life, n int) (scenario.Workflow, []scenario.Pod, error) {
	wf, pods, err := s.castUnseen(ctx, name, life, n)
	if err != nil {
		return wf, nil, err
	}
	return wf, pods, daemon.WaitSeen(ctx, s.service, namespace, name, n)
}

// castUnseen makes a workflow whose pods have ended.
func (s *story) castUnseen(ctx context.Context, name string, life scenario.Life, n int) (scenario.Workflow, []scenario.Pod, error) {
	wf, err := s.controller.CreateWorkflow(ctx, namespace, name)
	if err != nil {
		return wf, nil, err
	}
	pods, err := s.controller.CreatePods(ctx, wf, life, scenario.Names(name, n)...)
	if err != nil {
		return wf, nil, err
	}
	return wf, pods, s.controller.WaitEnded(ctx, wf)
}

// watchHeld reads the pod for a while, and fails unless that very pod is held in Terminating all the time.
func (s *story) watchHeld(ctx context.Context, pod scenario.Pod) error {
	sentence := fmt.Sprintf("%s is still there %s later, Terminating: the finalizer holds it", pod.Name, watchedHold)
	for end := time.Now().Add(watchedHold); time.Now().Before(end); {
		live, err := s.kubectl.GetPod(ctx, namespace, pod.Name)
		if err != nil {
			return s.check(false, sentence, err.Error())
		}
		if live.UID != pod.UID || live.DeletionTimestamp == nil || !held(live) {
			return s.check(false, sentence, describe(live))
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	return s.check(true, sentence, "")
}

// gone reports whether the pod is gone within a time that allows for the watch and the kubelet.
func (s *story) gone(ctx context.Context, pod scenario.Pod) (bool, error) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		live, err := s.kubectl.GetPod(ctx, namespace, pod.Name)
		if apierrors.IsNotFound(err) || err == nil && live.UID != pod.UID {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if err := pause(ctx); err != nil {
			return false, err
		}
	}
	return false, nil
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pollPeriod):
		return nil
	}
}

func held(pod *corev1.Pod) bool { return slices.Contains(pod.Finalizers, scenario.Finalizer) }

func describe(pod *corev1.Pod) string {
	return fmt.Sprintf("pod %s, UID %s, phase %s, deletionTimestamp %v, finalizers %v", pod.Name, pod.UID, pod.Status.Phase, pod.DeletionTimestamp, pod.Finalizers)
}
