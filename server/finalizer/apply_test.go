package finalizer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/finalizerd/finalizerd/server/lane"
)

// found is what a reconciler has read of the pod: its status live, all else from
// the cache.
func (w *world) found(t *testing.T, s *Service, name string) Evidence {
	t.Helper()
	pod, ok := w.Pod("ns", name)
	if !ok {
		t.Fatalf("the cache has no pod %s", name)
	}
	live, _ := w.live(name)
	pod.Status = live.Status
	wf, err := s.ReadWorkflow(t.Context(), pod.workflow())
	if err != nil {
		t.Fatal(err)
	}
	return Evidence{Pod: pod, Workflow: wf, Remembered: s.Remembered(pod.UID), Now: time.Now()}
}

// hiddenPod has its node running, and was labelled completed a minute ago.
func hiddenPod(w *world, change ...func(*Pod)) func(*Evidence) {
	w.put(podOf(flowA, "p", append([]func(*Pod){running, func(p *Pod) { p.Completed = true }}, change...)...))
	w.flow(flowA, map[string]string{"p": "Running"})
	return func(e *Evidence) { e.HiddenSince = e.Now.Add(-time.Minute) }
}

func capturedPod(w *world, change ...func(*Pod)) {
	w.put(podOf(flowA, "p", change...))
	w.flow(flowA, map[string]string{"p": "Succeeded"})
}

// begunPod never started when it was looked at.
func begunPod(w *world) {
	w.put(podOf(flowA, "p", pending, terminating(30)))
	w.flow(flowA, map[string]string{"p": "Pending"})
}

func TestApply(t *testing.T) {
	released, unhidden := []string{"release p/uid-p"}, []string{"unhide p/uid-p"}
	plain := func(f func(*world, ...func(*Pod)), change ...func(*Pod)) func(*world) func(*Evidence) {
		return func(w *world) func(*Evidence) { f(w, change...); return nil }
	}
	hidden := func(change ...func(*Pod)) func(*world) func(*Evidence) {
		return func(w *world) func(*Evidence) { return hiddenPod(w, change...) }
	}
	bump := func(*Pod) {}
	for _, c := range []struct {
		name      string
		prepare   func(*world) func(*Evidence)
		meanwhile func(*world)
		want      Outcome
		kind      Kind // with no outcome
		writes    []string
	}{
		{name: "a release is one write", prepare: plain(capturedPod), want: OutcomeReleased, writes: released},
		{name: "a foreign finalizer does not matter", prepare: plain(capturedPod, withFinalizers("x", fin)), want: OutcomeReleased, writes: released},
		{name: "a change that does not matter does not stop it", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.change("p", bump) }, want: OutcomeReleased, writes: released},
		{name: "B4 a pod that was released meanwhile is not written to", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.change("p", func(p *Pod) { p.Finalizers = nil }) }},
		{name: "a captured pod that got its deletion meanwhile is released all the same", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.change("p", terminating(30)) }, want: OutcomeReleased, writes: released},
		{name: "a pod that passed to another instance meanwhile is not written to", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.change("p", func(p *Pod) { p.InstanceID = "other" }) }},
		{name: "one that was labelled meanwhile has another reason and is looked at again", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.change("p", func(p *Pod) { p.Completed = true }) }},
		{name: "B18 a pod that never started is released",
			prepare: func(w *world) func(*Evidence) { begunPod(w); return nil }, want: OutcomeReleased, writes: released},
		{name: "B18 one that changed since its status was read may have started: nothing is written",
			prepare:   func(w *world) func(*Evidence) { begunPod(w); return nil },
			meanwhile: func(w *world) { w.change("p", running) }},
		{name: "B12 B18 one that only has another version since is released, after a look at its status",
			prepare:   func(w *world) func(*Evidence) { begunPod(w); return nil },
			meanwhile: func(w *world) { w.change("p", bump) }, want: OutcomeReleased, writes: released},
		{name: "B4 B18 one that the look finds gone is an outcome without a write",
			prepare:   func(w *world) func(*Evidence) { begunPod(w); return nil },
			meanwhile: func(w *world) { w.change("p", bump); w.lagging = true; w.remove("p") }, want: OutcomeGone},
		{name: "B1 B18 one whose name the look finds passed to another UID too",
			prepare: func(w *world) func(*Evidence) { begunPod(w); return nil },
			meanwhile: func(w *world) {
				w.change("p", bump)
				w.lagging = true
				w.put(podOf(flowA, "p", pending, terminating(30), withUID("uid-2")))
			}, want: OutcomeGone},
		{name: "B6 B18 a look that fails is an error without a write",
			prepare:   func(w *world) func(*Evidence) { begunPod(w); return nil },
			meanwhile: func(w *world) { w.change("p", bump); w.podErr["p"] = unavailable() }, kind: KindUnavailable},
		{name: "B4 a pod that has gone is an outcome without a write", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.remove("p") }, want: OutcomeGone},
		{name: "B1 so is one whose name passed to another UID", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.put(podOf(flowA, "p", withUID("uid-2"))) }, want: OutcomeGone},
		{name: "B4 one whose end the cache does not know yet is an outcome too", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.lagging = true; w.remove("p") }, want: OutcomeGone, writes: released},
		{name: "B1 another UID that the cache does not know yet is refused by the API server", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.lagging = true; w.put(podOf(flowA, "p", withUID("uid-2"))) }, kind: KindReplaced, writes: released},
		{name: "a throttled write is an error, and not tried again here", prepare: plain(capturedPod),
			meanwhile: func(w *world) { w.fault["uid-p"] = failing(1, throttled()) }, kind: KindThrottled, writes: released},

		{name: "B44 a held pod is unhidden: only its label changes", prepare: hidden(), want: OutcomeAlreadyHeld, writes: unhidden},
		{name: "B44 one that is not held gets the finalizer again", prepare: hidden(withFinalizers("x")), want: OutcomeAdded, writes: unhidden},
		{name: "B44 unless it is terminating", prepare: hidden(withFinalizers("x"), terminating(30)), want: OutcomeAlreadyHeld, writes: unhidden},
		{name: "B44 B5 or becomes so between the cache and the write", prepare: hidden(withFinalizers("x")),
			meanwhile: func(w *world) { w.lagging = true; w.change("p", terminating(30)) },
			want:      OutcomeAlreadyHeld, writes: []string{unhidden[0], unhidden[0]}},
		{name: "B44 one whose label was taken back meanwhile is not written to", prepare: hidden(),
			meanwhile: func(w *world) { w.change("p", func(p *Pod) { p.Completed = false }) }},
		{name: "B44 one that has gone is an outcome", prepare: hidden(),
			meanwhile: func(w *world) { w.lagging = true; w.remove("p") }, want: OutcomeGone, writes: unhidden},
		{name: "B1 B44 another UID is refused by the API server", prepare: hidden(),
			meanwhile: func(w *world) { w.lagging = true; w.put(podOf(flowA, "p", withUID("uid-2"))) }, kind: KindReplaced, writes: unhidden},
		{name: "B44 an unhide that the API server throttles is an error", prepare: hidden(),
			meanwhile: func(w *world) { w.fault["uid-p"] = failing(1, throttled()) }, kind: KindThrottled, writes: unhidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			s := w.service()
			change := c.prepare(w)
			e := w.found(t, s, "p")
			if change != nil {
				change(&e)
			}
			d := s.policy.Decide(e)
			if d.Action == ActionKeep {
				t.Fatalf("the rule keeps: %+v", d)
			}
			if c.meanwhile != nil {
				c.meanwhile(w)
			}
			got, err := s.Apply(t.Context(), e, d)
			switch {
			case c.kind != KindInternal:
				wantKind(t, err, c.kind)
			case err != nil || got.Outcome != c.want || got.Reason != d.Reason:
				t.Errorf("got outcome %d, reason %v, error %v; want %d, %v", got.Outcome, got.Reason, err, c.want, d.Reason)
			}
			wantWrites(t, w, c.writes...)
			for _, a := range w.accesses(access.write) {
				if !a.Background || a.Flow != flowA {
					t.Errorf("not in the background of its workflow: %+v", a)
				}
			}
		})
	}
}

func TestB44AnUnhiddenPodIsSeenAndHeldAgain(t *testing.T) {
	for name, c := range map[string]struct {
		change []func(*Pod)
		held   bool
	}{
		"held":                      {nil, true},
		"not held":                  {[]func(*Pod){withFinalizers("x")}, true},
		"not held, and terminating": {[]func(*Pod){withFinalizers("x"), terminating(30)}, false},
		"held, and terminating":     {[]func(*Pod){terminating(30)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			s := w.service()
			change := hiddenPod(w, c.change...)
			e := w.found(t, s, "p")
			change(&e)
			if _, err := s.Apply(t.Context(), e, s.policy.Decide(e)); err != nil {
				t.Fatal(err)
			}
			if p, _ := w.live("p"); p.Completed || p.Has(fin) != c.held {
				t.Errorf("pod: %+v", p)
			}
			wantWrites(t, w, "unhide p/uid-p")
		})
	}
}

func TestB36ApplyLabelsInTheSameWrite(t *testing.T) {
	w := newWorld()
	s := w.service()
	capturedPod(w)
	w.change("p", func(*Pod) {})
	wf := w.flows[flowA]
	wf.Completed = true
	w.setFlow(wf)
	e := w.found(t, s, "p")
	if _, err := s.Apply(t.Context(), e, s.policy.Decide(e)); err != nil {
		t.Fatal(err)
	}
	wantWrites(t, w, "release p/uid-p")
	if p, _ := w.live("p"); !p.Completed || p.Has(fin) {
		t.Errorf("pod: %+v", p)
	}
}

func TestApplyRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		decide func(Decision) Decision
		kind   Kind
	}{
		"a decision to keep":                {nil, func(Decision) Decision { return Decision{Reason: ReasonNotCaptured} }, KindInternal},
		"B8 a namespace that is not served": {func(c *Config) { c.Namespaces = []string{"other"} }, nil, KindNotServed},
		"before the caches are filled":      {func(c *Config) { c.Synced = func() error { return &Error{Kind: KindNotSynced} } }, nil, KindNotSynced},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			capturedPod(w)
			var s *Service
			if s = w.service(); c.change != nil {
				s = w.service(c.change)
			}
			e := w.found(t, s, "p")
			d := s.policy.Decide(e)
			if c.decide != nil {
				d = c.decide(d)
			}
			_, err := s.Apply(t.Context(), e, d)
			wantKind(t, err, c.kind)
			wantWrites(t, w)
		})
	}
	t.Run("to unhide without an unhider", func(t *testing.T) {
		w := newWorld()
		change := hiddenPod(w)
		s := w.service(func(c *Config) { c.Unhider = nil })
		e := w.found(t, s, "p")
		change(&e)
		if got, err := s.Apply(t.Context(), e, s.policy.Decide(e)); err != nil || got.Outcome != OutcomeUnknown {
			t.Errorf("got %+v, %v", got, err)
		}
		wantWrites(t, w)
	})
}

func TestB22ApplyWaitsForABulkCallAndSharesOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.service()
		capturedPod(w)
		w.put(podOf(flowB, "q"))
		w.flow(flowB, map[string]string{"q": "Succeeded"})
		w.latency = 10 * time.Millisecond
		e, other := w.found(t, s, "p"), w.found(t, s, "q")
		d := s.policy.Decide(e)
		hold, err := s.lanes.Exclusive(t.Context(), flowA)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		got := map[Outcome]int{}
		for range 20 {
			go func() {
				res, err := s.Apply(t.Context(), e, d)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				got[res.Outcome]++
			}()
		}
		time.Sleep(time.Minute)
		wantWrites(t, w)
		if _, err := s.Apply(t.Context(), other, s.policy.Decide(other)); err != nil {
			t.Error(err)
		}
		wantWrites(t, w, "release q/uid-q") // other workflows go on meanwhile
		hold()
		time.Sleep(time.Minute)
		wantWrites(t, w, "release q/uid-q", "release p/uid-p")
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff(map[Outcome]int{OutcomeReleased: 20}, got); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		if d := s.lanes.Depth(); d != (lane.Depth{}) {
			t.Errorf("lanes: %+v", d)
		}
	})
}

func TestB22ApplyDecidesAgainAfterItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.service()
		capturedPod(w)
		e := w.found(t, s, "p")
		hold, err := s.lanes.Exclusive(t.Context(), flowA)
		if err != nil {
			t.Fatal(err)
		}
		var got Result
		go func() { got, err = s.Apply(t.Context(), e, s.policy.Decide(e)) }()
		synctest.Wait()
		w.change("p", func(p *Pod) { p.Finalizers = nil })
		hold()
		synctest.Wait()
		if err != nil || got.Outcome != OutcomeUnknown {
			t.Errorf("got %+v, %v", got, err)
		}
		wantWrites(t, w)
	})
}

func TestApplyLeavesAFullLaneAndOneThatIsTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.service(func(c *Config) { c.Lanes = lane.New[WorkflowKey, string](lane.Options{MaxWaiters: 1}) })
		capturedPod(w)
		e := w.found(t, s, "p")
		d := s.policy.Decide(e)
		hold, err := s.lanes.Exclusive(t.Context(), flowA)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { _, _ = s.AddFinalizer(ctx, AddRequest{Pod: captureOf("p").Pod}) }()
		synctest.Wait()
		_, err = s.Apply(t.Context(), e, d)
		wantKind(t, err, KindBusy)
		<-ctx.Done()
		synctest.Wait()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.Apply(ctx, e, d)
		wantKind(t, err, KindDeadline)
		hold()
		synctest.Wait()
		wantWrites(t, w)
	})
}
