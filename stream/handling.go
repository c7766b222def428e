package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// handling is one call of the handler, with its time limit.
type handling struct {
	message   Message       // the handler's copy, sharing only the payload: an abandoned handler may still write to it
	began     time.Duration // since the delivery was read
	goroutine uint64        // ID of the handler's goroutine; 0 = unknown
	keepsSlot bool          // the slot stays taken, because the handler was abandoned when too many others were

	mu        sync.Mutex
	timeout   time.Duration // 0 = no limit
	timer     *time.Timer   // for the timeout, then for AbandonAfter
	called    bool          // begin has prepared the call
	timedOut  bool          // the timeout is over, and the context is cancelled
	ended     bool          // the handler returned, or was abandoned
	abandoned bool
}

// handle runs the handler on one delivery, and settles the delivery by its result. If the rate of the group does not
// allow the handler soon, it releases the delivery.
func (p *partitionWorker) handle(d *delivery) {
	if p.queue.rate != nil {
		if err := p.queue.rate.take(d.ctx, p.stopping); err != nil {
			p.finish(d, Release(err))
			return
		}
	}
	err, panicked := errGoexit, false
	defer func() { p.returned(d, err, panicked) }() // deferred, because nothing else runs after runtime.Goexit
	p.begin(d)
	p.tellHandling(d)
	panicked, err = p.callHandler(d)
}

var errGoexit = errors.New("handler ended its goroutine")

// begin prepares the handler's call, on the goroutine that will make it.
func (p *partitionWorker) begin(d *delivery) {
	h := &d.handling
	h.message = d.msg
	h.message.Headers, h.message.Extra = maps.Clone(d.msg.Headers), maps.Clone(d.msg.Extra)
	h.began = time.Since(d.read)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.called = true
	// The policy is read under the lock. So either this call sees a new policy, or applyTimeouts sees this handler.
	timeout := p.timeoutOf(&d.msg)
	if timeout > 0 {
		h.goroutine = goroutineID()
	}
	p.setTimeout(d, timeout)
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

// setTimeout sets the timeout of a running handler, counted from its beginning. The caller holds d.handling.mu.
func (p *partitionWorker) setTimeout(d *delivery, timeout time.Duration) {
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

// callHandler calls the handler, and turns a panic into an error.
func (p *partitionWorker) callHandler(d *delivery) (panicked bool, err error) {
	defer func() {
		if what := recover(); what != nil {
			panicked = true
			stack := debug.Stack()
			err = fmt.Errorf("panic: %v\n%s", what, stack)
			p.logDelivery(slog.LevelError, "handler panicked", d,
				slog.Any("panic", what), slog.String("stack", string(stack)))
		}
	}()
	return false, p.cfg.Handler(d.ctx, &d.handling.message)
}

// returned settles a delivery by the result of its handler. The result of an abandoned handler has no effect.
func (p *partitionWorker) returned(d *delivery, err error, panicked bool) {
	if !d.handling.markReturned() {
		p.report(observe.AbandonedReturned, 1)
		p.pool.slots.put(p.pool.abandoned.remove())
		return
	}
	d.panicked = panicked
	p.tellHandled(d)
	p.finish(d, err)
}

// markReturned reports whether the handler returned before it was abandoned.
func (h *handling) markReturned() bool {
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

// finish settles a delivery after its handler returned err, or was abandoned.
func (p *partitionWorker) finish(d *delivery, err error) {
	if d.isLost() {
		p.lost.Add(1)
		p.logDelivery(slog.LevelInfo, "finished after the delivery was lost: no effect", d)
		d.settlement = Lost
		p.settled([]*delivery{d}, true)
		return
	}
	failure := d.failureBy(err)
	if failure != nil {
		failure.Trace = d.settledMessage().Trace
		failure.Progress = d.progress.last()
	}
	p.settle(d, failure)
}

// failureBy returns how to settle a delivery whose handler returned err, or nil to acknowledge it.
func (d *delivery) failureBy(err error) *lua.Failure {
	cause := context.Cause(d.ctx)
	switch {
	case d.isCancelled():
		return &lua.Failure{Action: lua.ActionCancel, Delay: -1}
	case err == nil:
		return nil
	case d.handling.wasAbandoned(), errors.Is(cause, ErrHandlerTimeout):
		return d.timeoutFailure(err)
	case errors.Is(cause, ErrStopping), errors.Is(cause, ErrUnreachable):
		// The stop or an outage interrupted the handler; it did not fail. So no attempt is counted.
		return &lua.Failure{Action: lua.ActionRelease, Delay: -1}
	}
	failure := FailureOf(err)
	return &failure
}

// timeoutFailure is FailureOf for a handler that failed after its timeout. The attempt counts, even if the handler
// asked for a snooze or a release. If the handler asked for a dead letter, it gets one.
func (d *delivery) timeoutFailure(err error) *lua.Failure {
	f := FailureOf(err)
	if f.Action == lua.ActionDead {
		return &f
	}
	if f.Action != lua.ActionRetry { // a snooze or a release
		f.Delay = -1
	}
	text := fmt.Sprintf("%s: not done after %s", lua.ReasonHandlerTimeout, d.handling.timeout)
	if f.Error != "" && !errors.Is(err, ErrHandlerTimeout) {
		text += ": " + f.Error
	}
	f.Action, f.Reason, f.Error = lua.ActionRetry, lua.ReasonHandlerTimeout, text
	return &f
}

// settledMessage returns the message for the observers of its settlement: the handler's copy, unless the handler was
// abandoned.
func (d *delivery) settledMessage() *Message {
	d.handling.mu.Lock()
	defer d.handling.mu.Unlock()
	if d.handling.called && d.handling.ended && !d.handling.abandoned {
		return &d.handling.message
	}
	return &d.msg
}

// applyTimeouts applies a changed policy to running handlers: an operator who sets a timeout wants to end handlers that
// hang.
func (p *partitionWorker) applyTimeouts() {
	for _, d := range p.held.list() {
		d.handling.mu.Lock()
		if d.handling.called {
			p.setTimeout(d, p.timeoutOf(&d.msg))
		}
		d.handling.mu.Unlock()
	}
}

// timeOut cancels the context of a handler that has used up its time.
func (p *partitionWorker) timeOut(d *delivery) {
	h := &d.handling
	h.mu.Lock()
	timeout := h.timeout
	// The handler may have ended, or its limit may have changed, since the timer was set.
	if h.ended || h.timedOut || timeout == 0 || d.handledFor() < timeout {
		h.mu.Unlock()
		return
	}
	h.timedOut = true
	h.timer = time.AfterFunc(p.cfg.AbandonAfter, func() { p.abandon(d) })
	h.mu.Unlock()
	if d.ctx.Err() != nil { // the context is cancelled already, because the delivery is lost or the worker stops
		return
	}
	p.timedOut.Add(1)
	p.report(observe.HandlerTimeout, 1)
	p.logDelivery(slog.LevelWarn, "handler timed out: its context is cancelled", d,
		slog.Duration("handler_timeout", timeout))
	d.cancel(ErrHandlerTimeout)
}
