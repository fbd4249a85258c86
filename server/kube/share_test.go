package kube

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestSharedReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		s := shared[string, int32]{timeout: time.Minute, read: func(ctx context.Context, _ string) (int32, error) {
			n := runs.Add(1)
			select {
			case <-time.After(time.Second):
				return n, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}}
		type answer struct {
			n   int32
			err error
		}
		call := func(ctx context.Context) <-chan answer {
			c := make(chan answer, 1)
			go func() {
				n, err := s.do(ctx, "k")
				c <- answer{n, err}
			}()
			synctest.Wait()
			return c
		}
		first := call(t.Context())
		leaver, leave := context.WithCancel(t.Context())
		var later []<-chan answer
		gone := call(leaver)
		for range 5 {
			later = append(later, call(t.Context()))
		}
		leave()
		if a := <-gone; !errors.Is(a.err, context.Canceled) {
			t.Errorf("the one who left got %v", a)
		}
		if a := <-first; a.n != 1 || a.err != nil {
			t.Errorf("the first got %v, want run 1", a)
		}
		for _, c := range later {
			if a := <-c; a.n != 2 || a.err != nil {
				t.Errorf("one that came during run 1 got %v, want run 2, and no harm from the one who left", a)
			}
		}
		synctest.Wait()
		if len(s.keys) != 0 {
			t.Error("an idle key holds an entry")
		}

		alone, leave := context.WithCancel(t.Context())
		c := call(alone)
		leave()
		<-c
		synctest.Wait()
		if len(s.keys) != 0 {
			t.Error("a run that all have left goes on")
		}
		if runs.Load() != 3 {
			t.Errorf("%d runs, want 3", runs.Load())
		}

		running := call(t.Context())
		waiting, leave := context.WithCancel(t.Context())
		c = call(waiting)
		leave()
		<-c
		next := call(t.Context())
		<-running
		if a := <-next; a.n != 5 || a.err != nil {
			t.Errorf("one that came after the next run was abandoned got %v, want run 5", a)
		}
	})
}

func TestSharedReadHasATimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := shared[string, int]{timeout: 3 * time.Second, read: func(ctx context.Context, _ string) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		began := time.Now()
		if _, err := s.do(t.Context(), "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if time.Since(began) != 3*time.Second {
			t.Errorf("took %v", time.Since(began))
		}
	})
}
