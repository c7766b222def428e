package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// handling is one call of the handler, with its time limit.
type handling struct {
	message   Message       // the handler's copy, sharing only the payload: an abandoned handler may still write to it
	began     time.Duration // since the delivery was read
	goroutine uint64        // of the handler; 0 = unknown
	keepsSlot bool          // it was abandoned, but too many are: its slot stays taken

	mu        sync.Mutex
	timeout   time.Duration // 0 = no limit
	timer     *time.Timer   // for the timeout, then for AbandonAfter
	running   bool          // the handler was called
	timedOut  bool
	ended     bool // the handler returned, or was abandoned
	abandoned bool
}

// begin prepares the handler's call, on the goroutine that will make it.
func (p *partitionWorker) begin(d *delivery) {
	h := &d.handling
	h.message = d.msg
	h.message.Headers, h.message.Extra = maps.Clone(d.msg.Headers), maps.Clone(d.msg.Extra)
	h.began = time.Since(d.read)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
	timeout := p.timeoutOf(&d.msg) // under the lock: either this sees a new policy, or limitAll sees this handler
	if timeout > 0 {
		h.goroutine = goroutineID()
	}
	p.limit(d, timeout)
}

// timeoutOf returns the time limit of a message's handler; 0 = no limit. The message's own setting takes precedence,
// then the policy, then the worker's configuration.
func (p *partitionWorker) timeoutOf(m *Message) time.Duration {
	text := m.Extra[lua.FieldHandlerTimeout]
	if text != "" {
		own, err := strconv.ParseInt(text, 10, 64)
		if err == nil && own > 0 && own <= lua.MaxDelay.Milliseconds() {
			return time.Duration(own) * time.Millisecond
		}
	}
	return cmp.Or(p.policy.Load().HandlerTimeout, p.cfg.HandlerTimeout)
}

// limit sets the timeout of a running handler, counted from its beginning. The caller holds d.handling.mu.
func (p *partitionWorker) limit(d *delivery, timeout time.Duration) {
	h := &d.handling
	if h.ended || h.timedOut || h.timeout == timeout {
		return
	}
	h.timeout = timeout
	if h.timer != nil {
		h.timer.Stop()
	}
	if timeout > 0 {
		h.timer = time.AfterFunc(timeout-d.handledFor(), func() { p.timeOut(d) })
	}
}

// handledFor returns how long the handler has been running.
func (d *delivery) handledFor() time.Duration { return time.Since(d.read) - d.handling.began }

// limitAll applies a changed policy to running handlers: an operator who sets a timeout wants to end handlers that
// hang.
func (p *partitionWorker) limitAll() {
	for _, d := range p.held.list() {
		d.handling.mu.Lock()
		if d.handling.running {
			p.limit(d, p.timeoutOf(&d.msg))
		}
		d.handling.mu.Unlock()
	}
}

// settledMessage returns the message for the observers of its settlement: the handler's copy, unless the handler was
// abandoned.
func (d *delivery) settledMessage() *Message {
	d.handling.mu.Lock()
	defer d.handling.mu.Unlock()
	if d.handling.running && d.handling.ended && !d.handling.abandoned {
		return &d.handling.message
	}
	return &d.msg
}

// timeOut cancels the context of a handler that has used up its time.
func (p *partitionWorker) timeOut(d *delivery) {
	h := &d.handling
	h.mu.Lock()
	timeout := h.timeout
	if h.ended || h.timedOut || timeout == 0 || d.handledFor() < timeout { // the limit changed in between
		h.mu.Unlock()
		return
	}
	h.timedOut = true
	h.timer = time.AfterFunc(p.cfg.AbandonAfter, func() { p.abandon(d) })
	h.mu.Unlock()
	if d.ctx.Err() != nil { // lost, or the worker stops: the handler was cancelled already
		return
	}
	p.timedOut.Add(1)
	p.told(observe.HandlerTimeout, 1)
	p.note(slog.LevelWarn, "handler timed out: its context is cancelled", d, slog.Duration("handler_timeout", timeout))
	d.cancel(ErrHandlerTimeout)
}

// end reports whether the handler returned before it was abandoned.
func (h *handling) end() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	h.ended = true
	if h.timer != nil {
		h.timer.Stop()
	}
	return true
}

// giveUp marks the handler as abandoned and counts it. ok is false if it has returned or was abandoned before.
func (h *handling) giveUp(all *abandonedHandlers) (running int, ok bool) {
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

// abandon settles a delivery whose handler ignores its context. The handler's goroutine lives on, without effect on the
// message.
//
// A worker that stops abandons no handler: it leaves the entry pending, and logs that in drainHandlers.
func (p *partitionWorker) abandon(d *delivery) {
	if errors.Is(context.Cause(d.ctx), ErrStopping) {
		return
	}
	h := &d.handling
	running, ok := h.giveUp(&p.worker.abandoned)
	if !ok {
		return
	}
	p.abandoned.Add(1)
	p.told(observe.Abandoned, 1)
	if p.log.Enabled(context.Background(), slog.LevelError) { // else the stack is not needed
		p.note(slog.LevelError, "handler abandoned: it ignores its cancelled context, and its goroutine lives on", d,
			slog.Duration("handler_timeout", h.timeout), slog.Duration("running_for", d.handledFor().Round(time.Millisecond)),
			slog.Int("abandoned_running", running), slog.Bool("slot_kept", h.keepsSlot),
			slog.String("stack", p.worker.stacks.of(h.goroutine, d.read.Add(h.began))))
	}
	p.tellHandled(d)
	p.finish(d, fmt.Errorf("the handler ignored its context for another %s", p.cfg.AbandonAfter))
}

// returned settles a delivery by the result of its handler. The result of an abandoned handler has no effect.
func (p *partitionWorker) returned(d *delivery, err error, panicked bool) {
	if !d.handling.end() {
		p.told(observe.AbandonedReturned, 1)
		p.slots.put(p.worker.abandoned.remove())
		return
	}
	d.panicked = panicked
	p.tellHandled(d)
	p.finish(d, err)
}

// timeoutFailure is FailureOf for a handler that failed after its timeout. The attempt counts, also if the handler
// asked for a snooze or a release; a dead letter stays one.
func (d *delivery) timeoutFailure(err error, trace string) lua.Failure {
	f := FailureOf(err)
	f.Trace = trace
	if f.Action == lua.ActionDead {
		return f
	}
	if f.Action != lua.ActionRetry { // a snooze or a release
		f.Delay = -1
	}
	text := fmt.Sprintf("%s: not done after %s", lua.ReasonHandlerTimeout, d.handling.timeout)
	if f.Error != "" && !errors.Is(err, ErrHandlerTimeout) {
		text += ": " + f.Error
	}
	f.Action, f.Reason, f.Error = lua.ActionRetry, lua.ReasonHandlerTimeout, text
	return f
}

// abandonedHandlers counts the abandoned handlers of a worker that have not returned. Up to the limit each gives up its
// slot; each one beyond keeps its slot.
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

// trouble returns why the worker must be restarted: hanging handlers keep its slots.
func (a *abandonedHandlers) trouble() error {
	n := a.running.Load()
	if n <= a.limit {
		return nil
	}
	return fmt.Errorf("%d handlers ignore their cancelled contexts, %d more than MaxAbandoned (%d): these keep their slots", n,
		n-a.limit, a.limit)
}
