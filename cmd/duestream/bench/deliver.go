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

// Deliver measures how many messages a second go from the schedule to the acknowledgement, for one group and for two.
// All messages are due already. One process has one bridge, and for each group a worker whose handler does nothing.
// The time runs from the release of the queue until all messages are acknowledged and the stream is empty. The floor
// is a program written by hand, see byHand. The server's CPU time for a message is reported for both sides.
//
// The scripts alone are the drain script called in a loop, then XREADGROUP and XACK in a loop, 500 messages per call.
// The scripts alone are the drain script called in a loop, then XREADGROUP and XACK in a loop, 500 messages each.
func Deliver(ctx context.Context, cfg DeliverConfig) (Result, error) {
	cfg.Config = cfg.Config.withDefaults(200_000, 5)
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		var figures []*series
		for _, d := range []delivering{{"deliver", []string{group}}, {"deliver_two_groups", []string{group, group + "-2"}}} {
			through, server := higher(d.name, "msg/s"), lower(d.name+"_server", "µs/msg")
			figures = append(figures, through, server)
			err := r.turns(ctx, through, func(ctx context.Context) (float64, error) {
				return r.byHand(ctx, d, &server.floor)
			}, func(ctx context.Context) (float64, error) { return r.deliver(ctx, d, &server.values) })
			if err != nil {
				return Result{}, err
			}
		}
		drain, read := higher("drain_script_alone", "msg/s"), higher("xreadgroup_xack_alone", "msg/s")
		for range r.Rounds {
			d, a, err := r.scriptsAlone(ctx)
			if err != nil {
				return Result{}, err
			}
			drain.add(d)
			read.add(a)
		}
		return result("deliver", append(figures, drain, read)...), nil
	})
}

// delivering is a figure of Deliver.
type delivering struct {
	name   string
	groups []string
}

// due fills the held queue with messages that are due, and creates the groups.
func (r *rig) due(ctx context.Context, what string, groups ...string) error {
	for _, name := range groups {
		if err := r.group(ctx, name); err != nil {
			return err
		}
	}
	if err := r.hold(ctx, true); err != nil {
		return err
	}
	now := time.Now().Add(-time.Second)
	return r.fill(ctx, what, r.Messages, func(int) time.Time { return now })
}

// scriptsAlone measures the drain and the read on their own, in messages a second.
func (r *rig) scriptsAlone(ctx context.Context) (drain, read float64, err error) {
	if err := r.due(ctx, "fill", group); err != nil {
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

func (r *rig) deliver(ctx context.Context, d delivering, server *[]float64) (rate float64, err error) {
	if err := r.due(ctx, "fill", d.groups...); err != nil {
		return 0, err
	}
	var handled atomic.Int64
	b, err := r.serve(ctx)
	if err != nil {
		return 0, err
	}
	parts := []*part{b}
	for _, name := range d.groups {
		w, err := r.work(ctx, bridge.WorkerConfig{Group: name, Handler: func(context.Context, *bridge.Message) error {
			handled.Add(1)
			return nil
		}})
		if err != nil {
			return 0, errors.Join(err, stop(parts...))
		}
		parts = append(parts, w)
	}
	rate, err = r.rated(ctx, server, func() error {
		return errors.Join(r.hold(ctx, false), r.through(ctx, &handled, len(d.groups)))
	})
	if err := errors.Join(err, stop(parts...)); err != nil {
		return 0, err
	}
	return rate, r.clear(ctx)
}

// rated returns how many messages a second go through while do runs. The server's CPU time per message is appended to
// server, if the server reports it.
func (r *rig) rated(ctx context.Context, server *[]float64, do func() error) (float64, error) {
	begin := time.Now()
	var took time.Duration
	spent, err := r.spent(ctx, func() error {
		begin = time.Now()
		defer func() { took = time.Since(begin) }()
		return do()
	})
	if spent != nil {
		*server = append(*server, spent.cpu/float64(r.Messages))
	}
	return float64(r.Messages) / took.Seconds(), err
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

// through waits until each group has handled all messages, and the stream is empty.
func (r *rig) through(ctx context.Context, handled *atomic.Int64, groups int) error {
	return until(ctx, r.longest(), "not all messages come through", func() (bool, error) {
		n := int(handled.Load())
		r.Progress("deliver", n, groups*r.Messages)
		if n < groups*r.Messages {
			return false, nil
		}
		left, err := r.number(ctx, r.c.B().Xlen().Key(r.keys.Stream).Build())
		return left == 0, err
	})
}

// longest is the time limit of a round. Any server delivers far more than the 1,000 messages a second that it allows.
func (r *rig) longest() time.Duration {
	return time.Minute + time.Duration(r.Messages)*time.Millisecond
}
