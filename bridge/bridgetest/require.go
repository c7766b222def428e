package bridgetest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Message is a message that a Require function has found.
type Message[T any] struct {
	ID      string
	State   State
	Due     time.Time // of a dead letter: of the attempt that failed
	Value   T         // the decoded payload; the zero value if the payload does not fit the kind
	Payload []byte
	Headers map[string]string
	Attempt int    // of the next or present delivery, from 1; of a dead letter: of the last one
	Group   string // the only group that a retry is for, or the group of a dead letter; empty = every group
	Error   string // of the last failed attempt
	Reason  string // of a dead letter, for example "max_attempts"
}

// RequireScheduled returns the one message of a kind that is not done yet and matches: it is scheduled, waits for an
// attempt or for its ordering key, or is ready or pending. With no such message, or with several, it fails the test.
// The failure lists all messages of the queue.
func RequireScheduled[T any](k *Kit, kind bridge.Kind[T], matches ...Match) Message[T] {
	k.t.Helper()
	return search[T]{k, kind.Queue, &kind, matches}.one("scheduled", k.unfinished)
}

// RequireNothing fails the test if any message of a kind that is not done yet matches. Dead letters are done.
// Kit.RequireNothingIn does the same for all kinds of a queue.
func RequireNothing[T any](k *Kit, kind bridge.Kind[T], matches ...Match) {
	k.t.Helper()
	search[T]{k, kind.Queue, &kind, matches}.none(k.unfinished)
}

// RequireDead returns the one dead letter of a kind that matches. With no such letter, or with several, it fails the
// test.
func RequireDead[T any](k *Kit, kind bridge.Kind[T], matches ...Match) Message[T] {
	k.t.Helper()
	return search[T]{k, kind.Queue, &kind, matches}.one("dead", k.letters)
}

// RequireScheduledIn is RequireScheduled for messages of any kind in a queue. Value is the payload.
func (k *Kit) RequireScheduledIn(queue string, matches ...Match) Message[[]byte] {
	k.t.Helper()
	return search[[]byte]{k, queue, nil, matches}.one("scheduled", k.unfinished)
}

// RequireNothingIn is RequireNothing for messages of any kind in a queue.
func (k *Kit) RequireNothingIn(queue string, matches ...Match) {
	k.t.Helper()
	search[[]byte]{k, queue, nil, matches}.none(k.unfinished)
}

// RequireDeadIn is RequireDead for dead letters of any kind in a queue. Value is the payload.
func (k *Kit) RequireDeadIn(queue string, matches ...Match) Message[[]byte] {
	k.t.Helper()
	return search[[]byte]{k, queue, nil, matches}.one("dead", k.letters)
}

// search is a search for messages of a queue.
type search[T any] struct {
	k       *Kit
	queue   string
	kind    *bridge.Kind[T] // nil = any
	matches []Match
}

type reading func(ctx context.Context, queue string) ([]*stored, error)

func (s search[T]) one(wanted string, read reading) (found Message[T]) {
	s.k.t.Helper()
	matching, all, err := s.find(read)
	switch {
	case err != nil:
		s.k.t.Fatalf("bridgetest: %s: %v", s, err)
	case len(matching) == 0:
		s.k.t.Fatalf("bridgetest: %s: none is %s%s", s, wanted, s.list(all))
	case len(matching) > 1:
		s.k.t.Fatalf("bridgetest: %s: %d are %s, and one is required%s", s, len(matching), wanted, s.list(matching))
	default:
		m := matching[0]
		found = Message[T]{
			ID: m.ID, State: m.state, Due: m.Due, Payload: m.Payload, Headers: m.Headers, Attempt: m.Attempt,
			Group: m.group, Error: m.Error, Reason: m.reason,
		}
		found.Value, _ = m.value.(T) // find has decoded it
	}
	return found
}

func (s search[T]) none(read reading) {
	s.k.t.Helper()
	matching, _, err := s.find(read)
	switch {
	case err != nil:
		s.k.t.Fatalf("bridgetest: %s: %v", s, err)
	case len(matching) > 0:
		s.k.t.Fatalf("bridgetest: %s: none is required%s", s, s.list(matching))
	}
}

// find returns the messages that match, and all messages of the queue.
func (s search[T]) find(read reading) (matching, all []*stored, err error) {
	if err := lua.CheckQueue(s.queue); err != nil {
		return nil, nil, err
	}
	if all, err = read(s.k.ctx, s.queue); err != nil {
		return nil, nil, err
	}
	for _, m := range all {
		if s.kind != nil && m.kind() != s.kind.Name {
			continue
		}
		m.value = s.decode(m)
		fits := true
		for _, one := range s.matches {
			holds, err := one.holds(s.k, m)
			if err != nil {
				return nil, nil, err
			}
			fits = fits && holds
		}
		if fits {
			matching = append(matching, m)
		}
	}
	return matching, all, nil
}

// decode returns the value of a message; nil if its payload does not fit the kind.
func (s search[T]) decode(m *stored) (value any) {
	if s.kind == nil {
		return m.Payload
	}
	mux := &bridge.Mux{}
	s.kind.Handle(mux, func(_ context.Context, d *bridge.Delivery[T]) error {
		value = d.Value
		return nil
	})
	if handler, err := mux.Handler(); err == nil { // an invalid kind has no messages
		message := bridge.Message{Queue: s.queue, Payload: m.Payload, Headers: m.Headers}
		_ = handler(s.k.ctx, &message) // an error says that the payload does not fit
	}
	return value
}

// list lists messages below a failure.
func (s search[T]) list(all []*stored) string {
	const most = 20
	if len(all) == 0 {
		return "; the queue has no other"
	}
	var text strings.Builder
	for i, m := range all {
		if i == most {
			fmt.Fprintf(&text, "\n\tand %d more", len(all)-most)
			break
		}
		text.WriteString("\n\t" + m.describe(s.k))
	}
	return text.String()
}

// String describes the search.
func (s search[T]) String() string {
	text := "messages"
	if s.kind != nil && s.kind.Name != "" {
		text += fmt.Sprintf(" of kind %q", s.kind.Name)
	} else if s.kind != nil {
		text += " without a kind"
	}
	text += fmt.Sprintf(" in queue %q", s.queue)
	for i, one := range s.matches {
		if i == 0 {
			text += " with "
		} else {
			text += ", "
		}
		text += one.text
	}
	return text
}
