package stream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// delivery is one entry that this worker holds, from its read until its settlement.
type delivery struct {
	msg    Message
	ctx    context.Context
	cancel context.CancelCauseFunc
	breaks uint64    // partitionWorker.breaks at the time of the read
	read   time.Time // time of the read

	handling handling // not used for a retry of another group
	progress progress // stored by the handler
	result   result   // set by the handler

	// The settlement. settleLoop alone uses these fields after settle has queued the delivery.
	failure      *lua.Failure // how to settle it; nil: acknowledge it
	settlement   Settlement   // the outcome
	slotReturned bool         // a try to settle it failed, and its slot was freed
	acked        bool         // acknowledged by a call that failed for other deliveries of its batch

	// The fields that are written when the handling ends.
	panicked bool
	returned time.Duration // from the read to the return of the handler; set only if there is an observer

	// The list of holdings, and its lock guards them.
	listed     bool
	prev, next *delivery

	mu        sync.Mutex
	extended  time.Time // a time before the server last restarted the idle time of the entry
	lost      bool
	cancelled bool // a call of Cancel cancelled the message
}

// deliveries wraps entries in deliveries.
func (p *partitionWorker) deliveries(hard context.Context, found []rueidis.XRangeSlice) []*delivery {
	now, breaks := time.Now(), p.breaks.Load()
	parent := context.WithoutCancel(hard) // deliveries are cancelled one by one
	all := make([]*delivery, len(found))
	for i := range found {
		d := &delivery{
			breaks: breaks, read: now, extended: now,
			msg: Delivered(lua.ParseEntry(found[i].ID, found[i].FieldValues), p.cfg.Queue, p.partition, p.cfg.Group),
		}
		d.msg.Consumer = p.cfg.Consumer
		d.msg.saver = progressSaver{p, d}
		d.ctx, d.cancel = context.WithCancelCause(parent)
		all[i] = d
	}
	return all
}

// Delivered returns an entry of a queue's stream as a message that was given to a group. The caller sets Consumer.
func Delivered(e lua.Entry, queue string, partition int, group string) Message {
	progress := e.TakeProgress() // before Extra is read
	return Message{
		Queue: queue, Group: group, Partition: partition, Progress: progress,
		EntryID: e.EntryID, ID: e.ID, Payload: e.Payload, Headers: e.Headers, Attempt: e.Attempt, Due: e.Due,
		MaxAttempts: e.MaxAttempts, Expires: e.Expires, For: e.For, Error: e.Error, Extra: e.Extra,
	}
}

// foreign reports whether the entry is a retry for another group: it is acknowledged, never handled.
func (d *delivery) foreign() bool { return d.msg.For != "" && d.msg.For != d.msg.Group }

// lose cancels the handler's context with a cause, and notes a lost delivery or a cancelled message.
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
