package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// in moves a claim to another namespace.
func in(namespace string, c claim) claim {
	c.workflow.Namespace = namespace
	return c
}

func TestOnlyOurOwnTimeLimitIsOverload(t *testing.T) {
	cases := map[string]struct {
		deadline time.Duration // of the caller; 0: none
		want     int
	}{
		"the caller's deadline":             {time.Second, limitStart},
		"a caller who waited for a place":   {30*time.Second - time.Millisecond, limitStart},
		"the same deadline as our own":      {30 * time.Second, limitStart},
		"our own limit, and no deadline":    {0, limitStart / 2},
		"our own limit before the caller's": {31 * time.Second, limitStart / 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := scripted(func(r *http.Request) (int, string) { <-r.Context().Done(); return 0, "" }).client(t)
				ctx := t.Context()
				if tc.deadline > 0 {
					limited, cancel := context.WithTimeout(ctx, tc.deadline)
					defer cancel()
					ctx = limited
				}
				if _, err := c.Writer.Release(ctx, target, false); err == nil {
					t.Fatal("a write that hangs succeeded")
				}
				if got := c.Writer.Load().Limit; got != tc.want {
					t.Errorf("the limit is %d, want %d", got, tc.want)
				}
			})
		})
	}
}

func TestABackgroundWriteThatOnlyWaitedIsNoFailureOfThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(func(*http.Request) (int, string) { t.Error("sent"); return 200, writtenBody }).client(t)
		c.Writer.limit = newLimiter(2)
		c.Writer.limit.pause = time.Now().Add(time.Hour)
		for _, tc := range []struct {
			background bool
			want       finalizer.Kind
		}{{true, finalizer.KindThrottled}, {false, finalizer.KindDeadline}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			waiting := target
			waiting.Background = tc.background
			_, err := c.Writer.Release(ctx, waiting, false)
			if finalizer.KindOf(err) != tc.want || !strings.Contains(err.Error(), "nothing was sent") {
				t.Errorf("background %v: kind %d (%v), want %d", tc.background, finalizer.KindOf(err), err, tc.want)
			}
			cancel()
		}
	})
}

func TestBackgroundKeepsPlacesFromANamespaceThatHangs(t *testing.T) {
	cases := map[string]struct {
		limit         int
		wantWorkflow  int // the places of one workflow
		wantNamespace int // and of many workflows of its namespace
	}{
		"many places":             {64, 43, 49},
		"the limit at the start":  {16, 12, 13},
		"few places":              {5, 3, 3},
		"too few to keep one out": {4, 3, 3},
	}
	for name, tc := range cases {
		t.Run("B22: "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(tc.limit)
				l.limit = float64(tc.limit)
				hung := make(chan struct{})
				var all sync.WaitGroup
				hang := func(workflow string) {
					all.Go(func() { write(l, in("sick", background(workflow)), func() { <-hung }) })
				}
				for range 100 {
					hang("w")
				}
				synctest.Wait()
				if n := l.backgroundInFlight(); n != tc.wantWorkflow {
					t.Errorf("one workflow holds %d places, want %d", n, tc.wantWorkflow)
				}
				for i := range 100 {
					hang(fmt.Sprint(i))
				}
				synctest.Wait()
				if n := l.backgroundInFlight(); n != tc.wantNamespace {
					t.Errorf("one namespace holds %d places, want %d", n, tc.wantNamespace)
				}
				if tc.limit > 4 {
					well, cancel := context.WithTimeout(t.Context(), time.Second)
					if err := l.acquire(well, in("well", background("w"))); err != nil {
						t.Errorf("a write of another namespace finds no place: %v", err)
					} else {
						l.release(in("well", background("w")), time.Now(), signalOK, 0)
					}
					cancel()
				}
				close(hung)
				all.Wait()
				idle(t, l)
			})
		})
	}
}

// TestAHungWebhookOfOneNamespaceStopsNoOther has the writes of a namespace hang
// until their deadline for minutes, as many as the reconciler sends.
func TestAHungWebhookOfOneNamespaceStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(func(r *http.Request) (int, string) {
			if strings.Contains(r.URL.Path, "/namespaces/sick/") {
				<-r.Context().Done()
			}
			time.Sleep(5 * time.Millisecond)
			return 200, writtenBody
		}).client(t)
		release := func(ctx context.Context, namespace, workflow string) error {
			limited, cancel := context.WithTimeout(ctx, 30*time.Second) // as the reconciler's calls
			defer cancel()
			to := target
			to.Background = true
			to.Workflow = finalizer.WorkflowKey{Namespace: namespace, Name: workflow}
			to.Pod.Namespace = namespace
			_, err := c.Writer.Release(limited, to, false)
			return err
		}
		ctx, stop := context.WithCancel(t.Context())
		var sick sync.WaitGroup
		for i := range 64 {
			sick.Go(func() {
				for ctx.Err() == nil {
					_ = release(ctx, "sick", fmt.Sprint(i%8))
				}
			})
		}
		time.Sleep(5 * time.Minute)
		if got := c.Writer.Load().Limit; got < limitStart {
			t.Errorf("B22: the webhook of one namespace took the limit of all to %d", got)
		}
		for i := range 20 {
			began := time.Now()
			if err := release(ctx, "well", "w"); err != nil || time.Since(began) > time.Second {
				t.Fatalf("B22: release %d of another namespace: %v after %v", i, err, time.Since(began))
			}
		}
		stop()
		sick.Wait()
	})
}
