package lane

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

type workflow struct{ namespace, name string }

var wf = workflow{"ns", "wf"}

// pass lets the bubble's clock run on.
func pass(d time.Duration) { <-time.After(d) }

// script drives lanes inside a synctest bubble by named steps and notes in
// which order they are granted.
type script struct {
	t *testing.T
	l *Lanes[workflow, string]

	mu      sync.Mutex
	granted []string
	errs    map[string]error
	release map[string]func()
	cancel  map[string]context.CancelFunc
}

func newScript(t *testing.T, o Options) *script {
	return &script{
		t: t, l: New[workflow, string](o), errs: map[string]error{},
		release: map[string]func(){}, cancel: map[string]context.CancelFunc{},
	}
}

// ask arrives under name: exclusive when sub is empty.
func (s *script) ask(name, sub string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.cancel[name] = cancel
	go func() {
		var release func()
		var err error
		if sub == "" {
			release, err = s.l.Exclusive(ctx, wf)
		} else {
			release, err = s.l.Shared(ctx, wf, sub)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.errs[name] = err
			return
		}
		s.release[name] = release
		s.granted = append(s.granted, name)
	}()
	synctest.Wait()
}

func (s *script) end(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if s.release[name] == nil {
			s.t.Fatalf("%s does not hold; granted so far: %q", name, s.granted)
		}
		s.release[name]()
		synctest.Wait()
	}
}

func (s *script) hangUp(name string) {
	s.t.Helper()
	s.cancel[name]()
	synctest.Wait()
}

func (s *script) wantGranted(names ...string) {
	s.t.Helper()
	if d := cmp.Diff(names, s.granted); d != "" {
		s.t.Fatalf("granted (-want +got):\n%s", d)
	}
}

func (s *script) wantDepth(want Depth) {
	s.t.Helper()
	if d := cmp.Diff(want, s.l.Depth()); d != "" {
		s.t.Fatalf("depth (-want +got):\n%s", d)
	}
}

func TestOrderWithinOneLane(t *testing.T) {
	cases := map[string]func(s *script){
		"B22 exclusive holders run one after another in order of arrival": func(s *script) {
			s.ask("e1", "")
			s.ask("e2", "")
			s.ask("e3", "")
			s.wantGranted("e1")
			s.end("e1")
			s.wantGranted("e1", "e2")
			s.end("e2", "e3")
		},
		"shared holders of different subs run side by side": func(s *script) {
			s.ask("a", "pod-a")
			s.ask("b", "pod-b")
			s.wantGranted("a", "b")
			s.end("a", "b")
		},
		"shared holders of one sub run one after another in order of arrival": func(s *script) {
			s.ask("a1", "pod-a")
			s.ask("a2", "pod-a")
			s.ask("a3", "pod-a")
			s.wantGranted("a1")
			s.end("a1", "a2")
			s.wantGranted("a1", "a2", "a3")
			s.end("a3")
		},
		"a shared waiter passes an earlier one of another sub": func(s *script) {
			s.ask("a1", "pod-a")
			s.ask("a2", "pod-a")
			s.ask("b", "pod-b")
			s.wantGranted("a1", "b")
			s.end("a1", "a2", "b")
		},
		"a shared waiter never passes an exclusive one": func(s *script) {
			s.ask("a", "pod-a")
			s.ask("e", "")
			s.ask("b", "pod-b")
			s.wantGranted("a")
			s.end("a")
			s.wantGranted("a", "e")
			s.end("e")
			s.wantGranted("a", "e", "b")
			s.end("b")
		},
		"an exclusive waiter waits for the shared waiters before it": func(s *script) {
			s.ask("a1", "pod-a")
			s.ask("a2", "pod-a")
			s.ask("e", "")
			s.end("a1")
			s.wantGranted("a1", "a2")
			s.end("a2", "e")
		},
		"a run of shared waiters goes together once the exclusive one before it is done": func(s *script) {
			s.ask("e1", "")
			s.ask("a1", "pod-a")
			s.ask("a2", "pod-a")
			s.ask("e2", "")
			s.ask("b", "pod-b")
			s.end("e1")
			s.wantGranted("e1", "a1")
			s.end("a1", "a2", "e2", "b")
			s.wantGranted("e1", "a1", "a2", "e2", "b")
		},
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(t, Options{})
				steps(s)
				s.wantDepth(Depth{})
			})
		})
	}
}

func TestCancelledWaiterLeaves(t *testing.T) {
	cases := map[string]func(s *script){
		"a cancelled exclusive at the head lets the shared ones behind it go at once": func(s *script) {
			s.ask("a", "pod-a")
			s.ask("e", "")
			s.ask("b", "pod-b")
			s.hangUp("e")
			s.wantGranted("a", "b")
			s.end("a", "b")
		},
		"a cancelled exclusive between two others is passed over": func(s *script) {
			s.ask("e1", "")
			s.ask("e2", "")
			s.ask("e3", "")
			s.hangUp("e2")
			s.end("e1")
			s.wantGranted("e1", "e3")
			s.end("e3")
		},
		"a cancelled shared waiter leaves its sub's queue": func(s *script) {
			s.ask("a1", "pod-a")
			s.ask("a2", "pod-a")
			s.ask("a3", "pod-a")
			s.hangUp("a2")
			s.end("a1")
			s.wantGranted("a1", "a3")
			s.end("a3")
		},
		"the last waiter of the line may be cancelled and the line goes on": func(s *script) {
			s.ask("e1", "")
			s.ask("a", "pod-a")
			s.hangUp("a")
			s.ask("b", "pod-b")
			s.end("e1")
			s.wantGranted("e1", "b")
			s.end("b")
		},
		"cancelling a holder's context does not release it": func(s *script) {
			s.ask("e1", "")
			s.hangUp("e1")
			s.ask("e2", "")
			s.wantGranted("e1")
			s.end("e1", "e2")
		},
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(t, Options{})
				steps(s)
				s.wantDepth(Depth{})
				for who, err := range s.errs {
					if err != context.Canceled {
						t.Errorf("%s got %v, want context.Canceled", who, err)
					}
				}
			})
		})
	}
}

func TestDeadlineEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[workflow, string](Options{})
		release, err := l.Exclusive(t.Context(), wf)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := l.Shared(ctx, wf, "pod"); err != context.DeadlineExceeded {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		if got := time.Since(start); got != 3*time.Second {
			t.Errorf("left after %v, want 3s", got)
		}
		release()
	})
}

func TestDoneContextIsNeverGranted(t *testing.T) {
	l := New[workflow, string](Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		if release, err := l.Exclusive(ctx, wf); err != context.Canceled || release != nil {
			t.Fatalf("Exclusive on a free lane: %v", err)
		}
		if release, err := l.Shared(ctx, wf, "pod"); err != context.Canceled || release != nil {
			t.Fatalf("Shared on a free lane: %v", err)
		}
	}
	if d := l.Depth(); d != (Depth{}) {
		t.Errorf("depth %+v", d)
	}
}

func TestGrantThatRacesWithCancellationIsGivenOn(t *testing.T) {
	for _, kind := range []Kind{KindExclusive, KindShared} {
		t.Run(kind.String(), func(t *testing.T) {
			l := New[workflow, string](Options{})
			release, err := l.Exclusive(t.Context(), wf)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			first, err := l.arrive(kind, wf, "pod")
			if err != nil {
				t.Fatal(err)
			}
			second, err := l.arrive(kind, wf, "pod")
			if err != nil {
				t.Fatal(err)
			}
			release()
			cancel()
			if err := l.await(ctx, first); err != context.Canceled {
				t.Errorf("granted and cancelled: got %v, want Canceled", err)
			}
			select {
			case <-second.granted:
			default:
				t.Error("the grant was lost")
			}
			l.leave(second)
			if d := l.Depth(); d != (Depth{}) {
				t.Errorf("depth %+v", d)
			}
		})
	}
}

func TestReleaseIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, Options{})
		s.ask("e1", "")
		s.ask("e2", "")
		s.ask("e3", "")
		s.end("e1", "e1", "e1")
		s.wantGranted("e1", "e2")
		s.end("e2", "e3", "e2", "e3")
		s.wantDepth(Depth{})
		// A stale release must not touch a later lane of the same key.
		s.ask("a", "pod-a")
		s.end("e1", "e3")
		s.wantDepth(Depth{Lanes: 1, Holders: 1})
		s.end("a")
	})
}

func TestB22OtherWorkflowsGoOn(t *testing.T) {
	l := New[workflow, string](Options{})
	release, err := l.Exclusive(t.Context(), wf)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, other := range []workflow{{"ns", "other"}, {"other", "wf"}, {"", "ns/wf"}} {
		done, err := l.Exclusive(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		done()
	}
}
