// Package proxy is a reverse proxy on a loopback address between a program that
// is not changed, such as Argo's workflow controller, and the API server. It has
// package transport on its way out; that package says which requests go through
// finalizerd.
//
// All else passes byte for byte: credentials, impersonation, any encoding, watches
// as they stream, and upgrades (SPDY, WebSocket). A request without credentials
// reaches the API server without any, unless Config.TokenFile is set. To the API
// server it speaks HTTP/2, and HTTP/1.1 for upgrades; to callers HTTP/1.1,
// and HTTP/2 if they offer nothing else.
//
// It serves TLS alone, with a certificate of its own that it makes as it starts:
// programs built on client-go send no credentials to a server whose URL is plain
// http.
//
// The package may import the standard library, package client/transport and what
// that imports, and nothing of k8s.io.
//
// It does not authenticate: whoever reaches the loopback address acts with what
// he brings, or with the token of Config.TokenFile. Requests whose Host is not
// loopback, or which a web page from elsewhere made, are refused: no page in a
// browser of the machine can use it. It does not retry but for what HTTP/2 left
// undone; an API server that cannot be reached is answered with 503.
package proxy
