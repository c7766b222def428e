package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// drainSlack: a due time that is earlier than a loop's next one by less than this is not worth a wake.
const drainSlack = 5 * time.Millisecond

// drainer is the loop of one owned queue: it drains what is due, sleeps until the next due time, and is poked when there is an
// earlier one.
type drainer struct {
	drain  func(context.Context) (lua.Drained, error)
	state  *loop.Reporter
	bury   *loop.Reporter // whether the stream of dead letters takes entries; the queue goes on when it does not
	poked  chan struct{}
	cancel context.CancelFunc

	mu   sync.Mutex
	next time.Time // when it drains again; in the past while it does
	head time.Time // local: when the oldest overdue message was due, as the survey saw it; zero = none is

	wrongType bool          // the last drain failed because a key is of another type
	held      bool          // the last drain found messages that are due, and that the policy holds back
	noRoom    time.Duration // of the loop: how long it last waited for room under the ready limit; zero = it did not
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

// sleepsBeyond says whether the loop will drain later than in wait from now.
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

// untilPoked is how long a loop sleeps that has nothing scheduled.
const untilPoked = 1000 * time.Hour

// settle drains until nothing more is due, and returns how long to sleep. Due times are whole milliseconds, so messages that
// are due within the same one are drained together.
func (d *drainer) settle(ctx context.Context, b backoff.BackOff) time.Duration {
	for {
		drained, err := d.drain(ctx)
		if ctx.Err() != nil {
			return untilPoked
		}
		d.state.Report(err)
		d.sawType(errors.Is(err, lua.ErrWrongType))
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

// longestNoRoom is how long a loop sleeps at most before it looks again whether there is room under a ready limit.
const longestNoRoom = time.Second

// patience is how long to sleep until more may become ready. Nobody tells when a ready limit has room: while there is none the
// looks become rarer.
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

// reportBuried says once that the stream of dead letters refuses entries, and once that it takes them again. Only a dead letter
// that it took shows that.
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
