package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// MaxProgressBytes is the size limit of the cursor of SaveProgress.
const MaxProgressBytes = lua.MaxProgressBytes

// SaveProgress stores how far the work on this message has come. The next attempt of the group gets the cursor in
// Progress: after an error, a snooze, a release or a timeout, and also if this process is killed after SaveProgress has
// returned nil. The cursor ends with the message. If the message becomes a dead letter, the letter keeps it, and a
// redrive for the same group with the same payload goes on from there.
//
// The cursor consists of any bytes, at most MaxProgressBytes; with an empty one the next attempt begins anew. The work
// since the last cursor may be done again, because a message is delivered at least once. A cursor is as durable as all
// other data of the server: after a failover, an earlier cursor may come back.
//
// SaveProgress takes one round trip. Call it whenever the progress is worth a round trip. It must not be called by two
// goroutines at once, nor after the handler has returned. It works also if ctx was cancelled because the worker is
// stopping or the time of the handler is over.
//
// Errors: *InvalidError (ErrInvalid) if the cursor is too large; ErrLost if this worker does not hold the message any
// more; ErrCancelled if the message was cancelled; otherwise the error of Redis. After an error of Redis, the cursor
// may be stored or not. After ErrLost and ErrCancelled the handler should stop.
//
// On a Message that no worker has delivered, as in a test of a handler, SaveProgress only sets Progress.
func (m *Message) SaveProgress(ctx context.Context, cursor []byte) error {
	if len(cursor) > MaxProgressBytes {
		return lua.Invalid("cursor", fmt.Sprintf("%d bytes", len(cursor)), "must have at most %d bytes", MaxProgressBytes)
	}
	kept := append(make([]byte, 0, len(cursor)), cursor...) // not nil
	if m.saver.delivery != nil {
		if err := m.saver.save(ctx, kept); err != nil {
			return err
		}
	}
	m.Progress = kept
	if len(kept) == 0 {
		m.Progress = nil
	}
	return nil
}

// progressSaver holds the delivery of a message and its worker, for SaveProgress and SetResult.
type progressSaver struct {
	worker   *partitionWorker
	delivery *delivery
}

// progress is the cursor that the handler of a delivery stored last. Its lock is needed because an abandoned handler
// may store a cursor while the delivery is settled.
type progress struct {
	mu     sync.Mutex
	cursor []byte // nil = none was stored
}

// last returns the cursor that was stored last, or that may have been stored; nil if there is none.
func (p *progress) last() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cursor
}

// swap sets the cursor, and returns the one before.
func (p *progress) swap(cursor []byte) (before []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, p.cursor = p.cursor, cursor
	return before
}

// save stores a cursor. The cursor is noted before the call, because a call without an answer may have stored it.
func (s progressSaver) save(ctx context.Context, cursor []byte) error {
	p, d := s.worker, s.delivery
	before := d.progress.swap(cursor)
	if cause := context.Cause(ctx); errors.Is(cause, ErrStopping) || errors.Is(cause, ErrHandlerTimeout) {
		ctx = context.WithoutCancel(ctx) // this is the moment at which a handler wants to store its progress
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	held := lua.Held{Entry: d.msg.EntryID, ID: d.msg.ID}
	result, err := lua.SaveProgress(ctx, p.cfg.Client, p.keys, p.cfg.Group, p.cfg.Consumer, held, cursor)
	switch {
	case err != nil:
		if !lua.Ambiguous(err) {
			d.progress.swap(before)
		}
		return fmt.Errorf("save progress of %s: %w", d.msg.ID, err)
	case result == lua.HeldCancelled:
		d.lose(ErrCancelled)
		return ErrCancelled
	case result == lua.NotHeld:
		if p.held.has(d) { // a delivery that was settled meanwhile is not lost
			d.lose(ErrLost)
		}
		return ErrLost
	}
	return nil
}

// forgetProgress deletes the cursors of settled deliveries. Most deliveries have none, and then it sends nothing. If it
// fails, a bridge deletes them.
func (p *partitionWorker) forgetProgress(ctx context.Context, batch []*delivery) {
	var entries []string
	for _, d := range batch {
		if d.progress.last() != nil && d.settlement != Stuck {
			entries = append(entries, d.msg.EntryID)
		}
	}
	if entries == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	_ = lua.ForgetProgress(ctx, p.cfg.Client, p.keys, p.cfg.Group, entries)
}
