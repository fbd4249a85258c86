package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

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

	// Observe, OnPodGone and OnChange may be nil. They are called from Run and
	// from within reads and writes, concurrently; they must return fast, and
	// must not call Cache or take a lock that is held around a call here.

	// Observe is told of each request to the API server.
	Observe ObserveFunc
	// OnPodGone is told of each UID that is known to exist no more, mostly once.
	OnPodGone func(types.UID)
	// OnChange is told that something about a workflow has changed: a pod of it,
	// its metadata, or that its namespace is being deleted. Pods that no
	// Workflow owns are not told of.
	OnChange func(finalizer.WorkflowKey)
}

// Client is the service's view of one API server. Cache, Reader and Writer are
// never nil.
type Client struct {
	Cache  *Cache
	Reader *Reader
	Writer *Writer

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
	cfg := clientConfig(base, o.UserAgent, o.Observe)
	forReads, err := httpClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the API server client: %w", err)
	}
	forWrites, err := httpClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the API server client: %w", err)
	}
	core := schema.GroupVersion{Version: "v1"}
	meta, err := restClient(cfg, forReads, core)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the API server client: %w", err)
	}
	argo, err := restClient(cfg, forReads, argoVersion)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the API server client: %w", err)
	}
	writes, err := restClient(cfg, forWrites, core)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the API server client: %w", err)
	}
	typed := rest.CopyConfig(cfg)
	typed.APIPath, typed.GroupVersion = "/api", &corev1.SchemeGroupVersion
	typed.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	typed.AcceptContentTypes, typed.ContentType = acceptWhole, ""
	pods, err := rest.RESTClientForConfigAndClient(typed, forReads)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the API server client: %w", err)
	}
	watches, err := metadata.NewForConfigAndClient(cfg, forReads)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the API server client: %w", err)
	}
	c := &Client{faults: &faults{}, onChange: o.OnChange, version: meta, host: base.Host, watches: watches}
	c.pods = newPodStore(o.Finalizer, o.OnPodGone, o.OnChange)
	c.workflows = &metaStore{changed: c.workflowChanged}
	c.namespaces = &metaStore{changed: c.namespaceChanged}
	c.Cache = &Cache{pods: c.pods}
	c.Writer = &Writer{
		client: writes, finalizer: o.Finalizer, timeout: o.WriteTimeout,
		limit: newLimiter(o.MaxWritesInFlight), pods: c.pods, faults: c.faults,
	}
	c.Reader = &Reader{
		meta: meta, core: pods, argo: argo, namespaces: c.namespaces, faults: c.faults,
		timeout: o.ReadTimeout, maxUnpacked: o.MaxUnpackedNodes,
	}
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
	return o
}

// Run watches pods, workflows and namespaces until ctx is done, and returns nil.
// It survives any failure of the API server. It is run once.
func (c *Client) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, r := range []*cache.Reflector{
		newReflector(c.watches, corev1.SchemeGroupVersion.WithResource(podsResource), c.pods, c.faults),
		newReflector(c.watches, argoVersion.WithResource(workflowsResource), c.workflows, c.faults),
		newReflector(c.watches, corev1.SchemeGroupVersion.WithResource(namespacesResource), c.namespaces, c.faults),
	} {
		all.Go(func() { r.RunWithContext(ctx) })
	}
	all.Wait()
	return nil
}

// Synced returns nil once the first list of pods is in the cache, and from then
// on. Before, it is an *finalizer.Error of KindNotSynced that says what is
// missing and, where it is a right, which Verb on which Resource.
func (c *Client) Synced() error {
	if c.pods.isSynced() {
		return nil
	}
	e := &finalizer.Error{Kind: finalizer.KindNotSynced, Message: "the first list of pods is not complete yet"}
	for _, verb := range []string{verbList, verbWatch} {
		if f := c.faults.get(verb, podsResource); f != nil {
			e.Message = "the pods cannot be listed: " + f.Message
			e.Err = f
			if f.Kind == finalizer.KindForbidden {
				e.Verb, e.Resource = f.Verb, f.Resource
			}
			break
		}
	}
	return e
}

// WorkflowsSynced and NamespacesSynced of a Client that lacks rights or the
// CustomResourceDefinition stay false; Faults then says why.
func (c *Client) WorkflowsSynced() bool { return c.workflows.isSynced() }

// NamespacesSynced is explained at WorkflowsSynced.
func (c *Client) NamespacesSynced() bool { return c.namespaces.isSynced() }

// Faults returns what does not work at present, by resource and verb: watches
// that fail for whatever cause, and reads and writes for want of a right. Each
// ends when the same verb on the same resource succeeds.
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
