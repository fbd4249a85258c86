// Package controllers runs three of Kubernetes' own controllers in this process: the garbage collector (owner references),
// the namespace controller (a Terminating namespace is emptied and then goes) and pod GC (pods of nodes that do not exist,
// and terminated pods over a threshold). They are the ones that delete pods behind an owner's back, and so the ones that a
// finalizer has to live with.
//
// The package imports k8s.io/kubernetes and may be imported by the control plane only. It runs no scheduler and no
// service account controller, elects no leader, and must run once per API server.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/podgc"
)

const (
	garbageCollectorWorkers = 20
	namespaceWorkers        = 10
	namespaceResync         = 5 * time.Minute
	// discoveryPeriod is how long a custom resource defined at run time stays unknown to the garbage collector.
	discoveryPeriod = 10 * time.Second
	syncTimeout     = 30 * time.Second
	stopTimeout     = 5 * time.Second
)

// Options tells Run how. The zero value is usable, apart from Config.
type Options struct {
	Config *rest.Config // REQUIRED. Credentials that may do everything; its rate limits are replaced
	// TerminatedPodGCThreshold is the number of terminated pods that pod GC lets live, as kube-controller-manager's
	// --terminated-pod-gc-threshold. Zero or less means that they are never collected.
	TerminatedPodGCThreshold int
}

// Run runs the controllers until ctx ends, and then returns nil once they have stopped. It fails if a client cannot be
// made, or if the controllers do not stop within a few seconds. An API server that is away is no error: they wait for it.
func Run(ctx context.Context, options Options) error {
	config := rest.CopyConfig(options.Config)
	config.QPS = -1
	config.UserAgent = "local-controllers"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	typed := informers.NewSharedInformerFactory(client, 0)
	partial := metadatainformer.NewSharedInformerFactory(metadataClient, 0)
	started := make(chan struct{})

	collector, err := garbagecollector.NewGarbageCollector(ctx, client, metadataClient,
		restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
		garbagecollector.DefaultIgnoredResources(), informerfactory.NewInformerFactory(typed, partial), started)
	if err != nil {
		return fmt.Errorf("garbage collector: %w", err)
	}
	namespaces := namespace.NewNamespaceController(ctx, client, metadataClient,
		client.Discovery().ServerPreferredNamespacedResources, typed.Core().V1().Namespaces(), namespaceResync, corev1.FinalizerKubernetes)
	pods := podgc.NewPodGC(ctx, client, typed.Core().V1().Pods(), typed.Core().V1().Nodes(), options.TerminatedPodGCThreshold)

	typed.Start(ctx.Done())
	partial.Start(ctx.Done())
	close(started)

	var running sync.WaitGroup
	running.Go(func() { collector.Run(ctx, garbageCollectorWorkers, syncTimeout) })
	running.Go(func() { collector.Sync(ctx, client.Discovery(), discoveryPeriod) })
	running.Go(func() { namespaces.Run(ctx, namespaceWorkers) })
	running.Go(func() { pods.Run(ctx) })
	<-ctx.Done()
	return waitFor(&running)
}

func waitFor(running *sync.WaitGroup) error {
	stopped := make(chan struct{})
	go func() {
		running.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
		return nil
	case <-time.After(stopTimeout):
		return errors.New("controllers: still running " + stopTimeout.String() + " after the stop")
	}
}
