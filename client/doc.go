// Package client calls finalizerd, the service through which every release and
// every delete of an Argo Workflows pod goes. The workflow controller and Argo
// Server import it.
//
// # Connecting
//
// One Client serves the whole process; it is safe for concurrent use and opens
// its connections with the first call:
//
//	c, err := client.InCluster(client.WithTLS("/etc/finalizerd/ca.crt"))
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//
// # Releasing
//
// The controller releases a pod once the result of that pod is in the stored
// Workflow. It names the UID and gives its word:
//
//	_, err = c.ReleasePod(ctx, &finalizerv1.ReleasePodRequest{
//		Namespace: "argo", Pod: "hello-1", PodUid: string(pod.UID),
//		Captured: true, MarkCompleted: true,
//	})
//
// A pod that is gone, or that carries no finalizer any more, is no error: the
// outcome in the answer tells. So releases may be repeated without thought.
//
// # Deleting before a retry
//
// Argo Server deletes the pods of the nodes that it is about to reset, in one
// call, and sets Wait: the names are free when the answer says deleted or gone.
// Read the outcomes: the status is OK although a pod was refused. A RequestId
// that stays the same when the caller repeats the call (after a time-out, after
// its own restart) guarantees that the repeat never touches the pods of the
// next attempt.
//
// # Errors
//
// Decide by Reason, not by message:
//
//	switch client.Reason(err) {
//	case finalizerv1.ErrorReason_ERROR_REASON_POD_REPLACED:
//		return nil // another pod has the name; ours is gone
//	case finalizerv1.ErrorReason_ERROR_REASON_POD_NOT_CAPTURED:
//		// the result is not stored yet: ask again later
//	}
//
// UNAVAILABLE is retried by the client itself, four attempts within about a
// second, and nothing else is. Work queues ask IsRetriable and RetryAfter for
// the longer waits. A call without a deadline gets one of 30 seconds.
//
// # Dependencies
//
// The package imports gRPC, protobuf and the generated code, and may import
// nothing of k8s.io and nothing of the server: requiring it raises no Kubernetes
// version of the importer. A test holds that for k8s.io/client-go v0.33.1.
//
// # Not promised
//
// The client does not know whether a call that ended with DEADLINE_EXCEEDED or
// CANCELLED was carried out; repeat it, or look with GetPod. It keeps nothing
// across restarts, queues nothing, and does not limit its callers: the service
// does.
package client
