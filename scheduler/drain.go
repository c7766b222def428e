package scheduler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// drainSlack is the greatest time by which a drain may be later than a new due time without the loop being woken.
const drainSlack = 5 * time.Millisecond

// drainer is the loop of one owned queue. It drains the due messages, and then sleeps until the next due time, or until
// poke announces an earlier one.
type drainer struct {
	drain  func(context.Context) (lua.Drained, error)
	state  *loop.Reporter // reports whether drains fail
	poked  chan struct{}
	cancel context.CancelFunc
	// deadLettering reports whether the stream of dead letters takes entries. If it does not, other messages of the
	// queue are still drained.
	deadLettering *loop.Reporter

	reportMu  sync.Mutex
	wrongType bool // the last drain failed because a key has the wrong type; guarded by reportMu

	mu        sync.Mutex
	nextDrain time.Time // planned time of the next drain; in the past while a drain runs
	oldestDue time.Time // local due time of the oldest overdue message, by the last survey; zero = none is overdue
	heldBack  bool      // the last drain found due messages that the policy holds back

	// roomWait is the last sleep of the loop while a ready limit left no room; zero = there was room. Only the loop
	// uses it.
	roomWait time.Duration
}

func newDrainer(drain func(context.Context) (lua.Drained, error), state *loop.Reporter,
	cancel context.CancelFunc) *drainer {
	letters := &loop.Reporter{Log: state.Log, Activity: "dead-lettering of scheduled messages", Quiet: state.Quiet}
	return &drainer{drain: drain, state: state, deadLettering: letters, poked: make(chan struct{}, 1), cancel: cancel}
}

// poke lets the loop drain now, unless it backs off after an error.
func (d *drainer) poke() {
	if !d.state.IsFailing() {
		d.wake()
	}
}

// wake lets the loop drain now, even if it backs off after an error.
func (d *drainer) wake() {
	loop.Poke(d.poked)
}

// sleepsBeyond reports whether the next drain is later than wait from now, by more than drainSlack.
func (d *drainer) sleepsBeyond(wait time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nextDrain.After(time.Now().Add(wait + drainSlack))
}

func (d *drainer) run(ctx context.Context) {
	defer d.state.End()
	defer d.deadLettering.End()
	timer := time.NewTimer(0)
	defer timer.Stop()
	b := loop.NewBackoff(maxBackoff)
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.poked:
		}
		d.planNext(0) // while a drain runs, sleepsBeyond is false
		wait := d.drainAll(ctx, b)
		d.planNext(wait)
		timer.Reset(wait)
	}
}

// planNext notes that the next drain is planned after wait.
func (d *drainer) planNext(wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextDrain = time.Now().Add(wait)
}

// untilPoked is the sleep of a loop whose queue has nothing scheduled.
const untilPoked = 1000 * time.Hour

// drainAll drains until nothing more is due, or until only messages are due that the policy holds back. It returns how
// long to sleep. Due times are whole milliseconds: messages of the same millisecond are drained together.
func (d *drainer) drainAll(ctx context.Context, b backoff.BackOff) time.Duration {
	for {
		drained, err := d.drain(ctx)
		if ctx.Err() != nil {
			return untilPoked
		}
		d.report(err)
		if err != nil {
			return b.NextBackOff()
		}
		b.Reset()
		d.reportDeadLettering(drained)
		d.noteHeldBack(drained.Held != "")
		if drained.Wait != 0 { // no message is overdue, except messages that the policy holds back
			d.noteOldestDue(0)
		}
		switch {
		case drained.Wait < 0:
			return untilPoked
		case drained.Wait > 0:
			return d.sleepTime(drained)
		case drained.Moved+drained.Dead == 0: // messages are due and were not moved: do not repeat this without a pause
			return time.Millisecond
		}
	}
}

// maxRoomWait is the longest sleep between two checks for room under a ready limit.
const maxRoomWait = time.Second

// sleepTime returns how long to sleep until more messages may become ready. If a ready limit leaves no room, no token
// announces when there is room again. So the sleeps double, up to maxRoomWait.
func (d *drainer) sleepTime(drained lua.Drained) time.Duration {
	if drained.Held != lua.HeldByReadyLimit {
		d.roomWait = 0
		return drained.Wait
	}
	if drained.Moved > 0 {
		d.roomWait = 0
	}
	d.roomWait = max(drained.Wait, min(maxRoomWait, 2*d.roomWait))
	return d.roomWait
}

// reportDeadLettering logs once that the stream of dead letters refuses entries, and once that it accepts them again.
// Only a dead letter that was added proves that it accepts them.
func (d *drainer) reportDeadLettering(drained lua.Drained) {
	switch {
	case drained.DeadRefusal != "":
		err := ErrDeadRefused
		if strings.HasPrefix(drained.DeadRefusal, "WRONGTYPE") { // the key is no stream
			err = lua.ErrWrongType
		}
		d.deadLettering.Report(fmt.Errorf("%w: %s", err, drained.DeadRefusal))
	case drained.Dead > 0:
		d.deadLettering.Report(nil)
	}
}
