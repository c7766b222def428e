package bench

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// RetryConfig configures Retry. Messages is 200,000 by default, Rounds 3.
type RetryConfig struct {
	Config
	Attempts int // deliveries per message; default 5
}

const (
	retryMin = 10 * time.Millisecond
	retryMax = 100 * time.Millisecond
)

var errBench = errors.New("a handler that always fails")

// Retry measures how many failed deliveries a second are scheduled again or dead-lettered. Every message fails in all
// its attempts, with short delays. There is one bridge and one worker. The floor is the scripts alone as in Deliver,
// with the retry script in place of XACK, 500 messages per call.
func Retry(ctx context.Context, cfg RetryConfig) (Result, error) {
	cfg.Config, cfg.Attempts = cfg.Config.withDefaults(200_000, 3), cmp.Or(cfg.Attempts, 5)
	if err := Check("attempts", cfg.Attempts); err != nil {
		return Result{}, err
	}
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		low, high := retryMin, retryMax
		err := r.op.WritePolicy(ctx, r.Queue, "",
			admin.PolicyUpdate{MaxAttempts: &cfg.Attempts, RetryMin: &low, RetryMax: &high})
		if err != nil {
			return Result{}, err
		}
		deliveries := higher("retry", "deliveries/s")
		drain, retry := higher("drain_script_alone", "msg/s"), higher("xreadgroup_retry_script_alone", "msg/s")
		floor := func(ctx context.Context) (float64, error) {
			drainRate, retryRate, err := r.scriptsAlone(ctx, r.retryScript(cfg.Attempts))
			drain.add(drainRate)
			retry.add(retryRate)
			return combinedRate(drainRate, retryRate), err
		}
		product := func(ctx context.Context) (float64, error) { return r.retry(ctx, cfg.Attempts) }
		err = r.turns(ctx, deliveries, floor, product)
		return result("retry", deliveries, drain, retry), err
	})
}

// retryScript is a settlement that schedules all entries again, so late that they are not due during the measurement.
func (r *rig) retryScript(attempts int) settlement {
	policy := lua.Attempts{Max: attempts, Delays: []time.Duration{time.Hour}}
	const byPolicy = -1 // a delay that the policy decides
	return func(ctx context.Context, group string, entries []rueidis.XRangeSlice) error {
		failures := make([]lua.Failure, len(entries))
		for i, e := range entries {
			failures[i] = lua.Failure{Held: lua.Held{Entry: e.ID}, Action: lua.ActionRetry, Delay: byPolicy,
				Reason: lua.ReasonMaxAttempts, Error: errBench.Error()}
		}
		_, err := lua.Retry(ctx, r.c, r.keys, group, policy, failures)
		return err
	}
}

// retry measures one round of the product, in deliveries a second.
func (r *rig) retry(ctx context.Context, attempts int) (float64, error) {
	if err := r.fillDue(ctx, group); err != nil {
		return 0, err
	}
	parts, err := r.process(ctx, bridge.WorkerConfig{Group: group, Handler: func(context.Context, *bridge.Message) error {
		return errBench
	}})
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err = r.hold(ctx, false); err == nil {
		err = until(ctx, time.Duration(attempts)*r.timeLimit(), "not all messages are dead-lettered", func() (bool, error) {
			dead, err := r.number(ctx, r.c.B().Xlen().Key(r.keys.Dead).Build())
			r.Progress("retry", dead, r.Messages)
			return dead >= r.Messages, err
		})
	}
	took := time.Since(begin)
	if err := errors.Join(err, stop(parts...)); err != nil {
		return 0, err
	}
	return float64(r.Messages*attempts) / took.Seconds(), r.clear(ctx)
}
