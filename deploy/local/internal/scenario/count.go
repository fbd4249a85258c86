package scenario

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// countPeriod is long, since counting many pods costs the API server as much as some hundred small requests.
const countPeriod = 3 * time.Second

// WaitTerminating returns once so many pods of the namespace are Terminating. It tells progress how many there are, and
// fails only when ctx ends.
func (c *Cluster) WaitTerminating(ctx context.Context, namespace string, pods int, progress func(terminating int)) error {
	ticker := time.NewTicker(countPeriod)
	defer ticker.Stop()
	for {
		// From the API server's cache: the exact moment does not matter.
		list, err := c.pods.Namespace(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		terminating := 0
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp != nil {
				terminating++
			}
		}
		if terminating >= pods {
			return nil
		}
		progress(terminating)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods of namespace %s are Terminating: %w", terminating, pods, namespace, ctx.Err())
		case <-ticker.C:
		}
	}
}

// CountPods returns how many pods the namespace has.
func (c *Cluster) CountPods(ctx context.Context, namespace string) (int, error) {
	list, err := c.pods.Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	n := len(list.Items)
	if rest := list.RemainingItemCount; rest != nil {
		n += int(*rest)
	}
	return n, nil
}
