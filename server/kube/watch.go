package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/finalizerd/finalizerd/server/finalizer"
)

const verbWatch = "watch"

// scope is what one watch covers: all objects of a resource, those of a
// namespace, or the one that has a name. A Role in the namespace, or a rule with
// resourceNames, is enough for a scope that is not all.
type scope struct{ namespace, name string }

func (s scope) covers(n types.NamespacedName) bool {
	return (s.namespace == "" || s.namespace == n.Namespace) && (s.name == "" || s.name == n.Name)
}

// about is the use of a verb in this scope. A namespace lies in itself.
func (s scope) about(verb, resource string) use {
	return use{verb: verb, resource: resource, namespace: s.namespace + s.name}
}

// namespaceScopes returns the scopes of the watches of namespaced objects, and
// of the namespaces themselves. No names: everything.
func namespaceScopes(names []string) (inside, selves []scope) {
	if len(names) == 0 {
		return []scope{{}}, []scope{{}}
	}
	for _, n := range names {
		inside, selves = append(inside, scope{namespace: n}), append(selves, scope{name: n})
	}
	return inside, selves
}

// reach is the namespaces that the client may touch; empty: all.
type reach []string

// check refuses an object outside of the reach, before anything is sent.
func (r reach) check(namespace string, pod finalizer.PodID) *finalizer.Error {
	if len(r) == 0 || slices.Contains(r, namespace) {
		return nil
	}
	return &finalizer.Error{
		Kind: finalizer.KindNotServed, Pod: pod,
		Message: fmt.Sprintf("the namespace %q is outside of what the service serves", namespace),
	}
}

// newReflector watches the objects of a scope, as metadata only and without a
// label selector, into a store. It streams the first list where the API server
// can, and comes back within about ten seconds of an outage's end.
func newReflector(client metadata.Interface, gvr schema.GroupVersionResource, sc scope, store cache.ReflectorStore, f *faults) *cache.Reflector {
	var objects metadata.ResourceInterface = client.Resource(gvr)
	if sc.namespace != "" {
		objects = client.Resource(gvr).Namespace(sc.namespace)
	}
	narrow := func(o metav1.ListOptions) metav1.ListOptions {
		if sc.name != "" {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", sc.name).String()
		}
		return o
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := objects.List(ctx, narrow(o))
			watchFault(ctx, f, sc.about(verbList, gvr.Resource), err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := objects.Watch(ctx, narrow(o))
			watchFault(ctx, f, sc.about(verbWatch, gvr.Resource), err)
			if err == nil && o.SendInitialEvents != nil {
				f.clear(sc.about(verbList, gvr.Resource)) // a stream needs no list
			}
			return w, err
		},
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, client), &metav1.PartialObjectMetadata{}, store,
		cache.ReflectorOptions{
			Name: gvr.Resource, TypeDescription: gvr.String(),
			Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Cap: 5 * time.Second, Steps: 20, Factor: 2, Jitter: 1},
		})
}

// watchFault keeps the last failure of a watch, of any kind, until it works.
func watchFault(ctx context.Context, f *faults, u use, err error) {
	if err == nil {
		f.clear(u)
		return
	}
	if ctx.Err() != nil {
		return
	}
	e := classify(err, nil, request{verb: u.verb, resource: u.resource})
	if u.namespace != "" {
		e.Message += fmt.Sprintf(" in namespace %q", u.namespace)
	}
	f.set(u, e)
}
