package stream

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// delivery is one entry that this worker holds, from the moment it was read until it is settled.
type delivery struct {
	msg    Message
	ctx    context.Context
	cancel context.CancelCauseFunc
	epoch  uint64    // lane.broken when it was read
	read   time.Time // when

	// Guarded by holdings.
	listed     bool
	prev, next *delivery

	mu       sync.Mutex
	extended time.Time // monotonic: the server cannot have counted less idle time than since then
	lost     bool
}

// sameMaster is how soon after a read nobody else can have become the master, and this worker be connected to it.
const sameMaster = 100 * time.Millisecond

// held names the entry for an exit: with the message ID when a failover may have come in between, because the new master may have given
// the entry ID to another message. A worker that had nothing to ask meanwhile does not see the connection break.
func (w *lane) heldAt(d *delivery, now time.Time) lua.Held {
	if d.epoch == w.broken.Load() && now.Sub(d.read) < sameMaster {
		return lua.Held{Entry: d.msg.EntryID}
	}
	return lua.Held{Entry: d.msg.EntryID, ID: d.msg.ID}
}

// foreign reports whether the entry is a retry for another group: acknowledged, never handled.
func (d *delivery) foreign() bool { return d.msg.For != "" && d.msg.For != d.msg.Group }

func (d *delivery) lose(cause error) {
	d.mu.Lock()
	d.lost = d.lost || errors.Is(cause, ErrLost)
	d.mu.Unlock()
	d.cancel(cause)
}

func (d *delivery) isLost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

const (
	policyInterval   = 5 * time.Second
	registerInterval = time.Minute
	extendBatch      = 200
	callTimeout      = 5 * time.Second
)

// extendLoop extends everything held at a third of the visibility timeout, and at once when that has changed. It asks the queue's own
// server and no other.
func (w *lane) extendLoop(ctx context.Context) {
	for {
		began, visibility := time.Now(), w.policy.Load().VisibilityTimeout
		err := w.extendHeld(ctx, visibility)
		wait := visibility/3 - time.Since(began)
		if err != nil {
			wait = max(50*time.Millisecond, visibility/10)
		}
		if !sleepUntil(ctx, wait, w.policyChanged) {
			return
		}
	}
}

// refreshLoop keeps the policy fresh. On a cluster its defaults may be out of reach while the queue is not, so neither reading nor
// extending waits for this.
func (w *lane) refreshLoop(ctx context.Context) {
	for {
		_ = w.refreshPolicy(ctx) // the last one stays in force; the reads report the outage
		if !sleepUntil(ctx, policyInterval, w.refresh) {
			return
		}
	}
}

func (w *lane) refreshPolicy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p, warning, err := ReadPolicy(ctx, w.cfg.Client, w.cfg.Prefix, lua.PartitionName(w.cfg.Queue, w.partition), w.cfg.Group)
	if err != nil {
		return err
	}
	if old := w.policy.Swap(&p); *old != p {
		poke(w.policyChanged)
		w.log.Info("policy", slog.Duration("visibility_timeout", p.VisibilityTimeout), slog.Int("max_attempts", p.MaxAttempts),
			slog.Duration("retry_min", p.RetryMin), slog.Duration("retry_max", p.RetryMax))
		if warning != nil {
			w.log.Warn("policy has settings that do not count", slog.Any("error", warning))
		}
	}
	return nil
}

// extendHeld extends everything held, tells handlers whose delivery is lost, and those for which nobody can tell any more.
func (w *lane) extendHeld(ctx context.Context, visibility time.Duration) error {
	all := w.held.list()
	var failed error
	for len(all) > 0 {
		batch := all[:min(extendBatch, len(all))]
		all = all[len(batch):]
		if err := w.extend(ctx, batch, visibility); err != nil {
			failed = err
		}
	}
	return failed
}

func (w *lane) extend(ctx context.Context, batch []*delivery, visibility time.Duration) error {
	held := make([]lua.Held, len(batch))
	for i, d := range batch {
		held[i] = lua.Held{Entry: d.msg.EntryID, ID: d.msg.ID}
	}
	before := time.Now() // the server counts idle time from later than this
	call, cancel := context.WithTimeout(ctx, max(100*time.Millisecond, min(callTimeout, visibility/3)))
	own, err := lua.Extend(call, w.cfg.Client, w.keys, w.cfg.Group, w.cfg.Consumer, held)
	cancel()
	for i, d := range batch {
		switch {
		case err == nil && own[i]:
			d.mu.Lock()
			d.extended = before
			d.mu.Unlock()
		case err == nil:
			if w.held.has(d) { // else it was settled while the call was under way
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
