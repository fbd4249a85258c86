// Package server composes finalizerd: Run builds the packages below it, opens
// the listeners, and stops all in order when its context ends. It is the only
// place that starts goroutines and listeners.
//
//	cmd ─► server ─► api ────► finalizer ─► lane
//	          ├────► reconcile ──┘    ▲
//	          └────► kube ────────────┘
//
//	server/lane       order per key; the standard packages only
//	server/finalizer  the decisions, and the one way through
//	server/reconcile  finds held pods that nobody asked for
//	server/kube       the only package that talks to the API server
//	server/api        proto in, proto out; the error table
//	gen               generated code; gen/finalizer is a module of its own
//
// A test over go list -deps holds the arrows. Two ways in, api and reconcile; one
// way through, finalizer; one way out, kube.
//
// It may import everything but deploy/local, and decides nothing about pods.
//
// It does not promise to answer after its context ended for longer than
// Frontend.ShutdownTimeout, nor to authenticate: whoever reaches a listener may
// call everything, which is why listeners are on loopback unless
// Frontend.AllowUnauthenticated says otherwise.
package server
