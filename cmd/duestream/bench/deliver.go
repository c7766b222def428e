package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
)

const group = "bench"

// DeliverConfig configures Deliver. Messages is 200,000 by default.
type DeliverConfig struct{ Config }

// Deliver measures how many messages a second come through from the schedule to the acknowledgement: all are due already, one
// process has one bridge and one worker whose handler does nothing, and the clock runs from the moment at which the queue is
// let go until all are acknowledged and the stream is empty. The floor is the drain script called in a loop, then XREADGROUP
// and XACK in a loop, 500 messages each, on as many messages: 1/(1/drain + 1/read), which is what a server that does one thing
// at a time can do at best in calls of that size. Freeing the entries is in the figure and not in the floor.
func Deliver(ctx context.Context, cfg DeliverConfig) (Result, error) {
	cfg.Config = cfg.Config.withDefaults(200_000, 5)
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		through := higher("deliver", "msg/s")
		drain, read := higher("drain_script_alone", "msg/s"), higher("xreadgroup_xack_alone", "msg/s")
		err := r.turns(ctx, through, func(ctx context.Context) (float64, error) {
			d, a, err := r.deliverFloor(ctx)
			drain.add(d)
			read.add(a)
			return harmonic(d, a), err
		}, r.deliver)
		return result("deliver", through, drain, read), err
	})
}

// due fills the queue with messages that are due, and held. The group is there.
func (r *rig) due(ctx context.Context, what string) error {
	if err := r.group(ctx, group); err != nil {
		return err
	}
	if err := r.hold(ctx, true); err != nil {
		return err
	}
	now := time.Now().Add(-time.Second)
	return r.fill(ctx, what, r.Messages, func(int) time.Time { return now })
}

// deliverFloor measures the two stages on their own.
func (r *rig) deliverFloor(ctx context.Context) (drain, read float64, err error) {
	if err := r.due(ctx, "fill"); err != nil {
		return 0, 0, err
	}
	if err := r.hold(ctx, false); err != nil {
		return 0, 0, err
	}
	if drain, err = r.drainAlone(ctx); err != nil {
		return 0, 0, err
	}
	if read, err = r.readAlone(ctx, group, r.xack(group)); err != nil {
		return 0, 0, err
	}
	return drain, read, r.clear(ctx)
}

func (r *rig) deliver(ctx context.Context) (rate float64, err error) {
	if err := r.due(ctx, "fill"); err != nil {
		return 0, err
	}
	var handled atomic.Int64
	parts, err := r.process(ctx, bridge.WorkerConfig{Group: group, Handler: func(context.Context, *bridge.Message) error {
		handled.Add(1)
		return nil
	}})
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err = r.hold(ctx, false); err == nil {
		err = r.through(ctx, &handled)
	}
	took := time.Since(begin)
	if err := errors.Join(err, stop(parts...)); err != nil {
		return 0, err
	}
	return float64(r.Messages) / took.Seconds(), r.clear(ctx)
}

// process starts one bridge and one worker.
func (r *rig) process(ctx context.Context, cfg bridge.WorkerConfig) ([]*part, error) {
	b, err := r.serve(ctx)
	if err != nil {
		return nil, err
	}
	w, err := r.work(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, stop(b))
	}
	return []*part{b, w}, nil
}

// through waits until as many messages were handled as there are, and the stream is empty.
func (r *rig) through(ctx context.Context, handled *atomic.Int64) error {
	return until(ctx, r.longest(), "not all messages come through", func() (bool, error) {
		n := int(handled.Load())
		r.Progress("deliver", n, r.Messages)
		if n < r.Messages {
			return false, nil
		}
		left, err := r.number(ctx, r.c.B().Xlen().Key(r.keys.Stream).Build())
		return left == 0, err
	})
}

// longest is how long the messages of a round may take: 1,000 a second are far too few for any server.
func (r *rig) longest() time.Duration {
	return time.Minute + time.Duration(r.Messages)*time.Millisecond
}
