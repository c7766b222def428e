package search

import (
	"strings"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
	"github.com/duestream/duestream/stream/lookup"
)

// Hit is one place of a message that passed the filter. A message has several hits if it is in several places: as a
// retry of one group, and held by another one. Queue, State, Partition, ID, Group, Member, Entry and Letter together
// identify the place.
type Hit struct {
	Queue     string       `json:"queue"`
	State     lookup.State `json:"state"`
	Partition int          `json:"partition,omitempty"`
	ID        string       `json:"id"`
	// Group: the group of a retry, delivery or dead letter. Of a ready entry: the group of the filter, or else the only
	// group that the entry is for.
	Group  string   `json:"group,omitempty"`
	Groups []string `json:"groups,omitempty"` // ready: the groups that have not read the entry
	// Member: scheduled, retrying: its name in the schedule, if that is not the ID
	Member string `json:"member,omitempty"`
	// Entry: ready, pending: ID of the stream entry; dead: ID of the entry that failed
	Entry       string            `json:"entry,omitempty"`
	Letter      string            `json:"letter,omitempty"`     // dead: the letter's name; see deadletter.Letter
	Consumer    string            `json:"consumer,omitempty"`   // pending
	Idle        view.Millis       `json:"idle_ms,omitempty"`    // pending: since the entry was delivered or extended
	Deliveries  int64             `json:"deliveries,omitempty"` // pending: by the server's count
	Cancelled   bool              `json:"cancelled,omitempty"`  // pending: its consumer ends it
	Due         time.Time         `json:"due,omitzero"`
	Key         string            `json:"key,omitempty"`           // ordering key
	Waits       bool              `json:"waits_for_key,omitempty"` // scheduled, retrying: another message has its key
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     time.Time         `json:"expires,omitzero"`
	Error       string            `json:"error,omitempty"`  // of the last failed attempt
	Reason      string            `json:"reason,omitempty"` // dead
	Dead        time.Time         `json:"dead,omitzero"`
	Headers     map[string]string `json:"headers,omitempty"`
	// Before: scheduled, retrying: ID of the entry that was scheduled again, or of the letter that was redriven
	Before string `json:"before,omitempty"`
	Bytes  int64  `json:"payload_bytes"`
}

func hitOf(state lookup.State, e lua.Entry, bytes int64) Hit {
	return Hit{
		State: state, ID: e.ID, Entry: e.EntryID, Due: view.Shown(e.Due), Key: e.Extra[lua.FieldKey], Attempt: e.Attempt,
		MaxAttempts: e.MaxAttempts, Expires: view.Shown(e.Expires), Error: e.Error, Headers: e.Headers, Bytes: bytes,
	}
}

// ofSchedule returns the hit of a member, and whether its meta passes the filter. The script has compared the
// meta already, but the server's decoder reads damaged metas in its own way. The decoder here decides.
func (f Filter) ofSchedule(one lua.FoundDue) (h Hit, ok bool) {
	m := lua.ParseMember(one.Member)
	e, readable := lua.DecodeMeta(m.ID, one.Meta)
	h = hitOf(lookup.StateScheduled, e, one.Bytes)
	h.ID, h.Group, h.Before, h.Due = m.ID, m.Group, m.Of, view.Shown(view.ScoreTime(one.Score))
	_, h.Waits = lua.DueScore(one.Score)
	if m.Group != "" {
		h.State = lookup.StateRetrying
	}
	if one.Member != m.ID {
		h.Member = one.Member
	}
	for name, want := range f.Headers {
		if got, there := h.Headers[name]; !readable || !there || got != want {
			return h, false
		}
	}
	return h, strings.Contains(h.Error, f.Error) && (f.Key == "" || h.Key == f.Key)
}

// ofStream returns the hits of an entry: one for each group that holds it, and then one if groups have not read it.
func (f Filter) ofStream(one lua.FoundStored) (hits []Hit) {
	e := lua.ParseEntry(one.Entry, one.Fields)
	for _, held := range one.Held {
		h := hitOf(lookup.StatePending, e, one.Bytes)
		h.Group, h.Consumer, h.Idle = held.Group, held.Consumer, view.Millis(held.Idle)
		h.Deliveries, h.Cancelled = held.Deliveries, held.Cancelled
		hits = append(hits, h)
	}
	if len(one.Unread) > 0 || len(one.Held) == 0 {
		h := hitOf(lookup.StateReady, e, one.Bytes)
		h.Group, h.Groups = f.Group, one.Unread
		if h.Group == "" {
			h.Group = e.For
		}
		hits = append(hits, h)
	}
	return hits
}

// ofLetters returns the hit of a dead letter.
func ofLetters(partition int, one lua.FoundStored) Hit {
	l := lua.ParseLetter(one.Entry, one.Fields)
	h := hitOf(lookup.StateDead, l.Entry, one.Bytes)
	h.Letter, h.Entry = deadletter.LetterName(partition, one.Entry), l.FailedEntry
	h.Group, h.Reason, h.Dead = l.Group, l.Reason, view.Shown(l.Dead)
	return h
}
