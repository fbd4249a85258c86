// Package api is the gRPC face of finalizerd: proto in, proto out. It checks
// requests, turns them into the core's types and back, and holds the one table
// that turns errors into statuses.
//
// It may import gen, gRPC, package finalizer and the name rules of
// k8s.io/apimachinery, and never client-go. It decides nothing: whether a pod
// may be released is the core's to say.
//
// Its methods return the core's errors as they are. StatusOf is called by one
// interceptor of package server, so a Service that is registered without it
// answers UNKNOWN for each failure.
package api
