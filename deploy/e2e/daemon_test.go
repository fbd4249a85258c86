package e2e

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server"
	"github.com/finalizerd/finalizerd/server/finalizer"
)

// daemonOptions tells which finalizerd to run.
type daemonOptions struct {
	name       string       // told apart in the audit log by it
	config     *rest.Config // nil: the administrator's
	instanceID string
	minAge     time.Duration // 0: the default
	maxWaiters int           // 0: the default
	reconcile  string        // "on" or "report"; empty: off, so that only calls act
	namespaces []string      // nil: all
	policy     func(*finalizer.Policy)
	grpc, http string // addresses; empty: any free port
}

// daemon is a finalizerd in this process.
type daemon struct {
	userAgent string
	rest      string // base URL
	conn      *grpc.ClientConn
	pb.FinalizerServiceClient
	overREST pb.FinalizerServiceClient
	stop     func()
}

// newDaemon starts a finalizerd for one test.
func (f *fixture) newDaemon(o daemonOptions) *daemon {
	f.t.Helper()
	d, err := startDaemon(f.t.Context(), f.plane, o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(d.stop)
	return d
}

// startDaemon returns once the daemon listens. It may not be ready yet.
func startDaemon(ctx context.Context, plane *controlPlane, o daemonOptions) (*daemon, error) {
	// Names are unique by the slash: no user agent is the beginning of another.
	d := &daemon{userAgent: "finalizerd-e2e/" + o.name + "/"}
	policy := finalizer.DefaultPolicy()
	policy.InstanceID = o.instanceID
	policy.MinAge = cmp.Or(o.minAge, policy.MinAge)
	if o.policy != nil {
		o.policy(&policy)
	}
	mode, err := server.ParseReconcileMode(cmp.Or(o.reconcile, "off"))
	if err != nil {
		return nil, err
	}
	listening := make(chan server.Addresses, 1)
	config := server.Config{
		Kubernetes: cmp.Or(o.config, plane.config), Policy: policy, MaxWaiters: o.maxWaiters, UserAgent: d.userAgent,
		Reconcile: mode, Namespaces: o.namespaces,
		Frontend: server.Frontend{
			Log:         slog.New(slog.DiscardHandler),
			GRPCAddress: cmp.Or(o.grpc, "127.0.0.1:0"), HTTPAddress: cmp.Or(o.http, "127.0.0.1:0"),
			ShutdownTimeout: time.Second,
			Listening:       func(a server.Addresses) { listening <- a },
		},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, config) }()
	select {
	case at := <-listening:
		d.connect(at)
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("finalizerd %s: %w", o.name, err)
	}
	d.stop = sync.OnceFunc(func() {
		_ = d.conn.Close()
		cancel()
		if err := <-ended; err != nil {
			fmt.Fprintf(os.Stderr, "e2e: finalizerd %s ended: %v\n", o.name, err)
		}
	})
	return d, nil
}

func (d *daemon) connect(at server.Addresses) {
	// The address is one that a listener has, so it can be parsed.
	d.conn, _ = grpc.NewClient(at.GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	d.rest = "http://" + at.HTTP.String()
	d.FinalizerServiceClient = pb.NewFinalizerServiceClient(d.conn)
	d.overREST = pb.NewFinalizerServiceClient(restConn{d.rest})
}

// door is one way to call the same service.
type door struct {
	name string
	pb.FinalizerServiceClient
}

func (d *daemon) doors() []door {
	return []door{{"gRPC", d.FinalizerServiceClient}, {"REST", d.overREST}}
}

// waitReady waits until the daemon answers from a filled cache.
func (f *fixture) waitReady(d *daemon) {
	f.t.Helper()
	f.eventually("finalizerd is ready", func() (bool, error) {
		// Of no workflow that there is: to give reasons could cost reads.
		_, err := d.ListPods(f.ctx, &pb.ListPodsRequest{Namespace: f.ns, Workflow: "no-such-workflow"})
		if status.Code(err) == codes.Unavailable {
			return false, nil
		}
		return err == nil, err
	})
}

// waitSeen waits until the daemon's cache shows the workflow as wanted.
func (f *fixture) waitSeen(d *daemon, wf workflow, what string, seen func(*pb.Progress) bool) {
	f.t.Helper()
	f.waitReady(d)
	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	stream, err := d.WatchWorkflowPods(ctx, &pb.WatchWorkflowPodsRequest{Namespace: f.ns, Workflow: wf.name})
	for err == nil {
		var step *pb.WatchWorkflowPodsResponse
		if step, err = stream.Recv(); err == nil && seen(step.GetProgress()) {
			return
		}
	}
	f.t.Fatalf("finalizerd does not see %s: %v", what, err)
}

// waitPods waits until the daemon sees so many pods of the workflow.
func (f *fixture) waitPods(d *daemon, wf workflow, n int32) {
	f.t.Helper()
	f.waitSeen(d, wf, fmt.Sprintf("%d pods of %s", n, wf.name), func(p *pb.Progress) bool { return p.GetPods() == n })
}

// errorInfo returns the one ErrorInfo of an error; an empty one when there is
// none.
func errorInfo(err error) *errdetails.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return &errdetails.ErrorInfo{}
}

func wantError(t *testing.T, err error, code codes.Code, reason string) *errdetails.ErrorInfo {
	t.Helper()
	info := errorInfo(err)
	if status.Code(err) != code || info.GetReason() != reason {
		t.Errorf("got %s %s (%v), want %s %s", status.Code(err), info.GetReason(), err, code, reason)
	} else if info.GetDomain() != "finalizerd.dev" {
		t.Errorf("the domain of the error is %q", info.GetDomain())
	}
	return info
}

// wantResult checks outcome and reason of one result.
func wantResult(t *testing.T, r *pb.PodResult, outcome pb.Outcome, reason pb.HoldReason) {
	t.Helper()
	if r.GetOutcome() != outcome || r.GetHoldReason() != reason {
		t.Errorf("pod %q: got %s for %s (%s), want %s for %s", r.GetPod(), r.GetOutcome(), r.GetHoldReason(), r.GetMessage(), outcome, reason)
	}
}

// releasing is a request that asserts the capture of this very pod.
func (f *fixture) releasing(pod string, uid string) *pb.ReleasePodRequest {
	return &pb.ReleasePodRequest{Namespace: f.ns, Pod: pod, PodUid: uid, Captured: true}
}

// wantViolation fails unless the error blames that field.
func wantViolation(t *testing.T, err error, field string) {
	t.Helper()
	var fields []string
	for _, d := range status.Convert(err).Details() {
		bad, _ := d.(*errdetails.BadRequest)
		for _, v := range bad.GetFieldViolations() {
			fields = append(fields, v.GetField())
		}
	}
	if status.Code(err) != codes.InvalidArgument || !slices.Contains(fields, field) {
		t.Errorf("got %v with violations of %v, want one of %s", err, fields, field)
	}
}
