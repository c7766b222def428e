package search

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/lookup"
)

// Limits of a Filter.
const (
	MaxTextBytes   = lua.MaxSearchTextBytes // of Filter.Text
	MaxIDs         = 1000                   // of Filter.IDs
	maxReasonBytes = 256
)

// Filter selects messages; all fields that are set must match. The zero value selects all messages of all registered
// queues.
type Filter struct {
	Queues []string       `json:"queues,omitempty"` // none: all registered queues
	States []lookup.State `json:"states,omitempty"` // none: all states

	IDs    []string `json:"ids,omitempty"`    // the ID is one of these, at most MaxIDs; none: any ID
	Prefix string   `json:"prefix,omitempty"` // the ID begins with this text

	Key string `json:"key,omitempty"` // the ordering key of the message

	// Headers: the message has all of these headers, with these values.
	Headers map[string]string `json:"headers,omitempty"`

	// Error is a part of the error text of the last failed attempt; at most lua.MaxErrorBytes.
	Error string `json:"error,omitempty"`

	// Text is a part of the payload, compared byte for byte; any bytes, at most MaxTextBytes.
	Text string `json:"text,omitempty"`

	// Group: retries and dead letters of this group, and entries that this group holds or has not read. A message that
	// waits for its first delivery is for all groups, and does not match.
	Group  string `json:"group,omitempty"`
	Reason string `json:"reason,omitempty"` // the reason of a dead letter; other states do not match

	From  time.Time `json:"from,omitzero"`  // the message is due at this time or later, in whole milliseconds
	Until time.Time `json:"until,omitzero"` // the message is due before this time
}

// states is the order in which a search looks at the states of a queue.
var states = []lookup.State{
	lookup.StateScheduled, lookup.StateRetrying, lookup.StateReady, lookup.StatePending, lookup.StateDead,
}

// Validate returns the faults of the filter, each a *lua.InvalidError with field, value and rule.
func (f Filter) Validate() error {
	errs := []error{lua.CheckHeaders(f.Headers)}
	for _, queue := range f.Queues {
		errs = append(errs, lua.CheckQueue(queue))
	}
	for _, state := range f.States {
		if !slices.Contains(states, state) {
			errs = append(errs, lua.Invalid("state", string(state), "must be one of %v", states))
		}
	}
	if len(f.IDs) > MaxIDs {
		errs = append(errs, lua.Invalid("ids", strconv.Itoa(len(f.IDs)), "must be at most %d", MaxIDs))
	}
	for _, id := range f.IDs {
		errs = append(errs, lua.CheckID(id))
	}
	if f.Prefix != "" && lua.CheckID(f.Prefix) != nil {
		rule := "must be the beginning of an ID: UTF-8 of at most %d bytes without control characters"
		errs = append(errs, lua.Invalid("prefix", f.Prefix, rule, lua.MaxIDBytes))
	}
	if f.Group != "" {
		errs = append(errs, lua.CheckGroup(f.Group))
	}
	if f.Key != "" {
		errs = append(errs, lua.CheckKey(f.Key))
	}
	for _, part := range []struct {
		field, value string
		most         int
	}{
		{"error", f.Error, lua.MaxErrorBytes}, {"text", f.Text, MaxTextBytes}, {"reason", f.Reason, maxReasonBytes},
	} {
		if len(part.value) > part.most {
			errs = append(errs, lua.Invalid(part.field, part.value, "must be at most %d bytes", part.most))
		}
	}
	if !f.From.IsZero() && !f.Until.IsZero() && !f.From.Before(f.Until) {
		errs = append(errs, lua.Invalid("until", f.Until.Format(time.RFC3339Nano), "must be after %s",
			f.From.Format(time.RFC3339Nano)))
	}
	return errors.Join(errs...)
}

// statesAmong returns the candidates in which a message can match the filter, as the scripts name them.
func (f Filter) statesAmong(candidates ...lookup.State) (names []string) {
	for _, state := range candidates {
		can := (f.Group == "" || state != lookup.StateScheduled) && (f.Reason == "" || state == lookup.StateDead)
		if can && (len(f.States) == 0 || slices.Contains(f.States, state)) {
			names = append(names, string(state))
		}
	}
	return names
}

// forScript returns the filter for states of one key.
func (f Filter) forScript(of ...lookup.State) lua.SearchFilter {
	return lua.SearchFilter{
		States: f.statesAmong(of...), IDs: f.IDs, Prefix: f.Prefix, Group: f.Group, Key: f.Key, Headers: f.Headers,
		Error: f.Error, Reason: f.Reason, Text: f.Text, From: f.From, Until: f.Until,
	}
}

// Options control a search. The zero value is valid.
type Options struct {
	Limit int // stop after this many hits; 0: no limit

	// Load is the share of the server's time that the search may use, at most 1; 0: DefaultLoad. The lower it is, the
	// longer the search takes, and the less it delays other clients.
	Load float64

	Progress func(Progress) // called at the beginning, about ten times a second, and at the end
}

// DefaultLoad is the share of the server's time that a search uses by default.
const DefaultLoad = 0.1

// Validate returns the faults of the options, each a *lua.InvalidError.
func (o Options) Validate() error {
	var errs []error
	if o.Limit < 0 {
		errs = append(errs, lua.Invalid("limit", strconv.Itoa(o.Limit), "must not be negative"))
	}
	if !(o.Load >= 0 && o.Load <= 1) {
		rule := "must be a share between 0 and 1; 0 means %g"
		errs = append(errs, lua.Invalid("load", fmt.Sprint(o.Load), rule, DefaultLoad))
	}
	return errors.Join(errs...)
}

// Progress tells how far a search is.
type Progress struct {
	Looked   int64  `json:"looked"`          // members of schedules, entries and dead letters that were looked at
	Total    int64  `json:"total"`           // how many there are to look at; it may grow
	Found    int64  `json:"found"`           // hits
	Queue    string `json:"queue,omitempty"` // the queue that is being searched
	Complete bool   `json:"complete"`        // everything was looked at; false if Limit, ctx or an error ended the search
}
