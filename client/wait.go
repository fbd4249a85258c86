package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	finalizerv1 "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The pause before a broken watch is opened again grows between these, and is
// halved at random, so that the watchers of a restarted service come back one by
// one.
const (
	firstPause = 200 * time.Millisecond
	maxPause   = 10 * time.Second
)

// Watcher opens watches; a Client is one.
type Watcher interface {
	WatchWorkflowPods(ctx context.Context, in *finalizerv1.WatchWorkflowPodsRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[finalizerv1.WatchWorkflowPodsResponse], error)
}

// WaitGone returns nil once no pod of the workflow exists, whatever UID the
// workflow had if uid is empty, and only its pods of that UID otherwise. It
// deletes nothing.
//
// A watch that breaks, because the service restarts or the network does, is
// opened again for as long as ctx lasts. Once ctx is done the error wraps
// ctx.Err() and tells how many pods were left. Any other error is the service's,
// see Reason.
//
// progress, if not nil, gets the counts of each step, on the calling goroutine;
// it must not keep or change the message. Progress.Gone starts at zero again
// whenever the watch is opened again.
func WaitGone(ctx context.Context, c Watcher, namespace, workflow, uid string, progress func(*finalizerv1.Progress)) error {
	w := goneWait{
		watcher:  c,
		progress: progress,
		request: &finalizerv1.WatchWorkflowPodsRequest{
			Namespace: namespace, Workflow: workflow, WorkflowUid: uid,
			Until: finalizerv1.WatchUntil_WATCH_UNTIL_GONE,
		},
	}
	if err := w.run(ctx); err != nil {
		return fmt.Errorf("wait until the pods of workflow %s/%s are gone: %w", namespace, workflow, err)
	}
	return nil
}

type goneWait struct {
	watcher  Watcher
	request  *finalizerv1.WatchWorkflowPodsRequest
	progress func(*finalizerv1.Progress)
	last     *finalizerv1.Progress // nil: nothing was heard yet
}

func (w *goneWait) run(ctx context.Context) error {
	pause := firstPause
	for {
		heard, err := w.watch(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return w.unfinished(ctx.Err())
		}
		if !reopen(err) {
			return err
		}
		if heard {
			pause = firstPause
		}
		delay := pause/2 + rand.N(pause/2)
		if asked, ok := RetryAfter(err); ok {
			delay = max(delay, asked)
		}
		pause = min(2*pause, maxPause)
		select {
		case <-ctx.Done():
			return w.unfinished(ctx.Err())
		case <-time.After(delay):
		}
	}
}

// reopen reports whether a watch that ended this way is opened again. ctx is not
// done: DEADLINE_EXCEEDED is then the word of a proxy, or of a service whose
// clock is ahead, and a watch, which writes nothing, may be repeated.
func reopen(err error) bool {
	return errors.Is(err, errEarlyEnd) || IsRetriable(err) || status.Code(err) == codes.DeadlineExceeded
}

// errEarlyEnd is a stream that ended with OK although pods were left: something
// between the service and us closed it.
var errEarlyEnd = errors.New("the watch ended early")

// watch runs one stream. It returns nil when the pods are gone, and whether
// anything was received.
func (w *goneWait) watch(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.watcher.WatchWorkflowPods(ctx, w.request)
	if err != nil {
		return false, err
	}
	for {
		step, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && heard && w.last.GetPods() == 0:
			return true, nil
		case errors.Is(err, io.EOF):
			return heard, errEarlyEnd
		case err != nil:
			return heard, err
		}
		heard = true
		w.last = step.GetProgress()
		if w.progress != nil {
			w.progress(w.last)
		}
	}
}

func (w *goneWait) unfinished(err error) error {
	if w.last == nil {
		return fmt.Errorf("the service was not heard: %w", err)
	}
	return fmt.Errorf("%d pods left, %d of them held: %w", w.last.GetPods(), w.last.GetHeld(), err)
}
