package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

const (
	forgotten = 50
	// shortAge is what makes a pod old enough to be taken for abandoned, here. The default is 30 s, which the story does not have.
	shortAge = time.Second
)

// founding is why there is a finalizerd: nobody runs who would release the pods of a deleted workflow. Then one starts.
func (s *story) founding(ctx context.Context) error {
	s.say("\n5. Nothing stays stuck")
	wf, pods, err := s.castUnseen(ctx, "forgotten", scenario.Succeeds, forgotten)
	if err != nil {
		return err
	}
	s.say("   Neither finalizerd nor the workflow controller runs. Workflow forgotten has %d held pods that have succeeded.", forgotten)
	s.say("   Somebody says: kubectl delete workflow forgotten. The garbage collector follows, and deletes its pods.")
	if err := s.kubectl.RemoveWorkflow(ctx, wf); err != nil {
		return err
	}
	for _, pod := range pods {
		if err := s.awaitDeleted(ctx, pod); err != nil {
			return err
		}
	}
	if err := s.watchHeld(ctx, pods[0]); err != nil {
		return err
	}
	s.say("   finalizerd starts, with its reconciler on (and --min-age=%s, to be quick). Nobody calls it.", shortAge)
	began := time.Now()
	return s.served(ctx, []string{"--reconcile=on", "--min-age=" + shortAge.String()}, func(ctx context.Context) error {
		for _, pod := range pods {
			gone, err := s.gone(ctx, pod)
			if err != nil {
				return err
			}
			if !gone {
				return s.check(false, fmt.Sprintf("all %d pods are gone", forgotten), pod.Name+" is still there")
			}
		}
		took := time.Since(began).Round(100 * time.Millisecond)
		if err := s.check(true, fmt.Sprintf("all %d pods are gone, %s after its start", forgotten, took), ""); err != nil {
			return err
		}
		live, err := s.kubectl.GetPod(ctx, namespace, s.uncaptured.Name)
		if err != nil {
			return err
		}
		return s.check(live.UID == s.uncaptured.UID && held(live) && live.DeletionTimestamp != nil,
			fmt.Sprintf("%s of the first chapter is still held: it was deleted too, but its result is not stored", s.uncaptured.Name), describe(live))
	})
}

// awaitDeleted returns when the pod is Terminating.
func (s *story) awaitDeleted(ctx context.Context, pod scenario.Pod) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		live, err := s.kubectl.GetPod(ctx, namespace, pod.Name)
		if err != nil {
			return err
		}
		if live.DeletionTimestamp != nil {
			return nil
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	return s.check(false, "the garbage collector deletes the pods", pod.Name+" has no deletionTimestamp")
}
