package lookup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// ErrNoHistory: none of the queues has a history, because the queues keep none, or because nothing was recorded yet or
// all records have expired.
var ErrNoHistory = errors.New("there is no history to read")

// ErrUntold: the histories do not mention the message.
var ErrUntold = errors.New("the histories do not mention the message")

// Change is one recorded change of state of a message, from the history of its queue.
type Change struct {
	Queue    string      `json:"queue"`
	At       time.Time   `json:"at"`    // by the server's clock
	Event    string      `json:"event"` // one of the Event constants
	Group    string      `json:"group,omitempty"`
	Attempt  int         `json:"attempt,omitempty"`
	Due      time.Time   `json:"due,omitzero"`       // the due time after the change
	Was      time.Time   `json:"was,omitzero"`       // rescheduled: the due time before the change
	Late     view.Millis `json:"late_ms,omitempty"`  // ready: time since the message was due
	After    view.Millis `json:"after_ms,omitempty"` // end of an entry: time since the entry became ready
	Idle     view.Millis `json:"idle_ms,omitempty"`  // end of an entry: time since it was delivered or last extended
	Entry    string      `json:"entry,omitempty"`
	Letter   string      `json:"letter,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	Error    string      `json:"error,omitempty"`
	Consumer string      `json:"consumer,omitempty"` // the consumer that held the entry, if another one ended it
	By       string      `json:"by,omitempty"`       // author of the change
}

// Story holds the recorded changes of a message in the histories of queues.
type Story struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`      // when the histories were read, by the server's clock
	Changes []Change  `json:"changes"` // oldest first
	Queues  int       `json:"queues"`  // queues with a history
	Looked  int64     `json:"looked"`  // entries of histories that were read

	// Since is when the histories begin: each of them has a record of this time, or an older one. Zero: none was read.
	Since time.Time `json:"since,omitzero"`
}

// StoryOptions change what ReadStory does. The zero value is valid.
type StoryOptions struct {
	Queues   []string                  // where to look; empty: in all registered queues
	Progress func(looked, total int64) // called at intervals, one call at a time; total grows
}

// ReadStory reads the changes of a message from the histories of queues, even if the message is gone. The story is
// complete if the histories reach back far enough, with three exceptions: changes by plain commands such as ZADD,
// XREADGROUP and XACK; purges; and acknowledgements of entries that were ready before the history begins. ErrNoHistory:
// none of the queues has a history. ErrUntold: the histories do not mention the message.
//
// It reads the histories completely, in pages of about 64 KiB.
func ReadStory(ctx context.Context, c rueidis.Client, prefix, id string, o StoryOptions) (Story, error) {
	s := Story{ID: id, Changes: []Change{}}
	errs := []error{lua.CheckPrefix(prefix), lua.CheckID(id)}
	for _, queue := range o.Queues {
		errs = append(errs, lua.CheckQueue(queue))
	}
	if err := errors.Join(errs...); err != nil {
		return s, err
	}
	fail := func(err error) (Story, error) { return s, fmt.Errorf("story of %s: %w", id, err) }
	var err error
	if s.At, err = view.ServerTime(ctx, c); err != nil {
		return fail(err)
	}
	counts, err := queueCounts(ctx, c, prefix, o.Queues)
	if err != nil {
		return fail(err)
	}
	r := &storyReader{c: c, prefix: prefix, id: id, progress: o.Progress}
	queues := slices.Sorted(maps.Keys(counts))
	err = view.EachPartition(queues, func(_ int, queue string) error { return r.readQueue(ctx, queue, counts[queue]) })
	slices.SortStableFunc(r.changes, func(a, b Change) int { return a.At.Compare(b.At) })
	s.Changes, s.Queues, s.Looked, s.Since = append(s.Changes, r.changes...), r.queues, r.looked, r.since
	switch {
	case err != nil:
		return fail(err)
	case s.Queues == 0:
		return fail(ErrNoHistory)
	case len(s.Changes) == 0:
		return fail(ErrUntold)
	}
	return s, nil
}

// storyReader reads histories for one message.
type storyReader struct {
	c          rueidis.Client
	prefix, id string

	mu            sync.Mutex
	progress      func(looked, total int64)
	looked, total int64
	queues        int
	changes       []Change
	since         time.Time
}

// readQueue reads the histories of a queue's partitions that may have held the message.
func (r *storyReader) readQueue(ctx context.Context, queue string, counts lua.Counts) error {
	hasHistory := false
	for _, partition := range counts.Candidates(r.id) {
		key := lua.NewKeys(r.prefix, lua.PartitionName(queue, partition)).History
		var length int64
		if err := view.Ask(ctx, r.c, view.Number(r.c.B().Xlen().Key(key).Build(), &length)); err != nil {
			return err
		}
		if length == 0 {
			continue
		}
		hasHistory = true
		r.addProgress(0, length)
		if err := r.readHistory(ctx, queue, key); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if hasHistory {
		r.queues++
	}
	return nil
}

// progressEntries is the number of entries of a history after which its reader reports progress.
const progressEntries = 1000

// readHistory reads the history of one partition.
func (r *storyReader) readHistory(ctx context.Context, queue, key string) error {
	picker := newChangePicker(r.id, queue)
	last, ok, err := view.ReadLastID(ctx, r.c, key) // the walk ends here, even if the history grows meanwhile
	if err != nil || !ok {
		return err
	}
	read := int64(0) // entries since the last report
	var since time.Time
	for e, err := range view.Walk(ctx, r.c, key, "-", last.String(), false) {
		if err != nil {
			return err
		}
		if read++; read == progressEntries {
			r.addProgress(read, 0)
			read = 0
		}
		for _, record := range lua.ParseTold(e.ID, e.FieldValues) {
			picker.pick(record)
			if since.IsZero() {
				since = record.At
			}
		}
	}
	r.addProgress(read, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	if since.After(r.since) {
		r.since = since
	}
	r.changes = append(r.changes, picker.changes...)
	return nil
}

// changePicker picks the changes of one message out of the history of a partition. It must be given the records in
// order: a record of an entry or a letter may lack the ID of the message, and then earlier records of the same entry or
// letter tell it.
type changePicker struct {
	id, queue string
	entries   map[string]readyEntry // entries of the message, by ID
	letters   map[string]bool       // dead letters of the message, by ID
	changes   []Change
}

// readyEntry is what a changePicker knows of an entry.
type readyEntry struct {
	readyAt time.Time // zero: unknown
	group   string    // the only group of a retry; "": not a retry
}

func newChangePicker(id, queue string) *changePicker {
	// A message that another program added to the stream has the ID of its entry.
	entries := map[string]readyEntry{id: {}}
	return &changePicker{id: id, queue: queue, entries: entries, letters: map[string]bool{}}
}

// pick adds the change of a record if the record is about the message.
func (p *changePicker) pick(record lua.Told) {
	entry, knowsEntry := p.entries[record.Entry]
	messageID := record.ID
	if messageID == record.Entry { // the body of the entry was lost, and the ID of the message with it
		messageID = ""
	}
	isAboutMessage := messageID == p.id || messageID == "" && (knowsEntry || p.letters[record.Letter])
	if !isAboutMessage {
		return
	}
	if record.Event == lua.EventAcknowledged && entry.group != "" && record.Group != entry.group {
		return // the entry is a retry of another group, and this group only skipped it
	}
	change := Change{
		Queue: p.queue, At: record.At, Event: record.Event, Group: record.Group, Attempt: record.Attempt,
		Due: view.Shown(record.Due), Was: view.Shown(record.Was), Idle: view.Millis(record.Idle),
		Entry: record.Entry, Letter: record.Letter, Reason: record.Reason, Error: record.Error,
		Consumer: record.Consumer, By: record.By,
	}
	switch {
	case record.Event == lua.EventReady:
		p.entries[record.Entry] = readyEntry{record.At, record.Group}
		if record.Due.UnixMilli() > view.EarliestDue {
			change.Late = view.Millis(max(0, record.At.Sub(record.Due)))
		}
	case !entry.readyAt.IsZero():
		change.After = view.Millis(max(0, record.At.Sub(entry.readyAt)))
	}
	if record.Letter != "" {
		p.letters[record.Letter] = true
	}
	p.changes = append(p.changes, change)
}

// addProgress adds to the number of entries read, and to the number of entries to read.
func (r *storyReader) addProgress(looked, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked += looked
	r.total += total
	if r.progress != nil {
		r.progress(min(r.looked, r.total), max(r.looked, r.total))
	}
}
