// Package transport puts finalizerd under a Kubernetes client: an
// http.RoundTripper that sends what releases, labels or deletes the pods of Argo
// workflows through the service, and all else to the API server as it is.
//
//	config.Wrap(transport.New(c, transport.Options{})) // c is a *client.Client
//
// # What goes through the service
//
// Requests on core/v1 pods, without a subresource, of pods whose controller is
// an Argo Workflow by ownerReference; labels prove nothing. The pod is read
// first, with the caller's credentials, and every request that follows is for
// the UID that was read.
//
//   - PATCH (JSON merge, strategic merge, JSON patch) that takes FIN off or
//     labels the pod completed: ReleasePod. Capture is never asserted. Argo
//     addresses its clean-up by name, and it may come so late that the name has
//     a successor (argo-workflows 8022, 15086); the service verifies the node,
//     and a refusal is answered with 409 Conflict, which Argo queues again. A
//     label on a held pod takes FIN off too: the one without the other is a pod
//     that nobody releases.
//   - DELETE: DeleteWorkflowPods for the UID. If the pod is not captured, the
//     DELETE goes to the API server, bound to the UID, as Kubernetes would do:
//     the pod terminates, and FIN holds it until its result is stored. A
//     DELETE with a grace period, a resourceVersion, or another propagation than
//     Background, none of which the service can express, goes to the API
//     server first, bound to the UID; then ReleasePod is asked.
//   - POST: with Options.AddFinalizer a pod that serves a node is created with
//     FIN. A create that meets "object is being deleted" has the terminating
//     workflow pod of that name released, waits for it to go, and creates again;
//     if it is refused or not gone in time, the caller gets the first 409,
//     AlreadyExists. At that Argo takes the terminating pod for its new one; so
//     faults of the service are answered as those of the other verbs, which see
//     below: Argo repeats a create at 429 and 503, and fails the node at 403 and
//     500, which waiting does not mend.
//
// A resourceVersion does not matter in a patch that does nothing but what the
// service does: the UID is the stronger guard, and an old view is no reason to
// wait. In a patch that does more it is checked as Kubernetes does. Of such a
// patch the service does its part first, and what remains is written after it,
// by patches bound to the UID; so one that is refused has changed nothing, and
// one that succeeds is no longer atomic. Only a foreign finalizer that the patch
// adds is written before FIN goes.
//
// Bodies of DELETE and POST are read in JSON and in Kubernetes' protobuf
// (application/vnd.kubernetes.protobuf), in which client-go writes them by default
// for Argo 4. The DELETEs that are sent on behalf of the caller have JSON bodies,
// and its Accept. A pod in protobuf gets FIN appended to its metadata; no other
// byte is changed, nor between one attempt to create it and the next.
//
// # What the caller sees
//
// The answers that Kubernetes would have given. A PATCH or DELETE is first made
// with dryRun, as the caller: what its rights, admission or a UID forbid stays
// forbidden, although finalizerd could do it, and the answer comes in the form
// that Accept names. A pod that is gone after its release is answered with its
// last state. Failures of the service are Status objects in JSON, whatever
// Accept says; clients of Kubernetes decode failures by Content-Type: 409 for a
// refusal, 429 and 503 with Retry-After, 403 and 500 for credentials and faults.
//
// A failure does not say that nothing was written. After a deadline the service
// may yet do its work. A DELETE that goes to the API server first is carried out
// there before the service is asked, and a foreign finalizer that a patch adds is
// written before. To repeat the request is safe: it is judged anew.
//
// What is sent to the API server in the end without the service, because it is not
// in charge or with Bypass, is bound to the UID that was read: a DELETE by its
// preconditions, a patch by metadata.uid. If a successor has the name by then, the
// API server answers 409 to the DELETE and 422 to the patch.
//
// The caller needs get on pods besides patch and delete. Without it, a PATCH of
// the shapes above is refused, and a DELETE passes through.
//
// # What refusals cost Argo
//
// Argo's controller has one queue for the clean-ups of all its workflows, with one
// bucket of 10 a second for what is queued again and for what is new. It forgets
// failures at once, so nothing backs off: a clean-up that is refused comes again as
// soon as the bucket lets it, and takes its turn from all others. With 200 refused
// ones in circulation a new clean-up waits 20 s. They end when the successor's
// result is stored, or its Workflow has completed or is gone; so what helps is that
// the successors make progress. Many of them over a long time, to be seen in a
// count of Refused that grows by some each second, say that workflows hang.
//
// # What passes through
//
// All else, unread and unbuffered: watches, logs, exec, other resources,
// DELETECOLLECTION, PUT, eviction, server-side apply, dry runs, bodies that are
// compressed, in CBOR or in YAML (which the API server takes for DELETE and POST;
// Argo sends JSON or protobuf), or larger than Options.MaxBody. So do patches that
// replace metadata or labels by directive, and JSON patches that move, copy or
// replace all of metadata. So do bodies that are not understood: malformed ones,
// and DeleteOptions in protobuf with a field that this package does not know; and
// DELETEs with ignoreStoreReadErrorWithClusterBreakingPotential, in body or query,
// or with an empty UID as precondition. A pod that is created thus has no FIN (the
// admission policy of deploy/ covers that), and one that is deleted thus is deleted
// as without this package, which the reconciler makes good. A pod of another
// instance id, or of a workflow that the service does not take, is the API
// server's alone.
//
// # Imports and limits
//
// The package may import the standard library, package client and what that
// imports, and nothing of k8s.io.
//
// It promises no capture: while a Workflow's node status is offloaded to a
// database the service cannot verify it, and clean-ups are refused until the
// Workflow has completed. Before that they succeed for pods whose capture the
// service has seen earlier, for terminating ones that never started, and for
// finished ones that a retry deleted. It starts no goroutine and keeps nothing
// between requests.
package transport
