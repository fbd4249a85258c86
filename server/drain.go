package server

import (
	"context"

	"google.golang.org/grpc"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server/api"
)

// drain ends calls at shutdown: watches at once, the rest when time is up.
type drain struct {
	watch, hard               context.Context // done when it is time to leave
	cancelWatches, cancelHard context.CancelFunc
}

func newDrain() *drain {
	d := new(drain)
	d.hard, d.cancelHard = context.WithCancel(context.Background())
	d.watch, d.cancelWatches = context.WithCancel(d.hard)
	return d
}

func (d *drain) watches() { d.cancelWatches() }
func (d *drain) all()     { d.cancelHard() }

func shuttingDown() error {
	return &api.Refusal{
		Reason:  pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN,
		Message: "the service is stopping; call again, another replica or the restarted service answers",
	}
}

// join returns ctx that also ends with until, and what to make of the call's
// error then.
func join(ctx, until context.Context) (joined context.Context, judge func(error) error, leave func()) {
	joined, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(until, cancel)
	judge = func(err error) error {
		if err != nil && until.Err() != nil && ctx.Err() == nil {
			return shuttingDown()
		}
		return err
	}
	return joined, judge, func() { stop(); cancel() }
}

func (d *drain) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, judge, leave := join(ctx, d.hard)
	defer leave()
	resp, err := next(ctx, req)
	if err != nil {
		return nil, judge(err)
	}
	return resp, nil
}

func (d *drain) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, judge, leave := join(ss.Context(), d.watch)
	defer leave()
	return judge(next(srv, &streamWithContext{ServerStream: ss, ctx: ctx}))
}

// streamWithContext replaces the context of a stream.
type streamWithContext struct {
	grpc.ServerStream

	ctx context.Context
}

func (s *streamWithContext) Context() context.Context { return s.ctx }
