package stream

import (
	"context"
	"log/slog"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// quickRefresh is the time between two reads of the policy while it pauses the worker, or while the worker is busy.
const quickRefresh = time.Second

// refreshLoop reads the policy at intervals. Neither reads of the stream nor extends wait for it.
func (p *partitionWorker) refreshLoop(ctx context.Context) {
	for {
		p.refreshes.begin()
		_ = p.refreshPolicy(ctx) // after an error the last policy stays in force; the reads report the outage
		p.refreshes.end()
		if !loop.SleepUntil(ctx, policy.RefreshInterval, p.refresh) {
			return
		}
	}
}

func (p *partitionWorker) refreshPolicy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	policies, warning, err := p.cfg.Policies.Read(ctx, p.cfg.Client, lua.PartitionName(p.cfg.Queue, p.partition),
		[]string{p.cfg.Group})
	if err != nil {
		return err
	}
	now := policies[p.cfg.Group]
	if old := p.policy.Swap(&now); *old != now {
		loop.Poke(p.policyChanged)
		if old.HeldWorkers && !now.HeldWorkers {
			loop.Poke(p.resumed)
		}
		if old.HandlerTimeout != now.HandlerTimeout {
			p.applyTimeouts()
		}
		p.log.Info("policy", slog.Duration("visibility_timeout", now.VisibilityTimeout),
			slog.Int("max_attempts", now.MaxAttempts),
			slog.Duration("retry_min", now.RetryMin), slog.Duration("retry_max", now.RetryMax))
		if warning != nil {
			p.log.Warn("policy has settings that do not count", slog.Any("error", warning))
		}
	}
	return nil
}

// waitWhilePaused waits until the policy ends the pause of the worker, but at most for quickRefresh.
func (p *partitionWorker) waitWhilePaused(ctx context.Context) {
	p.setIdle(true)
	loop.Poke(p.refresh)
	loop.SleepUntil(ctx, quickRefresh, p.resumed)
}

// refreshWhileBusy asks for a read of the policy, at most once a second. It is called while there are entries to read.
// So a pause of the workers takes effect soon, and an idle worker costs nothing extra.
func (p *partitionWorker) refreshWhileBusy() {
	if now := time.Now(); now.Sub(p.askedAt) >= quickRefresh {
		p.askedAt = now
		loop.Poke(p.refresh)
	}
}
