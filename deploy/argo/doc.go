// Package argo shows what finalizerd gives the real, unmodified controller and server of Argo Workflows v4.0.5: its tests bring up
// a control plane and run the same stories at three levels, and print a table with the times side by side.
//
//	stock       Argo alone, with ARGO_POD_STATUS_CAPTURE_FINALIZER=true
//	reconciler  and finalizerd beside it, which nobody calls
//	sidecar     and a "finalizerd proxy" between the API server and each of controller and server
//
// The controller is built from Argo's Go module as it is. Argo Server's own main cannot be built from the module, so cmd/argo-server
// serves the module's server/workflow. Containers do not run: package internal/kubelet pretends them, exec included.
//
// To run one story at one level by hand, from the root of the repository:
//
//	make build build-argo
//	cd deploy/argo && FINALIZERD_E2E_BIN=../../.build/bin go test -vet=off -count=1 -v -timeout 30m -run 'TestLevels/sidecar/story2' .
//
// Argo's controller listens on ports 6060 and 9090, whatever it is told, so there can be one run at a time on a machine.
//
// The first part of -run is the level, the second the story by its number. -argo.loglevel=info makes the controller talk, and
// -argo.keep=DIR keeps all logs, kubeconfigs and the audit log there. A story's figures are a line of JSON each on standard
// output, and a table at the end.
//
// The package imports Argo's API types and client-go as Argo wants them, and nothing of finalizerd: that is a process here. It does
// not promise that the figures of two machines compare; those of one run do.
package argo
