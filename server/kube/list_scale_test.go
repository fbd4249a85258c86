package kube

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/finalizerd/finalizerd/server/finalizer"
	"github.com/finalizerd/finalizerd/server/lane"
)

// unread fails each read: what a list shows of noted pods must cost none.
type unread struct {
	finalizer.Reader
	t *testing.T
}

func (r unread) Workflow(context.Context, finalizer.WorkflowKey) (finalizer.Workflow, error) {
	r.t.Error("a list of noted pods reads a workflow")
	return finalizer.Workflow{}, &finalizer.Error{Kind: finalizer.KindUnavailable}
}

// TestB26PagesAreStableOver100000Pods lists while pods come and go before,
// between and after those that stay, some under the very names of the page's ends.
func TestB26PagesAreStableOver100000Pods(t *testing.T) {
	const pods, limit = 100_000, 1000
	store := newPodStore(fin, nil, nil)
	cached := &Cache{pods: store}
	service := finalizer.New(finalizer.Config{
		Cache: cached, Held: cached, Reader: unread{t: t}, Policy: finalizer.DefaultPolicy(),
		Lanes: lane.New[finalizer.WorkflowKey, string](lane.Options{}),
	})
	version := 0
	put := func(name, uid string, finalizers ...string) {
		version++
		m := object(name, uid, version, finalizers...)
		_ = store.feed("").Add(m)
		pod := podOf(&m.ObjectMeta)
		service.Note(&pod, finalizer.Decision{Reason: finalizer.ReasonNotCaptured}, time.Now())
	}
	for i := range pods {
		put(fmt.Sprintf("p%06d", i), fmt.Sprint("u", i), fin)
	}
	// change has some pods come and go; the others of a page that is read meanwhile
	// must not be touched by it.
	changes := 0
	change := func() {
		for range 60 {
			n := changes
			changes++
			name := fmt.Sprintf("p%06d-x", n*7919%pods) // right behind a pod that stays
			put(name, fmt.Sprint("x", n), fin)
			if n%3 > 0 {
				put(name, fmt.Sprint("x", n)) // released
			}
			if n%3 > 1 {
				version++
				_ = store.feed("").Delete(object(name, fmt.Sprint("x", n), version))
			}
		}
	}
	seen := make(map[string]int, pods)
	request := finalizer.ListRequest{Limit: limit}
	for last := ""; ; {
		var meanwhile sync.WaitGroup
		meanwhile.Go(change)
		page, err := service.ListPods(t.Context(), request)
		meanwhile.Wait()
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page.Pods {
			if v.Pod.Name <= last {
				t.Fatalf("%s after %s", v.Pod.Name, last)
			}
			last = v.Pod.Name
			seen[last]++
		}
		if !page.More {
			break
		}
		request.After = page.Next
	}
	for i := range pods {
		if name := fmt.Sprintf("p%06d", i); seen[name] != 1 {
			t.Fatalf("%s is listed %d times", name, seen[name])
		}
	}
	t.Logf("%d held pods and %d that came and went", pods, len(seen)-pods)
}
