package bench

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/finalizerd/finalizerd/deploy/local/internal/scenario"
)

// accept asks for the metadata only, as finalizerd does: the API server's work for an answer is the same.
const accept = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// bare sends what must be sent, and nothing else: no lanes, no limit, no judgement.
type bare struct{ client *rest.RESTClient }

func newBare(config *rest.Config) (*bare, error) {
	config = metadata.ConfigFor(config)
	config.QPS = -1
	config.UserAgent = "bench-bare"
	config.GroupVersion = &schema.GroupVersion{Version: "v1"}
	config.APIPath = "/api"
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of the bare loop: %w", err)
	}
	return &bare{client: client}, nil
}

// release is the one patch of a release.
func (b *bare) release(ctx context.Context, pod scenario.Pod) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "$deleteFromPrimitiveList/finalizers": []string{scenario.Finalizer},
	}})
	if err != nil {
		return err
	}
	request := b.client.Patch(types.StrategicMergePatchType).Param("fieldManager", "finalizerd").Body(patch)
	return b.send(ctx, request, pod)
}

// deleteAndRelease is the DELETE of that UID, and then the release.
func (b *bare) deleteAndRelease(ctx context.Context, pod scenario.Pod) error {
	options, err := json.Marshal(map[string]any{
		"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
		"preconditions": map[string]any{"uid": pod.UID},
	})
	if err != nil {
		return err
	}
	if err := b.send(ctx, b.client.Delete().SetHeader("Content-Type", "application/json").Body(options), pod); err != nil {
		return err
	}
	return b.release(ctx, pod)
}

// send decodes the answer too, since anybody who wants to know what became of the pod does.
func (b *bare) send(ctx context.Context, request *rest.Request, pod scenario.Pod) error {
	_, err := request.Namespace(namespace).Resource("pods").Name(pod.Name).SetHeader("Accept", accept).Do(ctx).Get()
	if err != nil {
		return fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	return nil
}

// runBare warms the connection up as runOurs does, and measures.
func (b *bench) runBare(ctx context.Context, w workload, s *stage) (round, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	if _, err := concurrently(ctx, 8, s.warm, b.bare.release); err != nil {
		return round{}, err
	}
	act := b.bare.release
	if w.delete {
		act = b.bare.deleteAndRelease
	}
	return b.record(ctx, 0, func(ctx context.Context, r *round) (err error) {
		r.pods = len(s.pods)
		r.latencies, err = concurrently(ctx, w.inFlight, s.pods, act)
		return err
	})
}
