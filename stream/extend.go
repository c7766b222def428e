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

// delivery is one entry that this worker holds, from its read until its settlement.
type delivery struct {
	msg    Message
	ctx    context.Context
	cancel context.CancelCauseFunc
	epoch  uint64    // partitionWorker.broken at the time of the read
	read   time.Time // time of the read

	handling handling // not used for a retry of another group

	slotReturned bool // its settlement failed, and its slot was freed; used by settler

	// Written when the handling ends.
	panicked bool
	returned time.Duration // since read; only set for an observer

	// Guarded by holdings.
	listed     bool
	prev, next *delivery

	mu        sync.Mutex
	extended  time.Time // monotonic: the idle time on the server began no earlier
	lost      bool
	cancelled bool // the message was, by a call of Cancel
}

// sameMaster is the time after a read within which this worker cannot yet be connected to another master.
const sameMaster = 100 * time.Millisecond

// heldAt names the entry for a settlement. It adds the message ID if a failover is possible since the read, because the
// new master may have given the entry ID to another message. An idle worker does not notice that its connection broke.
func (p *partitionWorker) heldAt(d *delivery, now time.Time) lua.Held {
	if d.epoch == p.broken.Load() && now.Sub(d.read) < sameMaster {
		return lua.Held{Entry: d.msg.EntryID, Key: d.msg.Extra[lua.FieldKey]}
	}
	return lua.Held{Entry: d.msg.EntryID, ID: d.msg.ID, Key: d.msg.Extra[lua.FieldKey]}
}

// foreign reports whether the entry is a retry for another group: it is acknowledged, never handled.
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

	// learnWithin is the longest time between two extends, however long the visibility timeout is. So a handler learns
	// within 5 seconds that its message was cancelled. While nothing is held no call is sent.
	learnWithin = 4500 * time.Millisecond
)

// extendLoop extends all held entries every third of the visibility timeout, at the latest after learnWithin, and at
// once when the timeout changes. It only needs the server of the queue.
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

// refreshLoop reads the policy at intervals. Neither reads of the stream nor extends wait for it.
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
	policies, warning, err := p.cfg.Policies.Read(ctx, p.cfg.Client, lua.PartitionName(p.cfg.Queue, p.partition),
		[]string{p.cfg.Group})
	if err != nil {
		return err
	}
	policy := policies[p.cfg.Group]
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

// extendHeld extends all held entries. It cancels handlers whose delivery is lost, or may be lost because no extend has
// succeeded for a visibility timeout.
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
	before := time.Now() // idle time on the server begins after this
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
			if p.held.has(d) { // else it was settled during the call
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
