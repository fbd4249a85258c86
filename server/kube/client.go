package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

// Options are the settings of a Client. The zero value of each is its default.
type Options struct {
	Finalizer         string        // default finalizer.DefaultFinalizer
	MaxWritesInFlight int           // default 64; less than 2 counts as 2
	UserAgent         string        // default "finalizerd"
	WriteTimeout      time.Duration // of one write, without its wait for a turn; default 30s
	ReadTimeout       time.Duration // of one read; default 30s
	MaxUnpackedNodes  int64         // of compressedNodes, in bytes; default 64 MiB
	NodeMemory        time.Duration // how long the health of a cluster node is taken from memory; default 15s

	// Namespaces are the only ones that are watched, read and written; empty:
	// all. Order and repeats do not matter. Outside of them reads and writes are
	// KindNotServed and the cache is empty.
	Namespaces []string

	// Observe, OnPodGone and OnChange may be nil. They are called from Run and
	// from within reads and writes, concurrently; they must return fast, and
	// must not call Cache or take a lock that is held around a call here.

	// Observe is told of each request to the API server.
	Observe ObserveFunc
	// OnPodGone is told of each UID that is known to exist no more, mostly once.
	OnPodGone func(types.UID)
	// OnChange is told that something about a workflow has changed: a pod of it,
	// its metadata, or that its namespace is being deleted. The empty workflow
	// name stands for held pods without a controller owner, as in
	// finalizer.Cache. Pods of another controller are not told of.
	OnChange func(finalizer.WorkflowKey)
}

// Client is the service's view of one API server. Its exported fields are never
// nil.
type Client struct {
	Cache  *Cache
	Reader *Reader
	Writer *Writer
	Seen   *Seen
	Nodes  *Nodes
	Events *Events

	pods       *podStore
	workflows  *metaStore
	namespaces *metaStore
	faults     *faults
	onChange   func(finalizer.WorkflowKey)
	version    rest.Interface
	host       string
	watches    metadata.Interface
}

// New makes a Client and sends nothing. The error is of the configuration: a
// certificate that cannot be read, an address that is none.
func New(base *rest.Config, o Options) (*Client, error) {
	o = o.withDefaults()
	to, err := newClients(clientConfig(base, o.UserAgent, o.Observe))
	if err != nil {
		return nil, fmt.Errorf("the configuration of the API server client: %w", err)
	}
	only := reach(o.Namespaces)
	inside, selves := namespaceScopes(only)
	c := &Client{
		faults: &faults{}, onChange: o.OnChange,
		version: to.meta, host: base.Host, watches: to.watches,
	}
	c.pods = newPodStore(o.Finalizer, o.OnPodGone, o.OnChange, only...)
	c.workflows = newMetaStore(c.workflowChanged, true, inside)
	c.namespaces = newMetaStore(c.namespaceChanged, false, selves)
	c.Seen = &Seen{workflows: c.workflows, namespaces: c.namespaces, faults: c.faults}
	c.Cache = &Cache{pods: c.pods}
	c.Writer = &Writer{
		client: to.writes, finalizer: o.Finalizer, timeout: o.WriteTimeout,
		limit: newLimiter(o.MaxWritesInFlight), pods: c.pods, faults: c.faults, only: only,
	}
	c.Reader = &Reader{
		meta: to.meta, core: to.core, argo: to.argo, namespaces: c.namespaces, faults: c.faults,
		timeout: o.ReadTimeout, maxUnpacked: o.MaxUnpackedNodes, only: only,
	}
	c.Events = newEvents(&events.EventSinkImpl{Interface: to.events}, c.faults)
	c.Nodes = &Nodes{core: to.core, faults: c.faults, timeout: o.ReadTimeout, memory: o.NodeMemory}
	return c, nil
}

func (o Options) withDefaults() Options {
	if o.Finalizer == "" {
		o.Finalizer = finalizer.DefaultFinalizer
	}
	if o.MaxWritesInFlight == 0 {
		o.MaxWritesInFlight = 64
	}
	if o.UserAgent == "" {
		o.UserAgent = "finalizerd"
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 30 * time.Second
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if o.MaxUnpackedNodes <= 0 {
		o.MaxUnpackedNodes = 64 << 20
	}
	if o.NodeMemory <= 0 {
		o.NodeMemory = 15 * time.Second
	}
	o.Namespaces = slices.Compact(slices.Sorted(slices.Values(o.Namespaces)))
	return o
}

// Run watches pods, workflows and namespaces and stores events until ctx is done,
// and returns nil. It survives any failure of the API server. It is run once.
func (c *Client) Run(ctx context.Context) error {
	var all sync.WaitGroup
	run := func(gv schema.GroupVersion, resource string, sc scope, store cache.ReflectorStore) {
		r := newReflector(c.watches, gv.WithResource(resource), sc, store, c.faults)
		all.Go(func() { r.RunWithContext(ctx) })
	}
	for _, f := range c.pods.feeds {
		run(corev1.SchemeGroupVersion, podsResource, scope{namespace: f.namespace}, f)
	}
	for _, f := range c.workflows.feeds {
		run(argoVersion, workflowsResource, f.scope, f)
	}
	for _, f := range c.namespaces.feeds {
		run(corev1.SchemeGroupVersion, namespacesResource, f.scope, f)
	}
	all.Go(func() { c.Events.run(ctx) })
	all.Wait()
	return nil
}

// Synced returns nil once the first list of pods, of each namespace where they
// are watched one by one, is in the cache, and from then on. Before, it is an
// *finalizer.Error of KindNotSynced that says what is missing and, where it is a
// right, which Verb on which Resource.
func (c *Client) Synced() error {
	missing := c.pods.unsynced()
	if len(missing) == 0 {
		return nil
	}
	e := &finalizer.Error{Kind: finalizer.KindNotSynced, Message: "the first list of pods is not complete yet"}
	for _, feed := range missing {
		for _, verb := range []string{verbList, verbWatch} {
			f := c.faults.get(scope{namespace: feed.namespace}.about(verb, podsResource))
			if f == nil {
				continue
			}
			e.Message, e.Err = "the pods cannot be listed: "+f.Message, f
			if f.Kind == finalizer.KindForbidden {
				e.Verb, e.Resource = f.Verb, f.Resource
			}
			return e
		}
	}
	return e
}

// WorkflowsSynced and NamespacesSynced of a Client that lacks rights or the
// CustomResourceDefinition stay false; Faults then says why.
func (c *Client) WorkflowsSynced() bool { return len(c.workflows.unsynced()) == 0 }

// NamespacesSynced is explained at WorkflowsSynced.
func (c *Client) NamespacesSynced() bool { return len(c.namespaces.unsynced()) == 0 }

// Faults returns what does not work at present, by resource and verb: watches
// that fail for whatever cause, and reads and writes for want of a right. Each
// is of one namespace, or of the cluster, and ends when the same verb on the same
// resource succeeds there; that of a read or write also two minutes after the
// last that failed. There may be as many as namespaces.
func (c *Client) Faults() []*finalizer.Error { return c.faults.list() }

// SeenWorkflow returns what the watch tells of a workflow; a hint, as all that is
// cached.
func (c *Client) SeenWorkflow(key finalizer.WorkflowKey) (Meta, bool) {
	return c.workflows.get(types.NamespacedName(key))
}

// SeenNamespace returns what the watch tells of a namespace.
func (c *Client) SeenNamespace(name string) (Meta, bool) {
	return c.namespaces.get(types.NamespacedName{Name: name})
}

func (c *Client) workflowChanged(name types.NamespacedName, _ Meta) {
	if c.onChange != nil {
		c.onChange(finalizer.WorkflowKey(name))
	}
}

func (c *Client) namespaceChanged(name types.NamespacedName, m Meta) {
	if c.onChange == nil || !m.Deleting {
		return
	}
	for _, key := range c.pods.workflowsIn(name.Name) {
		c.onChange(key)
	}
}
