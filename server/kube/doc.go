// Package kube is the only package of finalizerd that talks to the API server
// about pods, workflows, namespaces, cluster nodes and events. Client implements
// what package finalizer asks for: Cache and Held from a watch of pod metadata,
// Reader and Nodes by live reads, Writer and Unhider by single writes that carry
// the UID, under one adaptive limit on writes in flight, and Events. Seen says
// what the watch knows of workflows and namespaces, for those who may not import
// this package.
//
// With Options.Namespaces it touches nothing outside of them, cluster nodes
// excepted, and Roles in them are enough.
//
// The watch runs on plain reflectors and not on shared informers: the store is
// then typed (no string index keys, no tombstones, no handler that a filter can
// bypass), keeps about 600 bytes a pod, and lets the answer of an own write and
// the watch meet under one lock.
//
// It may import client-go, apimachinery, golang.org/x/sync, package finalizer and
// the standard library, and neither gRPC, generated code nor package api.
//
// It does not promise that the cache is complete or fresh, it takes no decision
// on what may be released, and it does not repeat a write: a write is sent at
// most once a call, and its failure is classified for the caller. Events are
// recorded as well as can be: under load or without the right they are lost.
package kube
