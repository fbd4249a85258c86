// Command argo-server serves Argo Server's own workflow service, and nothing else of it: package server/workflow of Argo Workflows
// behind the gatekeeper of package server/auth, with the interceptors that Argo Server gives them, over gRPC without TLS.
//
// It exists because Argo Server's own main embeds pages that the Go module does not contain. It is a test's binary: it has the
// auth mode "server" alone, no SSO, no archive, no offloading, and no REST. What a call does to the cluster is Argo's code.
//
// The API server is that of --kubeconfig. "listening <address>" is printed on standard output once calls are answered.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	events "github.com/argoproj/argo-events/pkg/client/clientset/versioned"
	argo "github.com/argoproj/argo-workflows/v4"
	"github.com/argoproj/argo-workflows/v4/persist/sqldb"
	workflowpkg "github.com/argoproj/argo-workflows/v4/pkg/apiclient/workflow"
	"github.com/argoproj/argo-workflows/v4/pkg/client/clientset/versioned"
	"github.com/argoproj/argo-workflows/v4/server/auth"
	"github.com/argoproj/argo-workflows/v4/server/auth/sso"
	"github.com/argoproj/argo-workflows/v4/server/clusterworkflowtemplate"
	"github.com/argoproj/argo-workflows/v4/server/types"
	"github.com/argoproj/argo-workflows/v4/server/workflow"
	"github.com/argoproj/argo-workflows/v4/server/workflow/store"
	"github.com/argoproj/argo-workflows/v4/server/workflowtemplate"
	grpcutil "github.com/argoproj/argo-workflows/v4/util/grpc"
	"github.com/argoproj/argo-workflows/v4/util/instanceid"
	"github.com/argoproj/argo-workflows/v4/util/logging"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The limits are the defaults of Argo Server's --kube-api-qps and --kube-api-burst.
const (
	kubeQPS   = 20
	kubeBurst = 30
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the API server")
	namespace := flag.String("namespace", "argo", "the server's own namespace; it serves all")
	listen := flag.String("listen", "127.0.0.1:0", "address of the gRPC listener")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, *namespace, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "argo-server:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, namespace, listen string) error {
	log := logging.NewSlogLogger(logging.Info, logging.Text)
	ctx = logging.WithLogger(ctx, log)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	config = rest.AddUserAgent(config, fmt.Sprintf("argo-workflows/%s argo-server", argo.GetVersion().Version))
	config.QPS, config.Burst = kubeQPS, kubeBurst
	clients, err := clientsOf(config)
	if err != nil {
		return err
	}
	gatekeeper, err := auth.NewGatekeeper(auth.Modes{auth.Server: true}, clients, config, sso.NullSSO,
		auth.DefaultClientForAuthorization, namespace, namespace, false, nil)
	if err != nil {
		return fmt.Errorf("gatekeeper: %w", err)
	}
	service, err := workflowService(ctx, config, clients)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(100<<20), grpc.MaxSendMsgSize(100<<20),
		grpc.ChainUnaryInterceptor(
			grpcutil.LoggerUnaryServerInterceptor(log),
			grpcutil.PanicLoggerUnaryServerInterceptor(log),
			grpcutil.ErrorTranslationUnaryServerInterceptor,
			gatekeeper.UnaryServerInterceptor(),
		),
		grpc.ChainStreamInterceptor(
			grpcutil.LoggerStreamServerInterceptor(log),
			grpcutil.PanicLoggerStreamServerInterceptor(log),
			grpcutil.ErrorTranslationStreamServerInterceptor,
			gatekeeper.StreamServerInterceptor(),
		),
	)
	workflowpkg.RegisterWorkflowServiceServer(server, service)
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	fmt.Println("listening", listener.Addr())
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

func clientsOf(config *rest.Config) (*types.Clients, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	workflows, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of workflows: %w", err)
	}
	eventSources, err := events.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of events: %w", err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("dynamic client: %w", err)
	}
	return &types.Clients{Kubernetes: kube, Workflow: workflows, Events: eventSources, Dynamic: untyped}, nil
}

// workflowService is Argo's, with its informers started. They end with ctx.
func workflowService(ctx context.Context, config *rest.Config, clients *types.Clients) (workflowpkg.WorkflowServiceServer, error) {
	instance := instanceid.NewService("")
	workflows, err := store.NewSQLiteStore(instance)
	if err != nil {
		return nil, fmt.Errorf("store of workflows: %w", err)
	}
	all := metav1.NamespaceAll
	templates, err := workflowtemplate.NewInformer(config, all)
	if err != nil {
		return nil, fmt.Errorf("informer of templates: %w", err)
	}
	templates.Run(ctx, ctx.Done())
	service := workflow.NewWorkflowServer(ctx, instance, sqldb.ExplosiveOffloadNodeStatusRepo, sqldb.NullWorkflowArchive,
		clients.Workflow, workflows, workflows, templates, clusterworkflowtemplate.NewNullClusterWorkflowTemplate(), nil, &all)
	go service.Run(ctx.Done())
	return service, nil
}
