// Package await waits until a message has a result, is ready, or is dead. It changes nothing.
//
// It is apart from stream/lookup, because programs that schedule import it, and they need no code for operators.
//
// Invariants:
//   - a wait ends when nothing more can come, and tells why (TestWaitEndsWithWhatBecameOfTheMessage);
//   - the number of waits, and the time that they search, are bounded (TestWaitsAreBounded).
package await

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// MessageResult is the result of a group's work on a message.
type MessageResult struct {
	Value   []byte    // set by the handler; empty if it set none
	Attempt int       // the attempt that succeeded
	Done    time.Time // when it was acknowledged, by the server's clock
}

// Errors of waits for a message.
var (
	// ErrNoResult: there is no result. Either the message is not done yet (Result), or nothing will come (Wait): the
	// message was cancelled or never scheduled, it was acknowledged without a result, or its result has expired.
	ErrNoResult = errors.New("no result")
	// ErrDead: the group gave the message up. errors.As with *DeadError gives the reason.
	ErrDead = errors.New("the message is a dead letter")
	// ErrDone: the group has done the message, so that it will not become a dead letter.
	ErrDone = errors.New("the message is done")
	// ErrNotDone: the message waits for the group, or the group works on it.
	ErrNotDone = errors.New("the message is not done yet")
	// ErrManyWaits: the process waits for as many messages as it may.
	ErrManyWaits = errors.New("too many waits at the same time")
)

// DeadError tells why a group gave a message up.
type DeadError struct {
	ID     string
	Group  string // empty: the message died before any group got it
	Reason string // "max_attempts", "expired", …
	Text   string // the error of the last attempt; empty if there was none
}

func (e *DeadError) Error() string {
	text := fmt.Sprintf("%v: %s, reason %s", ErrDead, e.ID, e.Reason)
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// Is reports whether target is ErrDead.
func (e *DeadError) Is(target error) bool { return target == ErrDead }

// Awaited is the state for which a caller waits.
type Awaited string

// States for which Wait waits.
const (
	AwaitReady Awaited = "ready" // the message has become ready; for a group: for the group, also as a retry
	AwaitDone  Awaited = "done"  // the group's handler has returned nil
	AwaitDead  Awaited = "dead"  // the group gave the message up
)

// Bounds of waits.
const (
	MaxWaits = 1000 // at the same time, for each Waiter

	firstPoll  = 10 * time.Millisecond // between the first polls of a wait; later ones come after an eighth of its age
	longPoll   = 2 * time.Second       // at most
	firstLook  = time.Second           // until a wait looks where its message is
	longLook   = 30 * time.Second      // longest time between two looks
	readyLook  = 5 * time.Second       // the same for the states that only a look shows
	restOfLook = 4                     // after a look, no other look begins for this many times its duration
)

// Waiter waits for messages. It is safe for concurrent use.
type Waiter struct {
	client rueidis.Client
	prefix string
	slots  chan struct{} // a wait holds one
	looks  chan struct{} // a look, and the rest after it, holds it
}

// NewWaiter returns a Waiter. Redis is not touched.
func NewWaiter(c rueidis.Client, prefix string) *Waiter {
	return &Waiter{client: c, prefix: prefix, slots: make(chan struct{}, MaxWaits), looks: make(chan struct{}, 1)}
}

// Result returns the result of a message for a group; ErrNoResult: there is none, or none yet. One round trip for the
// registry and one for all partitions.
func (w *Waiter) Result(ctx context.Context, queue, id, group string) (MessageResult, error) {
	if err := w.check(queue, id, group); err != nil {
		return MessageResult{}, err
	}
	counts, err := view.ReadCounts(ctx, w.client, w.prefix, queue)
	if err != nil {
		return MessageResult{}, fmt.Errorf("result of %s in %s: %w", id, queue, err)
	}
	r, ok, err := lua.ReadResult(ctx, w.client, w.parts(counts.Names(queue)), group, id)
	if err == nil && !ok {
		err = ErrNoResult
	}
	if err != nil {
		return MessageResult{}, fmt.Errorf("result of %s in %s for %s: %w", id, queue, group, err)
	}
	return MessageResult{r.Value, r.Attempt, r.Done}, nil
}

// Look returns the result of a message for a group, or an error that tells why there is none. It searches the streams
// of the queue if there is no result.
//
// Errors: ErrNotDone; *DeadError (ErrDead); ErrNoResult, if the message is nowhere.
func (w *Waiter) Look(ctx context.Context, queue, id, group string) (MessageResult, error) {
	for range 2 {
		r, err := w.Result(ctx, queue, id, group)
		if !errors.Is(err, ErrNoResult) {
			return r, err
		}
		ended, err := w.find(ctx, queue, id, group, AwaitDone, time.Time{})
		switch {
		case err != nil:
			return MessageResult{}, fmt.Errorf("result of %s in %s for %s: %w", id, queue, group, err)
		case !ended:
			return MessageResult{}, fmt.Errorf("result of %s in %s for %s: %w", id, queue, group, ErrNotDone)
		}
		// The result came during the search.
	}
	return MessageResult{}, fmt.Errorf("result of %s in %s for %s: %w", id, queue, group, ErrNoResult)
}

func (w *Waiter) check(queue, id, group string) error {
	return errors.Join(lua.CheckQueue(queue), lua.CheckID(id), lua.CheckGroup(group))
}

func (w *Waiter) parts(names []string) []lua.Keys {
	parts := make([]lua.Keys, len(names))
	for i, name := range names {
		parts[i] = lua.NewKeys(w.prefix, name)
	}
	return parts
}

// Wait waits until a message is in a state for a group, and returns its result if the state is AwaitDone. It polls the
// key of the result every 10 ms at first. Later, each pause is an eighth of the time that it has waited, at most 2 s.
// If there is no result after a second, it looks where the message is, and again after growing times, at most 30 s. For
// the other states it looks at once, and then at least every 5 s. A look searches the streams of the queue. All looks
// of a Waiter together take at most a fifth of the time.
//
// after leaves out results that are older: those of an earlier message with the same ID. Zero takes any.
//
// Errors: ctx.Err(); *DeadError (ErrDead), if the message died and the caller waits for another state; ErrDone, if it
// is done and the caller waits for AwaitDead; ErrNoResult, if the message is nowhere; ErrManyWaits.
func (w *Waiter) Wait(ctx context.Context, queue, id, group string,
	state Awaited, after time.Time) (MessageResult, error) {
	r, err := w.wait(ctx, queue, id, group, state, after)
	if err != nil && !errors.Is(err, lua.ErrInvalid) {
		err = fmt.Errorf("wait until %s in %s is %s for %s: %w", id, queue, state, group, err)
	}
	return r, err
}

func (w *Waiter) wait(ctx context.Context, queue, id, group string,
	state Awaited, after time.Time) (MessageResult, error) {
	if err := w.check(queue, id, group); err != nil {
		return MessageResult{}, err
	}
	if state != AwaitReady && state != AwaitDone && state != AwaitDead {
		return MessageResult{}, lua.Invalid("state", string(state), "must be ready, done or dead")
	}
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	default:
		return MessageResult{}, fmt.Errorf("%w: at most %d", ErrManyWaits, MaxWaits)
	}
	began, lookAgain := time.Now(), firstLook
	longest := longLook
	if state != AwaitDone { // only a look tells
		lookAgain, longest = 0, readyLook
	}
	nextLook := began.Add(lookAgain)
	for {
		r, err := w.Result(ctx, queue, id, group)
		isNew := err == nil && !r.Done.Before(after)
		switch {
		case isNew && state == AwaitDead:
			return r, ErrDone
		case isNew:
			return r, nil
		case err != nil && !errors.Is(err, ErrNoResult) && !lua.Temporary(err):
			return MessageResult{}, err
		}
		if !time.Now().Before(nextLook) {
			ended, err := w.look(ctx, queue, id, group, state, after)
			if ended || err != nil && !lua.Temporary(err) {
				if err == nil && state == AwaitDone {
					continue // the result came meanwhile
				}
				return MessageResult{}, err
			}
			lookAgain = min(max(firstLook, 2*lookAgain), longest)
			nextLook = time.Now().Add(jittered(lookAgain))
		}
		pause := jittered(min(max(firstPoll, time.Since(began)/8), longPoll))
		if !loop.Sleep(ctx, min(pause, max(firstPoll, time.Until(nextLook)))) {
			return MessageResult{}, ctx.Err()
		}
	}
}

// jittered returns a duration from three quarters to five quarters of d, so that many waits do not poll in step.
func jittered(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}
