// Package kubelet pretends to be the scheduler, the kubelet and Argo's executor for the pods of workflows: it binds them to one
// node, moves them from Pending over Running to an end, reports their outputs in a WorkflowTaskResult, obeys the signals that
// Argo's controller sends with exec, and confirms deletions. It runs nothing.
//
// How a pod lives is said by a plan, see Plan. It imports client-go, Argo's API types and the exec protocol of k8s.io/kubelet.
// It promises no heartbeats, probes, volumes or active deadlines, and it knows containers main and wait only through the pod's spec.
package kubelet

import (
	"context"
	"fmt"
	"sync"
	"time"

	workflows "github.com/argoproj/argo-workflows/v4/pkg/client/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// NodeName is the name of the one node.
const NodeName = "argo-node"

// workflowLabel is on each pod that Argo makes.
const workflowLabel = "workflows.argoproj.io/workflow"

const (
	requestsInFlight = 12
	retryAfter       = 100 * time.Millisecond
)

// Kubelet is made by New and lives while Run runs.
type Kubelet struct {
	client    kubernetes.Interface
	workflows workflows.Interface
	plan      func(pod *corev1.Pod, attempt int) Plan
	turn      chan struct{} // bounds the requests in flight

	mu       sync.Mutex
	lives    map[types.UID]*life
	attempts map[types.NamespacedName]int
}

// life is what is known of one pod object.
type life struct {
	name    types.NamespacedName
	signals chan int32 // number of the first signal
	once    sync.Once
	end     context.CancelFunc // the pod object is gone
}

func (l *life) signal(number int32) {
	l.once.Do(func() { l.signals <- number })
}

// New makes a kubelet and starts nothing. plan is asked once a pod object; attempt counts the pod objects that have had that
// name, from 1. The client's rate limit is lifted.
func New(config *rest.Config, plan func(pod *corev1.Pod, attempt int) Plan) (*Kubelet, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.UserAgent = -1, "argo-kubelet"
	argo, err := workflows.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	return &Kubelet{
		client: client, workflows: argo, plan: plan, turn: make(chan struct{}, requestsInFlight),
		lives: map[types.UID]*life{}, attempts: map[types.NamespacedName]int{},
	}, nil
}

// Run registers the node, serves exec, and acts on the pods of workflows until ctx ends; then it returns nil. What goes wrong
// with one pod is tried again.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	port, ended, err := k.serveExec(ctx)
	if err != nil {
		return err
	}
	if err := k.register(ctx, port); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.LabelSelector = workflowLabel
	}))
	var living sync.WaitGroup
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { k.observe(ctx, object, &living) },
		UpdateFunc: func(_, object any) { k.observe(ctx, object, &living) },
		DeleteFunc: k.forget,
	}); err != nil {
		return fmt.Errorf("kubelet: watch pods: %w", err)
	}
	factory.Start(ctx.Done())
	select {
	case <-ctx.Done():
		err = nil
	case err = <-ended:
	}
	cancel()
	factory.Shutdown()
	living.Wait()
	return err
}

func (k *Kubelet) register(ctx context.Context, port int32) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port}},
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
		},
	}
	if _, err := k.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("kubelet: register node %s: %w", NodeName, err)
	}
	return nil
}

// observe starts the life of a pod object, or tells it that it is being deleted.
func (k *Kubelet) observe(ctx context.Context, object any, living *sync.WaitGroup) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	k.mu.Lock()
	known := k.lives[pod.UID]
	if known != nil {
		k.mu.Unlock()
		if pod.DeletionTimestamp != nil {
			known.signal(sigterm)
		}
		return
	}
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	ctx, cancel := context.WithCancel(ctx)
	known = &life{name: name, signals: make(chan int32, 1), end: cancel}
	k.lives[pod.UID] = known
	k.attempts[name]++
	attempt := k.attempts[name]
	k.mu.Unlock()
	if pod.DeletionTimestamp != nil {
		known.signal(sigterm)
	}
	plan := k.plan(pod, attempt)
	living.Go(func() { k.live(ctx, pod.DeepCopy(), known, plan) })
}

func (k *Kubelet) forget(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	k.mu.Lock()
	known := k.lives[pod.UID]
	delete(k.lives, pod.UID)
	k.mu.Unlock()
	if known != nil {
		known.end()
	}
}

// persist sends a request until it is answered: by success, by the news that the pod is gone or replaced, or by the end of ctx.
// It reports whether it succeeded.
func (k *Kubelet) persist(ctx context.Context, request func() error) bool {
	for {
		select {
		case k.turn <- struct{}{}:
		case <-ctx.Done():
			return false
		}
		err := request()
		<-k.turn
		switch {
		case err == nil:
			return true
		case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err), apierrors.IsAlreadyExists(err):
			return false
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
			return false
		}
	}
}
