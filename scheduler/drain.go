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

// drainSlack is the least time by which a new due time must precede the planned drain before the loop is woken for it.
const drainSlack = 5 * time.Millisecond

// drainer is the loop of one owned queue. It drains the due messages, then sleeps until the next due time, or until it
// is poked because an earlier one appeared.
type drainer struct {
	drain  func(context.Context) (lua.Drained, error)
	state  *loop.Reporter
	bury   *loop.Reporter // whether the stream of dead letters takes entries; if not, the queue goes on
	poked  chan struct{}
	cancel context.CancelFunc

	reported  sync.Mutex
	wrongType bool // the last drain failed because a key is of another type; guarded by reported

	mu   sync.Mutex
	next time.Time // of the next drain; in the past while one runs
	head time.Time // local due time of the oldest overdue message, by the last survey; zero = none is overdue

	held   bool          // the last drain found due messages that the policy holds back
	noRoom time.Duration // used by the loop alone: its last wait for room under the ready limit; zero = none
}

func newDrainer(drain func(context.Context) (lua.Drained, error), st *loop.Reporter, cancel context.CancelFunc) *drainer {
	bury := &loop.Reporter{Log: st.Log, Activity: "dead-lettering of scheduled messages", Quiet: st.Quiet}
	return &drainer{drain: drain, state: st, bury: bury, poked: make(chan struct{}, 1), cancel: cancel}
}

// poke lets the loop drain now, unless it is backing off.
func (d *drainer) poke() {
	if !d.state.IsFailing() {
		d.retry()
	}
}

// retry lets the loop drain now.
func (d *drainer) retry() {
	loop.Poke(d.poked)
}

// sleepsBeyond reports whether the next drain is later than wait from now, by more than drainSlack.
func (d *drainer) sleepsBeyond(wait time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.next.After(time.Now().Add(wait + drainSlack))
}

func (d *drainer) run(ctx context.Context) {
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
		d.sleep(0)
		wait := d.settle(ctx, b)
		d.sleep(wait)
		timer.Reset(wait)
	}
}

func (d *drainer) sleep(wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = time.Now().Add(wait)
}

// untilPoked is the sleep of a loop whose queue has nothing scheduled.
const untilPoked = 1000 * time.Hour

// settle drains until nothing more is due, and returns how long to sleep. Due times are whole milliseconds: messages of
// the same millisecond are drained together.
func (d *drainer) settle(ctx context.Context, b backoff.BackOff) time.Duration {
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
		d.reportBuried(drained)
		d.sawHeld(drained.Held != "")
		if drained.Wait != 0 {
			d.sawHead(0)
		}
		switch {
		case drained.Wait < 0:
			return untilPoked
		case drained.Wait > 0:
			return d.patience(drained)
		case drained.Moved+drained.Dead == 0:
			return time.Millisecond // something is due and was not moved: never spin
		}
	}
}

// longestNoRoom is the longest sleep between two checks for room under a ready limit.
const longestNoRoom = time.Second

// patience returns how long to sleep until more may become ready. No token announces room under a ready limit: while
// there is none, the sleeps double, up to longestNoRoom.
func (d *drainer) patience(drained lua.Drained) time.Duration {
	if drained.Held != lua.HeldByReadyLimit {
		d.noRoom = 0
		return drained.Wait
	}
	if drained.Moved > 0 {
		d.noRoom = 0
	}
	d.noRoom = max(drained.Wait, min(longestNoRoom, 2*d.noRoom))
	return d.noRoom
}

// reportBuried logs once that the stream of dead letters refuses entries, and once that it accepts them again. Only a
// dead letter that was added proves that it accepts them.
func (d *drainer) reportBuried(drained lua.Drained) {
	switch {
	case drained.DeadRefusal != "":
		err := ErrDeadRefused
		if strings.HasPrefix(drained.DeadRefusal, "WRONGTYPE") { // the key is no stream
			err = lua.ErrWrongType
		}
		d.bury.Report(fmt.Errorf("%w: %s", err, drained.DeadRefusal))
	case drained.Dead > 0:
		d.bury.Report(nil)
	}
}
