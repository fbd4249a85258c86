package finalizer

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func waitFor(d time.Duration, names ...string) BulkRequest {
	r := deleteRefs(names...)
	r.Wait, r.WaitTimeout = true, d
	return r
}

func TestB24WaitReturnsOnceTheUIDsAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p", running), podOf(flowA, "q", withFinalizers(fin, "other")), podOf(flowA, "r"))
		w.grace["uid-p"] = 30
		s := w.service()
		time.AfterFunc(10*time.Second, func() { w.kubelet("p") })
		time.AfterFunc(20*time.Second, func() { w.change("q", func(p *Pod) { p.Finalizers = nil }) })
		began := time.Now()
		got, err := s.Bulk(t.Context(), waitFor(0, "p", "q", "r"))
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, map[string]Outcome{"p": OutcomeDeleted, "q": OutcomeDeleted, "r": OutcomeDeleted})
		for _, r := range got {
			if r.Message != "" || r.Foreign != nil || r.Reason != ReasonAsserted {
				t.Errorf("%+v", r)
			}
		}
		if d := time.Since(began); d != 20*time.Second {
			t.Errorf("it took %v", d)
		}
		if n := w.subscriptions(); n != 0 {
			t.Errorf("%d subscriptions are left", n)
		}
	})
}

func TestB24WithoutWaitTheAnswerSaysWhatIsLeft(t *testing.T) {
	w := newWorld()
	w.put(podOf(flowA, "p", running), podOf(flowA, "q", withFinalizers("one", fin, "two")))
	w.grace["uid-p"] = 30
	got, err := w.service().Bulk(t.Context(), deleteRefs("p", "q"))
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, map[string]Outcome{"p": OutcomeDeleting, "q": OutcomeHeldByForeign})
	if diff := cmp.Diff([]string{"one", "two"}, got[1].Foreign); diff != "" {
		t.Errorf("foreign (-want +got):\n%s", diff)
	}
}

func TestB24WhenTheTimeToWaitIsUpTheAnswerNamesWhatHoldsEach(t *testing.T) {
	for name, c := range map[string]struct {
		wait, deadline, want time.Duration
	}{
		"the request's":     {wait: 5 * time.Second, want: 5 * time.Second},
		"the call's":        {deadline: 20 * time.Second, want: 19 * time.Second},
		"whichever is less": {wait: time.Hour, deadline: 20 * time.Second, want: 19 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.put(podOf(flowA, "p", running), podOf(flowA, "q", withFinalizers(fin, "one", "two")), podOf(flowA, "r", running))
				w.grace["uid-p"], w.grace["uid-r"] = 3600, 3600
				time.AfterFunc(time.Second, func() { w.change("q", func(p *Pod) { p.Finalizers = []string{"two"} }) })
				time.AfterFunc(2*time.Second, func() { w.change("r", func(p *Pod) { p.Finalizers = []string{fin} }) })
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				began := time.Now()
				got, err := w.service().Bulk(ctx, waitFor(c.wait, "p", "q", "r"))
				if err != nil || ctx.Err() != nil {
					t.Fatal(err, ctx.Err())
				}
				if d := time.Since(began); d != c.want {
					t.Errorf("it took %v, want %v", d, c.want)
				}
				wantOutcomes(t, got, map[string]Outcome{"p": OutcomeDeleting, "q": OutcomeHeldByForeign, "r": OutcomeFailed})
				if !strings.Contains(got[0].Message, "3600 s") {
					t.Errorf("the grace period is not told: %q", got[0].Message)
				}
				if diff := cmp.Diff([]string{"two"}, got[1].Foreign); diff != "" {
					t.Errorf("foreign (-want +got):\n%s", diff)
				}
				if got[2].Err == nil || got[2].Err.Kind != KindUnavailable {
					t.Errorf("a finalizer that came back: %+v", got[2])
				}
			})
		})
	}
}

func TestB24AbsenceInACacheThatNeverKnewThePodIsNotGone(t *testing.T) {
	held := podOf(flowA, "p", terminating(0), withFinalizers("other"))
	t.Run("it is still there when the time is up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.lagging = true
			w.put(held)
			got, err := w.service().Bulk(t.Context(), waitFor(5*time.Second, "p"))
			if err != nil {
				t.Fatal(err)
			}
			wantOutcomes(t, got, map[string]Outcome{"p": OutcomeHeldByForeign})
		})
	})
	t.Run("a cache that still shows an older UID of the name is no proof either", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.put(podOf(flowA, "p", withUID("older")))
			w.lagging = true
			w.put(held)
			got, err := w.service().Bulk(t.Context(), waitFor(5*time.Second, "p"))
			if err != nil {
				t.Fatal(err)
			}
			wantOutcomes(t, got, map[string]Outcome{"p": OutcomeHeldByForeign})
		})
	})
	t.Run("it goes without the cache ever hearing of it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.lagging = true
			w.put(held)
			time.AfterFunc(10*time.Second, func() { w.remove("p") })
			began := time.Now()
			got, err := w.service().Bulk(t.Context(), waitFor(time.Minute, "p"))
			if err != nil {
				t.Fatal(err)
			}
			wantOutcomes(t, got, map[string]Outcome{"p": OutcomeDeleted})
			if d := time.Since(began); d > 12*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	})
	t.Run("a read that fails is no proof", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.lagging = true
			w.put(held)
			s := w.service()
			time.AfterFunc(time.Second/2, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.podErr["p"] = unavailable()
			})
			got, err := s.Bulk(t.Context(), waitFor(5*time.Second, "p"))
			if err != nil {
				t.Fatal(err)
			}
			wantOutcomes(t, got, map[string]Outcome{"p": OutcomeHeldByForeign})
		})
	})
}

func TestB31TheLaneIsFreeWhileACallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p", running), podOf(flowA, "q"))
		w.grace["uid-p"] = 30
		s := w.service()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.Bulk(t.Context(), waitFor(20*time.Second, "p"))
		}()
		time.Sleep(time.Second)
		began := time.Now()
		if _, err := s.ReleasePod(t.Context(), captureOf("q")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Bulk(t.Context(), BulkRequest{Workflow: flowA, All: true, Force: true}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("they waited %v", d)
		}
		<-done
	})
}

func TestB24ACallerThatHangsUpEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p", running))
		w.grace["uid-p"] = 30
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, _ = w.service().Bulk(ctx, waitFor(0, "p"))
		if d := time.Since(began); d != time.Second || w.subscriptions() != 0 {
			t.Errorf("it took %v, %d subscriptions are left", d, w.subscriptions())
		}
	})
}
