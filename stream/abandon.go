package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/observe"
)

// abandon settles a delivery whose handler ignores its context. The handler's goroutine lives on, without effect on the
// message.
//
// A worker that stops abandons no handler: it leaves the entry pending, and awaitHandlers logs the entry.
func (p *partitionWorker) abandon(d *delivery) {
	if errors.Is(context.Cause(d.ctx), ErrStopping) {
		return
	}
	h := &d.handling
	running, ok := h.markAbandoned(&p.pool.abandoned)
	if !ok {
		return
	}
	p.abandoned.Add(1)
	p.report(observe.Abandoned, 1)
	if p.log.Enabled(context.Background(), slog.LevelError) { // without a log, take no stack
		p.logDelivery(slog.LevelError,
			"handler abandoned: it ignores its cancelled context, and its goroutine lives on", d,
			slog.Duration("handler_timeout", h.timeout),
			slog.Duration("running_for", d.handledFor().Round(time.Millisecond)),
			slog.Int("abandoned_running", running),
			slog.Bool("slot_kept", h.keepsSlot),
			slog.String("stack", p.pool.stacks.stack(h.goroutine, d.read.Add(h.began))))
	}
	p.tellHandled(d)
	p.finish(d, fmt.Errorf("the handler ignored its context for another %s", p.cfg.AbandonAfter))
}

// markAbandoned marks the handler as abandoned, and counts it. ok is false if it has returned or was abandoned before.
func (h *handling) markAbandoned(all *abandonedHandlers) (running int, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return 0, false
	}
	h.ended, h.abandoned = true, true
	running, h.keepsSlot = all.add()
	return running, true
}

func (h *handling) wasAbandoned() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.abandoned
}

// abandonedHandlers counts the abandoned handlers of a worker that have not returned. Up to the limit, each of them
// gives up its slot; beyond the limit, each keeps its slot.
type abandonedHandlers struct {
	limit   int64
	running atomic.Int64
}

func (a *abandonedHandlers) add() (running int, keepsSlot bool) {
	n := a.running.Add(1)
	return int(n), n > a.limit
}

// remove returns how many slots become free when an abandoned handler returns.
func (a *abandonedHandlers) remove() int {
	if a.running.Add(-1) >= a.limit {
		return 1
	}
	return 0
}

// trouble returns an error if handlers beyond the limit keep slots, so that the worker must be restarted.
func (a *abandonedHandlers) trouble() error {
	n := a.running.Load()
	if n <= a.limit {
		return nil
	}
	return fmt.Errorf("%d handlers ignore their cancelled contexts, %d more than MaxAbandoned (%d): "+
		"these keep their slots", n, n-a.limit, a.limit)
}
