package finalizer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// heard is a step with when it came, reduced to names.
type heard struct {
	At                           time.Duration
	Snapshot                     bool
	Changed, Gone                []string
	Total, Held, Ending, AllGone int
}

// listen runs a watch until it ends and returns its steps.
func listen(ctx context.Context, s *Service, r WatchRequest) ([]heard, error) {
	var out []heard
	began := time.Now()
	err := s.Watch(ctx, r, func(st Step) error {
		h := heard{
			At: time.Since(began), Snapshot: st.Snapshot,
			Total: st.TotalPods, Held: st.HeldPods, Ending: st.TerminatingPods, AllGone: st.GonePods,
		}
		for _, v := range st.Changed {
			h.Changed = append(h.Changed, v.Pod.Name)
		}
		for _, p := range st.Gone {
			h.Gone = append(h.Gone, p.Name)
		}
		out = append(out, h)
		return nil
	})
	return out, err
}

func TestWatchSendsASnapshotThenChangesJoinedUntilReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"), podOf(flowA, "q"), podOf(flowB, "other"))
		s := w.service()
		w.lagging = true
		at := func(d time.Duration, f func()) { time.AfterFunc(d, func() { f(); w.catchUp() }) }
		at(time.Second, func() {
			w.change("p", func(p *Pod) { p.Finalizers = nil })
			w.put(podOf(flowA, "r"))
			w.change("other", func(p *Pod) { p.Finalizers = nil })
		})
		at(1050*time.Millisecond, func() { w.change("q", func(p *Pod) { p.DeletedAt = time.Now(); p.GraceSeconds = 9 }) })
		at(1100*time.Millisecond, func() { w.remove("p") })
		at(5*time.Second, func() {
			for _, n := range []string{"q", "r"} {
				w.change(n, func(p *Pod) { p.Finalizers = nil })
			}
		})
		got, err := listen(t.Context(), s, WatchRequest{Workflow: flowA, Until: UntilReleased})
		if err != nil {
			t.Fatal(err)
		}
		want := []heard{
			{Snapshot: true, Changed: []string{"p", "q"}, Total: 2, Held: 2},
			{At: 1 * time.Second, Changed: []string{"p", "r"}, Total: 3, Held: 2},
			{At: 1200 * time.Millisecond, Changed: []string{"q"}, Gone: []string{"p"}, Total: 2, Held: 2, Ending: 1, AllGone: 1},
			{At: 5 * time.Second, Changed: []string{"q", "r"}, Total: 2, Ending: 1, AllGone: 1},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if n := w.subscriptions(); n != 0 {
			t.Errorf("%d subscriptions are left", n)
		}
	})
}

func TestWatchNeverSendsTwoStepsWithinItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.service()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		go func() {
			time.Sleep(time.Second + 190*time.Millisecond) // just before a tick
			for i := range 300 {
				w.put(podOf(flowA, fmt.Sprint("p", i)))
				time.Sleep(7 * time.Millisecond)
			}
		}()
		got, err := listen(ctx, s, WatchRequest{Workflow: flowA})
		wantKind(t, err, KindDeadline)
		for i := 1; i < len(got); i++ {
			if d := got[i].At - got[i-1].At; d < watchInterval {
				t.Errorf("step %d came %v after the one before", i, d)
			}
		}
		if n := got[len(got)-1].Total; n != 300 || len(got) > 14 {
			t.Errorf("%d pods in %d steps", n, len(got))
		}
	})
}

func TestWatchUntilGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.service()
		for _, until := range []Until{UntilReleased, UntilGone} {
			got, err := listen(t.Context(), s, WatchRequest{Workflow: flowA, Until: until})
			if diff := cmp.Diff([]heard{{Snapshot: true}}, got); err != nil || diff != "" {
				t.Errorf("without pods: error %v, steps (-want +got):\n%s", err, diff)
			}
		}
		w.put(podOf(flowA, "p", withFinalizers()), podOf(flowA, "old", func(p *Pod) { p.Owner.UID = "old" }))
		time.AfterFunc(3*time.Second, func() { w.remove("p") })
		got, err := listen(t.Context(), s, WatchRequest{Workflow: flowA, WorkflowUID: flowUID(flowA), Until: UntilGone})
		want := []heard{
			{Snapshot: true, Changed: []string{"p"}, Total: 1},
			{At: 3 * time.Second, Gone: []string{"p"}, AllGone: 1},
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("error %v, steps (-want +got):\n%s", err, diff)
		}
	})
}

func TestB31WatchTellsAPodFromItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put(podOf(flowA, "p"))
		s := w.service()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		time.AfterFunc(time.Second, func() { w.put(podOf(flowA, "p", withUID("uid-2"))) })
		got, _ := listen(ctx, s, WatchRequest{Workflow: flowA})
		want := []heard{
			{Snapshot: true, Changed: []string{"p"}, Total: 1, Held: 1},
			{At: time.Second, Changed: []string{"p"}, Gone: []string{"p"}, Total: 1, Held: 1, AllGone: 1},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
	})
}

func TestB26WatchShowsTheProgressOfABulkCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.latency = 100 * time.Millisecond
		for i := range 50 {
			w.put(podOf(flowA, fmt.Sprintf("p%02d", i)))
		}
		s := w.service(func(c *Config) { c.Workers = 1 })
		var works []*Work
		done := make(chan error)
		go func() {
			done <- s.Watch(t.Context(), WatchRequest{Workflow: flowA, Until: UntilGone}, func(st Step) error {
				works = append(works, st.Work)
				return nil
			})
		}()
		time.Sleep(time.Second)
		if _, err := s.Bulk(t.Context(), deleteAll(flowA)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if len(works) < 40 || works[0] != nil {
			t.Fatalf("%d steps, first %+v", len(works), works[0])
		}
		for i := 2; i < len(works)-1; i++ {
			if works[i] == nil || works[i].Total != 50 || !works[i].Delete || works[i].Done < works[i-1].Done {
				t.Errorf("step %d: %+v after %+v", i, works[i], works[i-1])
			}
		}
	})
}

func TestWatchEndsWithItsCallerAndLeavesNothing(t *testing.T) {
	broken := errors.New("the stream broke")
	for name, c := range map[string]struct {
		send func() error
		kind Kind
	}{
		"by the deadline": {send: func() error { return nil }, kind: KindDeadline},
		"by send":         {send: func() error { return broken }, kind: KindInternal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // which fails when a goroutine is left
				w := newWorld()
				w.put(podOf(flowA, "p"))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err := w.service().Watch(ctx, WatchRequest{Workflow: flowA}, func(Step) error { return c.send() })
				wantKind(t, err, c.kind)
				if n := w.subscriptions(); n != 0 {
					t.Errorf("%d subscriptions are left", n)
				}
				wantCounts(t, w, map[string]int{})
			})
		})
	}
}
