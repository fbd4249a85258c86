// Package proxy is a reverse proxy on a loopback address between a program that
// is not changed, such as Argo's workflow controller, and the API server. It has
// package transport on its way out; that package says which requests go through
// finalizerd.
//
// All else passes byte for byte: credentials, impersonation, any encoding, watches
// as they stream, and upgrades (SPDY, WebSocket). To the API server it speaks
// HTTP/2, and HTTP/1.1 for upgrades. Requests without credentials get the token
// of Config.TokenFile: programs built on client-go send none to a plain http
// URL.
//
// The package may import the standard library, package client/transport and what
// that imports, and nothing of k8s.io.
//
// It does not authenticate: whoever reaches the loopback address acts with what
// he brings, or with the token of Config.TokenFile. Requests whose Host is not
// loopback are refused, so that no web page reaches it by a name of its own. It
// does not retry; an API server that cannot be reached is answered with 503.
package proxy
