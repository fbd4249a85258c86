// Package kubelet pretends to be the kubelet of one node: it moves pods through their phases without running anything, and
// confirms their deletion as a kubelet does. Pods say by annotation how they want to live; see RunAnnotation.
//
// It acts only on pods whose spec.nodeName is NodeName, and binds none: there is no scheduler. It imports client-go only. It
// sends no heartbeats, so that a test can declare the node NotReady, and it does not honour restartPolicy, probes, volumes or
// active deadlines.
package kubelet

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// NodeName is the name of the one node.
const NodeName = "local-node"

const (
	workers  = 16
	minRetry = 20 * time.Millisecond
	maxRetry = 5 * time.Second
)

// podKey names one pod object. The UID keeps the work of a pod apart from that of a successor of the same name.
type podKey struct {
	name types.NamespacedName
	uid  types.UID
}

// Kubelet is made by New and lives while Run runs.
type Kubelet struct {
	client kubernetes.Interface

	mu   sync.Mutex
	seen map[types.UID]seen
}

// New makes a kubelet and starts nothing. The client's rate limit is lifted.
func New(config *rest.Config) (*Kubelet, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.UserAgent = "local-kubelet"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	return &Kubelet{client: client, seen: map[types.UID]seen{}}, nil
}

// Register makes the node, Ready. A node that is there already is left as it is.
func (k *Kubelet) Register(ctx context.Context) error {
	now := metav1.Now()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{corev1.LabelHostname: NodeName}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "pretended",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
	if _, err := k.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("kubelet: register node %s: %w", NodeName, err)
	}
	return nil
}

// Run acts on pods until ctx ends, and then returns nil. It fails only if it cannot watch at all; what goes wrong with one
// pod is tried again, and logged by klog.
func (k *Kubelet) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", NodeName).String()
	}))
	pods := factory.Core().V1().Pods()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[podKey](minRetry, maxRetry))
	if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { k.observe(object, queue) },
		UpdateFunc: func(_, object any) { k.observe(object, queue) },
		DeleteFunc: k.forget,
	}); err != nil {
		return fmt.Errorf("kubelet: watch pods: %w", err)
	}
	lister := pods.Lister()
	factory.Start(ctx.Done())

	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for k.work(ctx, queue, lister) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	working.Wait()
	factory.Shutdown()
	return nil
}

// observe notes when a state was first seen, and queues the pod.
func (k *Kubelet) observe(object any, queue workqueue.TypedInterface[podKey]) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	now := time.Now()
	k.mu.Lock()
	noted := k.seen[pod.UID]
	if noted.running.IsZero() && pod.Status.Phase == corev1.PodRunning {
		noted.running = now
	}
	if noted.deleting.IsZero() && pod.DeletionTimestamp != nil {
		noted.deleting = now
	}
	if noted != (seen{}) {
		k.seen[pod.UID] = noted
	}
	k.mu.Unlock()
	queue.Add(podKey{name: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, uid: pod.UID})
}

func (k *Kubelet) forget(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if pod, ok := object.(*corev1.Pod); ok {
		k.mu.Lock()
		delete(k.seen, pod.UID)
		k.mu.Unlock()
	}
}

// work handles one pod. It returns false when there will be no more.
func (k *Kubelet) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[podKey], lister listers.PodLister) bool {
	key, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(key)
	again, err := k.sync(ctx, key, lister)
	switch {
	case err != nil && ctx.Err() == nil:
		utilruntime.HandleErrorWithContext(ctx, err, "Pod not handled, will retry", "pod", key.name)
		queue.AddRateLimited(key)
	default:
		queue.Forget(key)
		if again > 0 {
			queue.AddAfter(key, again)
		}
	}
	return true
}

// sync does what next says. A pod that is gone or replaced, in the cache or at the API server, needs nothing.
func (k *Kubelet) sync(ctx context.Context, key podKey, lister listers.PodLister) (again time.Duration, err error) {
	pod, err := lister.Pods(key.name.Namespace).Get(key.name.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.UID != key.uid {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	k.mu.Lock()
	noted := k.seen[pod.UID]
	k.mu.Unlock()
	now := time.Now()
	due, again := next(pod, noted, now)
	switch due {
	case wait:
		return again, nil
	case remove:
		err = k.remove(ctx, pod)
	default:
		err = k.patch(ctx, pod, due, now)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return 0, nil // gone, or the name is another pod's now: the watch will tell
	}
	return 0, err
}

func (k *Kubelet) patch(ctx context.Context, pod *corev1.Pod, due act, now time.Time) error {
	body, err := statusPatch(pod, due, now)
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if replaced(err) {
		return nil
	}
	return err
}

func (k *Kubelet) remove(ctx context.Context, pod *corev1.Pod) error {
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
	return k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *options)
}

// replaced is how the API server refuses a patch that names another UID: 422 on that field.
func replaced(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	if !ok || !apierrors.IsInvalid(err) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}
