// Package reconcile finds the held pods that nobody asked for, and those that a
// label hides from their controller, and sends them through package finalizer:
// it brings the rule (finalizer.Policy.Decide) what it wants to know, at a
// bounded price in reads, and has its decisions carried out.
//
// It is level-triggered: a pass looks at all pods of one workflow as they are
// now, whatever called for it, so that a lost event costs at most Config.Resync.
// Passes of one workflow never overlap; different workflows run in parallel.
//
// It may import package finalizer, the work queue of client-go and the types of
// apimachinery. It writes no pod itself: finalizer.Service does, in the lane of
// the pod's workflow.
//
// Not promised: that a pod is released by this process (leadership is its
// starter's matter), that anything remembered survives Run, and that a workflow
// whose watch stands still is read again before its version changes.
package reconcile
