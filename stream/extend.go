package stream

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const (
	extendBatch = 200 // entries per call

	// learnWithin is the longest time between two extends, however long the visibility timeout is, so that a handler
	// learns within 5 seconds that its message was cancelled. While the worker holds no entries, it sends no extends.
	learnWithin = 4500 * time.Millisecond
)

// extendLoop extends all held entries every third of the visibility timeout, but at least every learnWithin, and at
// once when the policy changes. It uses no server but the queue's.
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
	before := time.Now() // the idle time on the server begins after this time
	limited, cancel := context.WithTimeout(ctx, max(100*time.Millisecond, min(loop.CallTimeout, visibility/3)))
	own, err := lua.Extend(limited, p.cfg.Client, p.keys, p.cfg.Group, p.cfg.Consumer, held)
	cancel()
	for i, d := range batch {
		switch {
		case err == nil && own[i] != lua.NotHeld:
			d.mu.Lock()
			d.extended = before
			d.mu.Unlock()
			if own[i] == lua.HeldCancelled && p.held.has(d) && !d.isCancelled() {
				p.logDelivery(slog.LevelInfo, "cancelled while it was handled", d)
				d.lose(ErrCancelled)
			}
		case err == nil:
			if p.held.has(d) { // a delivery that was settled during the call is not lost
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
