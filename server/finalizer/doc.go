// Package finalizer is the waist of finalizerd: what may be released, and the
// one way through which every add, release and delete of a workflow pod goes.
//
// Two ways lead in (package api for callers, and whatever finds held pods by
// itself), one leads out: the interfaces Cache, Reader and Writer, which package
// kube implements. The decisions, Judge and its kin, are pure functions of what
// was read; Service orders the work in lanes and carries it out.
//
// Other than the design has it, NODE_REMOVED and ATTEMPT_SUPERSEDED need more than
// an absent or a younger node: the stored Workflow must have been retried since
// the pod was created. Argo's controller makes a pod before it stores its node, and
// one that dies in between stores it later, younger than the pod whose result it
// then takes; see attempt.go, which also has why a finished pod of a workflow with
// unknown nodes may be given up. A pod whose workflow ended in phase Error is
// released without the label while its node is not final: a retry would take its
// result, and the label would hide it.
//
// It may import package lane, the standard library, x/sync and apimachinery's
// plain types, and neither gRPC, generated code nor client-go.
//
// It does not promise that a pod that it did not see is left alone by others,
// and it remembers requests and captures in memory only: after a restart both
// are learnt again, at the price of one read a workflow.
package finalizer
