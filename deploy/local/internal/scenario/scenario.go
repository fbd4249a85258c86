// Package scenario makes workflows and pods as Argo Workflows makes them: the finalizer, labels and node annotation on the
// pods, the controller reference, and the nodes in the stored Workflow.
//
// It imports client-go, and package kubelet for the annotations by which pods say how they live. It runs no workflow: what a
// node's phase is, and when, is for the caller to say.
package scenario

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// What Argo Workflows puts on a pod.
const (
	Finalizer      = "workflows.argoproj.io/status"
	LabelWorkflow  = "workflows.argoproj.io/workflow"
	LabelCompleted = "workflows.argoproj.io/completed"
	AnnotationNode = "workflows.argoproj.io/node-id"
	AnnotationName = "workflows.argoproj.io/node-name"
)

const (
	inFlight = 32 // requests at once, in the methods that take many pods
	// plainNodes is how many nodes are stored as they are. Argo packs them when they get too large for an object.
	plainNodes  = 500
	pollPeriod  = 50 * time.Millisecond
	waitTimeout = time.Minute
)

// Workflow is a stored Workflow.
type Workflow struct {
	Namespace, Name string
	UID             types.UID
}

// Pod is a pod of one of the workflows here. Its node has the pod's name as its ID.
type Pod struct {
	Name    string
	UID     types.UID
	Created time.Time
}

// Node is what the stored Workflow says of a pod's node: Succeeded and Failed mean that the result is captured.
type Node struct {
	Pod   Pod
	Phase string
}

// Cluster is where the scenario takes place.
type Cluster struct {
	core      kubernetes.Interface
	workflows dynamic.NamespaceableResourceInterface
	pods      metadata.Getter // without spec and status
}

// New returns a cluster that is spoken to in the name of userAgent, without a rate limit. It sends nothing.
func New(config *rest.Config, userAgent string) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.UserAgent = userAgent
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of workflows: %w", err)
	}
	partial, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of metadata: %w", err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of pods: %w", err)
	}
	kind := schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}
	return &Cluster{core: core, workflows: objects.Resource(kind), pods: partial.Resource(corev1.SchemeGroupVersion.WithResource("pods"))}, nil
}

// CreateNamespace makes a namespace. One that is there already is an error.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.core.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// CreateWorkflow makes a Workflow in phase Running, without nodes.
func (c *Cluster) CreateWorkflow(ctx context.Context, namespace, name string) (Workflow, error) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "argoproj.io/v1alpha1",
		"kind":       "Workflow",
		"metadata":   map[string]any{"name": name, "labels": map[string]any{LabelCompleted: "false"}},
		"spec":       map[string]any{"entrypoint": "main"},
		"status":     map[string]any{"phase": "Running", "startedAt": time.Now().UTC().Format(time.RFC3339)},
	}}
	created, err := c.workflows.Namespace(namespace).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return Workflow{}, fmt.Errorf("create workflow %s/%s: %w", namespace, name, err)
	}
	return Workflow{Namespace: namespace, Name: name, UID: created.GetUID()}, nil
}

// RemoveWorkflow deletes the Workflow. The garbage collector then deletes the pods that it still has.
func (c *Cluster) RemoveWorkflow(ctx context.Context, wf Workflow) error {
	err := c.workflows.Namespace(wf.Namespace).Delete(ctx, wf.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete workflow %s/%s: %w", wf.Namespace, wf.Name, err)
	}
	return nil
}

// StoreNodes writes nodes into the stored Workflow, in the place of those that it had. Many are packed, as Argo does it.
func (c *Cluster) StoreNodes(ctx context.Context, wf Workflow, nodes []Node) error {
	stored := make(map[string]any, len(nodes))
	for _, node := range nodes {
		status := map[string]any{
			"id": node.Pod.Name, "name": node.Pod.Name, "displayName": node.Pod.Name, "type": "Pod", "phase": node.Phase,
			"startedAt": node.Pod.Created.UTC().Format(time.RFC3339),
		}
		if node.Phase == string(corev1.PodSucceeded) || node.Phase == string(corev1.PodFailed) {
			status["finishedAt"] = time.Now().UTC().Format(time.RFC3339)
		}
		stored[node.Pod.Name] = status
	}
	status := map[string]any{"nodes": stored, "compressedNodes": nil}
	if len(nodes) > plainNodes {
		packed, err := pack(stored)
		if err != nil {
			return err
		}
		status = map[string]any{"nodes": nil, "compressedNodes": packed}
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("encode nodes: %w", err)
	}
	if _, err := c.workflows.Namespace(wf.Namespace).Patch(ctx, wf.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("store the nodes of workflow %s/%s: %w", wf.Namespace, wf.Name, err)
	}
	return nil
}

// pack returns base64 of gzip of JSON.
func pack(nodes map[string]any) (string, error) {
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	if err := json.NewEncoder(zipped).Encode(nodes); err != nil {
		return "", fmt.Errorf("pack nodes: %w", err)
	}
	if err := zipped.Close(); err != nil {
		return "", fmt.Errorf("pack nodes: %w", err)
	}
	return base64.StdEncoding.EncodeToString(packed.Bytes()), nil
}

// each runs do for all indices below n, inFlight at a time, until the first error.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(inFlight)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}
