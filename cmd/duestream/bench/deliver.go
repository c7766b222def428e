package bench

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
)

const group = "bench"

// twoGroups are the groups of a measurement with two groups.
var twoGroups = []string{group, group + "-2"}

// DeliverConfig configures Deliver. Messages is 200,000 by default.
type DeliverConfig struct{ Config }

// Deliver measures how many messages a second go from the schedule to the acknowledgement, for one group and for two.
// All messages are due already. One process has one bridge, and for each group a worker whose handler does nothing.
// The time runs from the release of the queue until all messages are acknowledged and the stream is empty. The floor
// is a program written by hand, see byHand. The server's CPU time for a message is reported for both sides.
//
// The typed path is measured with one group: its worker has a bridge.Mux with one kind, whose payloads are JSON. Its
// floor is the handler of bridge.WorkerConfig that decodes the same payloads by itself. The allocations are those of
// the whole process.
//
// The scripts alone are the drain script called in a loop, then XREADGROUP and XACK in a loop, 500 messages per call.
func Deliver(ctx context.Context, cfg DeliverConfig) (Result, error) {
	cfg.Config = cfg.Config.withDefaults(200_000, 5)
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		var figures []*series
		for _, s := range []struct {
			name   string
			groups []string
		}{{"deliver", []string{group}}, {"deliver_two_groups", twoGroups}} {
			rate, cpu := higher(s.name, "msg/s"), lower(s.name+"_server", "µs/msg")
			figures = append(figures, rate, cpu)
			floor := func(ctx context.Context) (float64, error) { return r.byHand(ctx, s.groups, &cpu.floor) }
			product := func(ctx context.Context) (float64, error) { return r.deliver(ctx, s.groups, &cpu.values) }
			if err := r.turns(ctx, rate, floor, product); err != nil {
				return Result{}, err
			}
		}
		typed, err := r.typed(ctx)
		if err != nil {
			return Result{}, err
		}
		figures = append(figures, typed...)
		drain, read := higher("drain_script_alone", "msg/s"), higher("xreadgroup_xack_alone", "msg/s")
		for range r.Rounds {
			drainRate, readRate, err := r.scriptsAlone(ctx, r.xack)
			if err != nil {
				return Result{}, err
			}
			drain.add(drainRate)
			read.add(readRate)
		}
		return result("deliver", append(figures, drain, read)...), nil
	})
}

// fillDue holds the queue, creates the groups, and fills the queue with messages that are due.
func (r *rig) fillDue(ctx context.Context, groups ...string) error {
	if err := r.createGroups(ctx, groups...); err != nil {
		return err
	}
	if err := r.hold(ctx, true); err != nil {
		return err
	}
	due := time.Now().Add(-time.Second)
	return r.fill(ctx, "fill", r.Messages, func(int) time.Time { return due })
}

// scriptsAlone measures the drain and the read on their own, in messages a second. It calls settle with the entries of
// each read.
func (r *rig) scriptsAlone(ctx context.Context, settle settlement) (drain, read float64, err error) {
	if err := r.fillDue(ctx, group); err != nil {
		return 0, 0, err
	}
	if err := r.hold(ctx, false); err != nil {
		return 0, 0, err
	}
	if drain, err = r.drainAlone(ctx); err != nil {
		return 0, 0, err
	}
	if read, err = r.readAlone(ctx, group, settle); err != nil {
		return 0, 0, err
	}
	return drain, read, r.clear(ctx)
}

// deliver measures one round of the product, in messages a second.
func (r *rig) deliver(ctx context.Context, groups []string, cpu *[]float64) (rate float64, err error) {
	var handled atomic.Int64
	handle := func(context.Context, *bridge.Message) error {
		handled.Add(1)
		return nil
	}
	var workers []bridge.WorkerConfig
	for _, name := range groups {
		workers = append(workers, bridge.WorkerConfig{Group: name, Handler: handle})
	}
	return r.deliverTo(ctx, workers, &handled, messageCosts{cpu: cpu})
}

// messageCosts collects the costs of a message: the server's CPU time in µs, and the objects that this process
// allocates. A list may be nil.
type messageCosts struct{ cpu, allocations *[]float64 }

// deliverTo measures one round with workers of different groups, whose handlers count their calls in handled.
func (r *rig) deliverTo(ctx context.Context, workers []bridge.WorkerConfig, handled *atomic.Int64, spent messageCosts) (
	rate float64, err error) {
	var groups []string
	for _, w := range workers {
		groups = append(groups, w.Group)
	}
	if err := r.fillDue(ctx, groups...); err != nil {
		return 0, err
	}
	parts, err := r.process(ctx, workers...)
	if err != nil {
		return 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	rate, err = r.rate(ctx, spent.cpu, func() error {
		return errors.Join(r.hold(ctx, false), r.awaitHandled(ctx, r.timeLimit(), handled, len(groups)))
	})
	runtime.ReadMemStats(&after)
	if spent.allocations != nil {
		*spent.allocations = append(*spent.allocations, float64(after.Mallocs-before.Mallocs)/float64(r.Messages))
	}
	if err := errors.Join(err, stop(parts...)); err != nil {
		return 0, err
	}
	return rate, r.clear(ctx)
}

// rate returns how many messages a second go through while do runs. It appends the server's CPU time per message to
// cpu, if the server reports it.
func (r *rig) rate(ctx context.Context, cpu *[]float64, do func() error) (float64, error) {
	var took time.Duration
	spent, err := r.spent(ctx, func() error {
		begin := time.Now()
		err := do()
		took = time.Since(begin)
		return err
	})
	if spent != nil {
		*cpu = append(*cpu, spent.cpu/float64(r.Messages))
	}
	return float64(r.Messages) / took.Seconds(), err
}

// process starts one bridge, and then the workers.
func (r *rig) process(ctx context.Context, workers ...bridge.WorkerConfig) ([]*part, error) {
	b, err := r.serve(ctx)
	if err != nil {
		return nil, err
	}
	parts := []*part{b}
	for _, cfg := range workers {
		w, err := r.work(ctx, cfg)
		if err != nil {
			return nil, errors.Join(err, stop(parts...))
		}
		parts = append(parts, w)
	}
	return parts, nil
}

// awaitHandled waits until each group has handled all messages, and the stream is empty.
func (r *rig) awaitHandled(ctx context.Context, limit time.Duration, handled *atomic.Int64, groups int) error {
	return until(ctx, limit, notAllHandled, func() (bool, error) {
		n := int(handled.Load())
		r.Progress("deliver", n, groups*r.Messages)
		if n < groups*r.Messages {
			return false, nil
		}
		left, err := r.number(ctx, r.c.B().Xlen().Key(r.keys.Stream).Build())
		return left == 0, err
	})
}

// notAllHandled is the error text of a wait for messages to be handled.
const notAllHandled = "not all messages come through"

// timeLimit is the time limit of a round. It is enough for 1,000 messages a second, and any server delivers far more.
func (r *rig) timeLimit() time.Duration {
	return time.Minute + time.Duration(r.Messages)*time.Millisecond
}
