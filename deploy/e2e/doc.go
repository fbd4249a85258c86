// Package e2e tests finalizerd against a real API server: what only the API
// server decides (UIDs, finalizers, admission, RBAC, graceful deletion), and
// what can only be counted at the API server, in its audit log.
//
// It has tests alone. They run finalizerd in this process, so that the race
// detector sees it, from the build list that ships; the control plane is a
// process of its own, made from deploy/local, so that Kubernetes is never
// compiled with -race. One control plane serves all tests, each in a namespace
// of its own, and goes with this process; tests that take the API server down or
// away from it what others need start one of their own. A finalizerd that acts by
// itself is kept to its test's namespace.
//
// FINALIZERD_E2E_CONTROL_PLANE names a built deploy/local; without it one is
// built first, which takes minutes when the build cache is cold.
// FINALIZERD_E2E_GRPCURL names a grpcurl for the README's commands; without it
// .build/bin of the module is looked at. With -short nothing runs.
//
// It may import anything of the module but deploy/local. It promises nothing on
// speed: the numbers are in the benchmarks.
package e2e
