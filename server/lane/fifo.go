package lane

// fifo is a queue that gives up an element from its middle in constant time.
// The links live inside the elements, so that queueing allocates nothing and
// an element is in one queue at most.
type fifo[T any] struct {
	head, tail *link[T]
}

type link[T any] struct {
	item       *T
	in         *fifo[T]
	prev, next *link[T]
}

func (q *fifo[T]) push(n *link[T], item *T) {
	*n = link[T]{item: item, in: q, prev: q.tail}
	if q.tail == nil {
		q.head = n
	} else {
		q.tail.next = n
	}
	q.tail = n
}

// front is the oldest element, nil when there is none.
func (q *fifo[T]) front() *T {
	if q.head == nil {
		return nil
	}
	return q.head.item
}

func (q *fifo[T]) empty() bool { return q.head == nil }

// unlink takes the element out of the queue it is in, if any.
func (n *link[T]) unlink() {
	q := n.in
	if q == nil {
		return
	}
	if n.prev == nil {
		q.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		q.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	*n = link[T]{}
}
