package producer

import (
	"errors"
	"fmt"

	"github.com/duestream/duestream/lua"
)

// Errors that callers branch on, beside lua.ErrInvalid, lua.ErrFull and the other sentinels of package lua.
var (
	// ErrDuplicate: the ID is scheduled already, or its dedup window has not ended. The message was not stored.
	ErrDuplicate = errors.New("duplicate message ID")
	// ErrNotScheduled: no message with this ID is scheduled. The message became ready, was cancelled, or never existed.
	ErrNotScheduled = errors.New("message is not scheduled")
	// ErrUncertain: after the call was sent, it failed or its context ended. So the server may have executed the call.
	// A message with an ID and a dedup window may be scheduled again without harm.
	ErrUncertain = errors.New("the call may have been executed")
	// ErrClosed: the producer is closed.
	ErrClosed = errors.New("producer is closed")
)

// uncertain reports whether a failed call may have been executed.
func uncertain(err error) bool { return lua.Ambiguous(err) && !lua.Unsent(err) }

func joinUncertain(err error) error { return fmt.Errorf("%w: %w", ErrUncertain, err) }

// splitNotDurable returns an error of a call as notDurable if the call was executed and is only less durable than the
// producer's Durability. It returns any other error as failed.
func splitNotDurable(err error) (notDurable, failed error) {
	if errors.Is(err, lua.ErrNotDurable) {
		return err, nil
	}
	return nil, err
}

// errorSubject returns the name of the queue, or of the message, for an error text.
func errorSubject(queue, id string) string {
	if id == "" {
		return queue
	}
	return queue + "/" + id
}

func wrap(verb, queue, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", verb, errorSubject(queue, id), err)
}
