package scenario

import (
	"context"

	"k8s.io/client-go/rest"
)

// Hello is the workflow of the README: namespace demo, workflow hello.
const (
	HelloNamespace = "demo"
	HelloWorkflow  = "hello"
)

// Hello makes that workflow, running, with five held pods: hello-1 has succeeded and its result is stored, hello-2 has
// succeeded and its result is not stored, hello-3 to hello-5 have failed, their results are stored, and Argo Server has
// deleted them for a retry, so they are stuck in Terminating. It needs the pretended kubelet.
func Hello(ctx context.Context, config *rest.Config) error {
	controller, err := New(config, "workflow-controller")
	if err != nil {
		return err
	}
	server, err := New(config, "argo-server")
	if err != nil {
		return err
	}
	if err := controller.CreateNamespace(ctx, HelloNamespace); err != nil {
		return err
	}
	wf, err := controller.CreateWorkflow(ctx, HelloNamespace, HelloWorkflow)
	if err != nil {
		return err
	}
	names := Names(HelloWorkflow, 5)
	succeeded, err := controller.CreatePods(ctx, wf, Succeeds, names[:2]...)
	if err != nil {
		return err
	}
	failed, err := controller.CreatePods(ctx, wf, Fails, names[2:]...)
	if err != nil {
		return err
	}
	if err := controller.WaitEnded(ctx, wf); err != nil {
		return err
	}
	nodes := append(Nodes("Succeeded", succeeded[0]), Nodes("Running", succeeded[1])...)
	if err := controller.StoreNodes(ctx, wf, append(nodes, Nodes("Failed", failed...)...)); err != nil {
		return err
	}
	return server.DeletePods(ctx, wf, failed...)
}
