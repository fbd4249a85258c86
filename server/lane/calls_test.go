package lane

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

type podCall struct {
	uid       string
	completed bool
}

type answer struct {
	V      string
	Shared bool
	Err    error
}

// callScript has a lane that an exclusive holder keeps shut until open is called,
// and a count of the runs.
type callScript struct {
	t    *testing.T
	l    *Lanes[workflow, string]
	c    *Calls[workflow, string, podCall, string]
	open func()

	mu      sync.Mutex
	runs    []string
	answers map[string]answer
	cancel  map[string]context.CancelFunc
}

func newCallScript(t *testing.T, o Options) *callScript {
	t.Helper()
	l := New[workflow, string](o)
	open, err := l.Exclusive(t.Context(), wf)
	if err != nil {
		t.Fatal(err)
	}
	return &callScript{
		t: t, l: l, c: NewCalls[workflow, string, podCall, string](l), open: open,
		answers: map[string]answer{}, cancel: map[string]context.CancelFunc{},
	}
}

// call asks under name; fn notes that it ran and takes a second, or until its
// context ends.
func (b *callScript) call(name string, call podCall) { b.callWith(b.t.Context(), name, call, nil) }

func (b *callScript) callWith(ctx context.Context, name string, call podCall, fn func(context.Context) (string, error)) {
	b.t.Helper()
	ctx, b.cancel[name] = context.WithCancel(ctx)
	if fn == nil {
		fn = func(ctx context.Context) (string, error) {
			b.note(name)
			select {
			case <-time.After(time.Second):
				return "by " + name, nil
			case <-ctx.Done():
				b.note(name + " cancelled")
				return "", context.Cause(ctx)
			}
		}
	}
	go func() {
		v, shared, err := b.c.Do(ctx, wf, "pod", call, fn)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.answers[name] = answer{v, shared, err}
	}()
	synctest.Wait()
}

func (b *callScript) note(run string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs = append(b.runs, run)
}

func (b *callScript) got(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answers[name].Err
}

func (b *callScript) hangUp(names ...string) {
	for _, name := range names {
		b.cancel[name]()
	}
	synctest.Wait()
}

func (b *callScript) want(runs []string, answers map[string]answer) {
	b.t.Helper()
	synctest.Wait()
	if d := cmp.Diff(runs, b.runs); d != "" {
		b.t.Errorf("runs (-want +got):\n%s", d)
	}
	if d := cmp.Diff(answers, b.answers, cmp.Comparer(func(a, b error) bool { return a == b })); d != "" {
		b.t.Errorf("answers (-want +got):\n%s", d)
	}
}

func TestJoinedCalls(t *testing.T) {
	one := podCall{uid: "uid-1"}
	cases := map[string]func(b *callScript){
		"equal calls that wait together share one run and one answer": func(b *callScript) {
			b.call("x", one)
			b.call("y", one)
			b.call("z", one)
			b.open()
			pass(time.Minute)
			b.want([]string{"x"}, map[string]answer{
				"x": {"by x", true, nil}, "y": {"by x", true, nil}, "z": {"by x", true, nil},
			})
		},
		"calls that differ in any part run one after another": func(b *callScript) {
			b.call("x", one)
			b.call("y", podCall{uid: "uid-2"})
			b.call("z", podCall{uid: "uid-1", completed: true})
			b.open()
			pass(time.Minute)
			b.want([]string{"x", "y", "z"}, map[string]answer{
				"x": {"by x", false, nil}, "y": {"by y", false, nil}, "z": {"by z", false, nil},
			})
		},
		"a call that comes after the run began waits for its own": func(b *callScript) {
			b.call("x", one)
			b.open()
			synctest.Wait()
			b.call("late", one)
			b.call("later", one)
			pass(time.Minute)
			b.want([]string{"x", "late"}, map[string]answer{
				"x": {"by x", false, nil}, "late": {"by late", true, nil}, "later": {"by late", true, nil},
			})
		},
		"the first caller's leaving before the run does not cancel the others, and nothing of it runs": func(b *callScript) {
			b.call("x", one)
			b.call("y", one)
			b.hangUp("x")
			b.open()
			pass(time.Minute)
			b.want([]string{"y"}, map[string]answer{
				"x": {"", false, context.Canceled}, "y": {"by y", false, nil},
			})
		},
		"the first caller's leaving during the run does not cancel the others": func(b *callScript) {
			b.call("x", one)
			b.call("y", one)
			b.open()
			synctest.Wait()
			b.hangUp("x")
			if b.got("x") != context.Canceled {
				b.t.Error("x did not leave at once")
			}
			pass(time.Minute)
			b.want([]string{"x"}, map[string]answer{
				"x": {"", false, context.Canceled}, "y": {"by x", true, nil},
			})
		},
		"the last caller's leaving during the run cancels it": func(b *callScript) {
			b.call("x", one)
			b.call("y", one)
			b.open()
			synctest.Wait()
			b.hangUp("x", "y")
			b.want([]string{"x", "x cancelled"}, map[string]answer{
				"x": {"", false, context.Canceled}, "y": {"", false, context.Canceled},
			})
		},
		"B22 a cancelled waiter leaves no write": func(b *callScript) {
			b.call("x", one)
			b.call("y", one)
			b.hangUp("y", "x")
			if d := b.l.Depth(); d.Waiters != 0 || len(b.c.waiting) != 0 {
				b.t.Errorf("still waiting: %+v", d)
			}
			b.open()
			pass(time.Minute)
			b.want(nil, map[string]answer{
				"x": {"", false, context.Canceled}, "y": {"", false, context.Canceled},
			})
		},
		"B22 a waiter that hung up at the moment of the grant leaves no write": func(b *callScript) {
			b.call("x", one)
			b.cancel["x"]()
			b.open() // before x had a turn to leave
			pass(time.Minute)
			b.want(nil, map[string]answer{"x": {"", false, context.Canceled}})
		},
		"B22 a waiter whose deadline passes leaves no write": func(b *callScript) {
			ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
			defer cancel()
			b.callWith(ctx, "x", one, nil)
			pass(2 * time.Second)
			b.open()
			pass(time.Minute)
			b.want(nil, map[string]answer{"x": {"", false, context.DeadlineExceeded}})
		},
		"a context that has ended never runs, even on a free lane": func(b *callScript) {
			b.open()
			ctx, cancel := context.WithCancel(b.t.Context())
			cancel()
			b.callWith(ctx, "x", one, nil)
			b.want(nil, map[string]answer{"x": {"", false, context.Canceled}})
		},
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newCallScript(t, Options{})
				steps(b)
				if d := b.l.Depth(); d != (Depth{}) || len(b.c.waiting) != 0 {
					t.Errorf("left behind: %+v, %d calls", d, len(b.c.waiting))
				}
			})
		})
	}
}
