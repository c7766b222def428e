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
	// ErrNotDone: the message is scheduled or ready, or the group works on it.
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
	restOfLook = 4                     // after a search, no other one begins for this many times its duration

	lookPatience = 2 * time.Second // how long Look searches
	namesAge     = time.Second     // how old a wait's list of partitions may be
)

// Waiter waits for messages. It is safe for concurrent use.
type Waiter struct {
	client rueidis.Client
	prefix string
	slots  chan struct{} // a wait holds one
	looks  chan struct{} // a search of a look, and the rest after it, holds it
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
	return w.resultIn(ctx, counts.Names(queue), queue, id, group)
}

// resultIn is Result for a caller that knows the partitions. One round trip.
func (w *Waiter) resultIn(ctx context.Context, names []string, queue, id, group string) (MessageResult, error) {
	r, ok, err := lua.ReadResult(ctx, w.client, w.parts(names), group, id)
	if err == nil && !ok {
		err = ErrNoResult
	}
	if err != nil {
		return MessageResult{}, fmt.Errorf("result of %s in %s for %s: %w", id, queue, group, err)
	}
	return MessageResult{r.Value, r.Attempt, r.Done}, nil
}

// Look returns the result of a message for a group, or an error that tells why there is none. If there is no result, it
// searches the streams and the schedule of the queue for the message, in turn with the searches of waits. If the search
// has not ended after 2 s, the error is ErrNotDone, whatever became of the message.
//
// Errors: ErrNotDone; *DeadError (ErrDead); ErrNoResult, if the search did not find the message.
func (w *Waiter) Look(ctx context.Context, queue, id, group string) (MessageResult, error) {
	r, err := w.Result(ctx, queue, id, group)
	if !errors.Is(err, ErrNoResult) {
		return r, err
	}
	limited, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	ended, err := w.look(limited, queue, id, group, AwaitDone, time.Time{})
	switch {
	case err == nil && ended: // the result came during the search
		return w.Result(ctx, queue, id, group)
	case err == nil, errors.Is(err, context.DeadlineExceeded) && limited.Err() != nil && ctx.Err() == nil:
		err = ErrNotDone
	}
	return MessageResult{}, fmt.Errorf("result of %s in %s for %s: %w", id, queue, group, err)
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
// of a Waiter together take at most a fifth of the time, so with many waits or long streams each looks less often. It
// polls also while it looks, and while it waits for other looks.
//
// after leaves out results that are older: those of an earlier message with the same ID. Zero takes any.
//
// Errors: ctx.Err(); *DeadError (ErrDead), if the message died and the caller waits for another state; ErrDone, if it
// is done and the caller waits for AwaitDead; ErrNoResult, if the message is nowhere; ErrNoResult and lua.ErrNoGroup,
// if the message is ready, but the group does not exist; ErrManyWaits.
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
	one := wait{Waiter: w, queue: queue, id: id, group: group, state: state, after: after}
	return one.run(ctx)
}

// wait is one call of Wait.
type wait struct {
	*Waiter
	queue, id, group string
	state            Awaited
	after            time.Time

	names   []string  // of the partitions
	namesAt time.Time // when they were read
}

// run polls. It looks in another goroutine, because a look at a long stream takes time, and waits for other looks.
func (w *wait) run(ctx context.Context) (MessageResult, error) {
	began, lookAgain, longest := time.Now(), firstLook, longLook
	if w.state != AwaitDone { // only a look tells
		lookAgain, longest = 0, readyLook
	}
	nextLook := began.Add(lookAgain)
	var look chan looked // the look that is under way; nil: there is none
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		if look != nil {
			<-look
		}
	}()
	for {
		r, err := w.poll(ctx)
		isNew := err == nil && !r.Done.Before(w.after)
		switch {
		case isNew && w.state == AwaitDead:
			return r, ErrDone
		case isNew:
			return r, nil
		case err != nil && !errors.Is(err, ErrNoResult) && !lua.Temporary(err):
			return MessageResult{}, err
		}
		pause := jittered(min(max(firstPoll, time.Since(began)/8), longPoll))
		if untilLook := time.Until(nextLook); look == nil && untilLook > 0 {
			pause = min(pause, max(firstPoll, untilLook))
		} else if look == nil {
			look = w.startLook(ctx)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return MessageResult{}, ctx.Err()
		case l := <-look:
			timer.Stop()
			look = nil
			switch {
			case l.ended && l.err == nil && w.state == AwaitDone:
				continue // the result came meanwhile
			case l.ended || l.err != nil && !lua.Temporary(l.err):
				return MessageResult{}, l.err
			}
			lookAgain = min(max(firstLook, 2*lookAgain), longest)
			nextLook = time.Now().Add(jittered(lookAgain))
		}
	}
}

// poll returns the result, or ErrNoResult. It reads the list of partitions anew if the list is older than namesAge.
func (w *wait) poll(ctx context.Context) (MessageResult, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	if time.Since(w.namesAt) >= namesAge {
		counts, err := view.ReadCounts(ctx, w.client, w.prefix, w.queue)
		if err != nil {
			return MessageResult{}, err
		}
		w.names, w.namesAt = counts.Names(w.queue), time.Now()
	}
	return w.resultIn(ctx, w.names, w.queue, w.id, w.group)
}

// startLook starts a look, and returns the channel on which it tells its outcome.
func (w *wait) startLook(ctx context.Context) chan looked {
	ended := make(chan looked, 1)
	go func() {
		var l looked
		l.ended, l.err = w.look(ctx, w.queue, w.id, w.group, w.state, w.after)
		ended <- l
	}()
	return ended
}

// looked is the outcome of a look.
type looked struct {
	ended bool
	err   error
}

// jittered returns a duration from three quarters to five quarters of d, so that many waits do not poll in step.
func jittered(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}
