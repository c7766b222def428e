package stream

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// delivery is one entry that this worker holds, from the moment it was read until it is settled.
type delivery struct {
	msg    Message
	ctx    context.Context
	cancel context.CancelCauseFunc
	epoch  uint64    // partitionWorker.broken when it was read
	read   time.Time // when

	handling handling // of a delivery that is this group's

	// Written when the handling ends.
	panicked bool
	returned time.Duration // since read: when the handler did; only where somebody listens

	// Guarded by holdings.
	listed     bool
	prev, next *delivery

	mu        sync.Mutex
	extended  time.Time // monotonic: the server cannot have counted less idle time than since then
	lost      bool
	cancelled bool // the message was, by somebody's Cancel
}

// sameMaster: so soon after a read this worker cannot be connected to another master yet.
const sameMaster = 100 * time.Millisecond

// held names the entry for a settlement. It adds the message ID when there may have been a failover since the read, because the
// new master may have given the entry ID to another message. A worker that sends nothing does not see its connection break.
func (p *partitionWorker) heldAt(d *delivery, now time.Time) lua.Held {
	if d.epoch == p.broken.Load() && now.Sub(d.read) < sameMaster {
		return lua.Held{Entry: d.msg.EntryID, Key: d.msg.Extra[lua.FieldKey]}
	}
	return lua.Held{Entry: d.msg.EntryID, ID: d.msg.ID, Key: d.msg.Extra[lua.FieldKey]}
}

// foreign reports whether the entry is a retry for another group: acknowledged, never handled.
func (d *delivery) foreign() bool { return d.msg.For != "" && d.msg.For != d.msg.Group }

func (d *delivery) lose(cause error) {
	d.mu.Lock()
	d.lost = d.lost || errors.Is(cause, ErrLost)
	d.cancelled = d.cancelled || errors.Is(cause, ErrCancelled)
	d.mu.Unlock()
	d.cancel(cause)
}

func (d *delivery) isLost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

func (d *delivery) isCancelled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cancelled
}

const (
	PolicyInterval   = 5 * time.Second
	registerInterval = time.Minute
	extendBatch      = 200

	// learnWithin is how often a worker extends at least, however long the visibility timeout is, so that a handler hears within
	// 5 seconds that its message was cancelled. While nothing is held no call is sent.
	learnWithin = 4500 * time.Millisecond
)

// extendLoop extends everything held at a third of the visibility timeout, after learnWithin at the latest, and at once when the
// timeout has changed. It needs the queue's own server and no other.
func (p *partitionWorker) extendLoop(ctx context.Context) {
	for {
		began, visibility := time.Now(), p.policy.Load().VisibilityTimeout
		p.extends.begin()
		err := p.extendHeld(ctx, visibility)
		p.extends.end()
		wait := min(visibility/3, learnWithin) - time.Since(began)
		if err != nil {
			wait = max(50*time.Millisecond, visibility/10)
		}
		if !loop.SleepUntil(ctx, wait, p.policyChanged) {
			return
		}
	}
}

// refreshLoop reads the policy again and again. On a cluster the defaults may be out of reach while the queue is not, so neither
// reading nor extending waits for it.
func (p *partitionWorker) refreshLoop(ctx context.Context) {
	for {
		p.looks.begin()
		_ = p.refreshPolicy(ctx) // after an error the last policy stays in force; the reads report the outage
		p.looks.end()
		if !loop.SleepUntil(ctx, PolicyInterval, p.refresh) {
			return
		}
	}
}

func (p *partitionWorker) refreshPolicy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	policy, warning, err := ReadPolicy(ctx, p.cfg.Client, p.cfg.Prefix, lua.PartitionName(p.cfg.Queue, p.partition), p.cfg.Group)
	if err != nil {
		return err
	}
	if old := p.policy.Swap(&policy); *old != policy {
		loop.Poke(p.policyChanged)
		if old.HeldWorkers && !policy.HeldWorkers {
			loop.Poke(p.resumed)
		}
		if old.HandlerTimeout != policy.HandlerTimeout {
			p.limitAll()
		}
		p.log.Info("policy", slog.Duration("visibility_timeout", policy.VisibilityTimeout),
			slog.Int("max_attempts", policy.MaxAttempts),
			slog.Duration("retry_min", policy.RetryMin), slog.Duration("retry_max", policy.RetryMax))
		if warning != nil {
			p.log.Warn("policy has settings that do not count", slog.Any("error", warning))
		}
	}
	return nil
}

// extendHeld extends everything held. It tells handlers when their delivery is lost, and when nobody can know that any more.
func (p *partitionWorker) extendHeld(ctx context.Context, visibility time.Duration) error {
	all := slices.DeleteFunc(p.held.list(), func(d *delivery) bool { return d.handling.wasAbandoned() })
	var failed error
	for len(all) > 0 {
		batch := all[:min(extendBatch, len(all))]
		all = all[len(batch):]
		p.extends.step()
		if err := p.extend(ctx, batch, visibility); err != nil {
			failed = err
		}
	}
	return failed
}

func (p *partitionWorker) extend(ctx context.Context, batch []*delivery, visibility time.Duration) error {
	held := make([]lua.Held, len(batch))
	for i, d := range batch {
		held[i] = lua.Held{Entry: d.msg.EntryID, ID: d.msg.ID}
	}
	before := time.Now() // the server counts idle time from later than this
	call, cancel := context.WithTimeout(ctx, max(100*time.Millisecond, min(loop.CallTimeout, visibility/3)))
	own, err := lua.Extend(call, p.cfg.Client, p.keys, p.cfg.Group, p.cfg.Consumer, held)
	cancel()
	for i, d := range batch {
		switch {
		case err == nil && own[i] != lua.NotHeld:
			d.mu.Lock()
			d.extended = before
			d.mu.Unlock()
			if own[i] == lua.HeldCancelled && p.held.has(d) && !d.isCancelled() {
				p.note(slog.LevelInfo, "cancelled while it was handled", d)
				d.lose(ErrCancelled)
			}
		case err == nil:
			if p.held.has(d) { // else it was settled while the call was under way
				d.lose(ErrLost)
			}
		default:
			d.mu.Lock()
			late := time.Since(d.extended) > visibility
			d.mu.Unlock()
			if late {
				d.lose(ErrUnreachable)
			}
		}
	}
	return err
}
