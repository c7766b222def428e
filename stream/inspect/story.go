package inspect

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

// ErrNoHistory: none of the queues keeps a history.
var ErrNoHistory = errors.New("there is no history")

// ErrUntold: the histories do not mention the message.
var ErrUntold = errors.New("nothing is told of it")

// Change is one recorded change of state of a message, from the history of its queue.
type Change struct {
	Queue    string      `json:"queue"`
	At       time.Time   `json:"at"`    // by the server's clock
	Event    string      `json:"event"` // one of the Event constants
	Group    string      `json:"group,omitempty"`
	Attempt  int         `json:"attempt,omitempty"`
	Due      time.Time   `json:"due,omitzero"`       // since the change
	Was      time.Time   `json:"was,omitzero"`       // rescheduled: the former due time
	Late     view.Millis `json:"late_ms,omitempty"`  // ready: time since it was due
	After    view.Millis `json:"after_ms,omitempty"` // end of an entry: time since it was ready
	Idle     view.Millis `json:"idle_ms,omitempty"`  // end of an entry: time since it was delivered or last extended
	Entry    string      `json:"entry,omitempty"`
	Letter   string      `json:"letter,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	Error    string      `json:"error,omitempty"`
	Consumer string      `json:"consumer,omitempty"` // holder of the entry, if another one ended it
	By       string      `json:"by,omitempty"`       // author of the change
}

// Story is the recorded changes of a message in the histories of queues, oldest first.
type Story struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"` // by the server's clock, at the time of reading
	Changes []Change  `json:"changes"`
	Queues  int       `json:"queues"` // queues with a history
	Looked  int64     `json:"looked"` // entries of histories that were read
}

// StoryOptions change what ReadStory does. The zero value is valid.
type StoryOptions struct {
	Queues   []string                  // where to look; none = all registered queues
	Progress func(looked, total int64) // called at intervals, one call at a time; total grows
}

// ReadStory reads the changes of a message, even of one that is gone, from the histories of queues that keep one. It is
// complete if the histories reach back far enough, with three exceptions: changes by plain commands such as ZADD,
// XREADGROUP and XACK; purges; and acknowledgements of entries that were ready before the history begins. ErrNoHistory:
// there is nothing to read. ErrUntold: the histories do not mention the message.
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
	err = view.EachPartition(queues, func(_ int, queue string) error { return r.queue(ctx, queue, counts[queue]) })
	slices.SortStableFunc(r.changes, func(a, b Change) int { return a.At.Compare(b.At) })
	s.Changes, s.Queues, s.Looked = append(s.Changes, r.changes...), r.queues, r.looked
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
}

// queue reads the histories of a queue's partitions that may have held the message.
func (r *storyReader) queue(ctx context.Context, queue string, counts lua.Counts) error {
	kept := false
	for _, partition := range counts.Candidates(r.id) {
		key := lua.NewKeys(r.prefix, lua.PartitionName(queue, partition)).History
		var length int64
		if err := view.Ask(ctx, r.c, view.Number(r.c.B().Xlen().Key(key).Build(), &length)); err != nil {
			return err
		}
		if length == 0 {
			continue
		}
		kept = true
		r.step(0, length)
		if err := r.partition(ctx, queue, key); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if kept {
		r.queues++
	}
	return nil
}

// partition reads one history.
func (r *storyReader) partition(ctx context.Context, queue, key string) error {
	// An entry of another program has its own ID as the message's.
	t := teller{id: r.id, queue: queue, ready: map[string]readyEntry{r.id: {}}, letters: map[string]bool{}}
	last, ok, err := view.ReadLastID(ctx, r.c, key) // later entries are left to the next call
	if err != nil || !ok {
		return err
	}
	pace := 0
	for e, err := range view.Walk(ctx, r.c, key, "-", last.String(), false) {
		if err != nil {
			return err
		}
		if pace++; pace == 1000 {
			r.step(int64(pace), 0)
			pace = 0
		}
		for _, one := range lua.ParseTold(e.ID, e.FieldValues) {
			t.hear(one)
		}
	}
	r.step(int64(pace), 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = append(r.changes, t.changes...)
	return nil
}

// readyEntry is a teller's memory of an entry.
type readyEntry struct {
	at    time.Time // when it became ready
	group string    // of a retry: the only group that it is for
}

// teller picks the changes of one message out of the history of a partition, in order. A record of an entry or a letter
// may lack the ID of its message; teller knows it by earlier records of the same entry or letter.
type teller struct {
	id, queue string
	ready     map[string]readyEntry // entries of the message
	letters   map[string]bool
	changes   []Change
}

func (t *teller) hear(one lua.Told) {
	entry, known := t.ready[one.Entry]
	if one.ID == one.Entry { // a lost body leaves only the entry ID as its ID
		one.ID = ""
	}
	if one.ID != t.id && (one.ID != "" || !known && !t.letters[one.Letter]) {
		return
	}
	if one.Event == lua.EventAcknowledged && entry.group != "" && one.Group != entry.group {
		return // a retry of another group, which this group only skips
	}
	c := Change{
		Queue: t.queue, At: one.At, Event: one.Event, Group: one.Group, Attempt: one.Attempt, Due: one.Due, Was: one.Was,
		Idle: view.Millis(one.Idle), Entry: one.Entry, Letter: one.Letter, Reason: one.Reason, Error: one.Error,
		Consumer: one.Consumer, By: one.By,
	}
	switch {
	case one.Event == lua.EventReady:
		t.ready[one.Entry] = readyEntry{one.At, one.Group}
		if one.Due.UnixMilli() > 1e12 { // a time before 2001 means now
			c.Late = view.Millis(max(0, one.At.Sub(one.Due)))
		}
	case !entry.at.IsZero():
		c.After = view.Millis(one.At.Sub(entry.at))
	}
	if one.Letter != "" {
		t.letters[one.Letter] = true
	}
	t.changes = append(t.changes, c)
}

// step adds to the number of entries read, and to the number to read.
func (r *storyReader) step(looked, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked += looked
	r.total += total
	if r.progress != nil {
		r.progress(min(r.looked, r.total), max(r.looked, r.total))
	}
}
