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

// ErrUntold: the histories tell nothing of a message.
var ErrUntold = errors.New("nothing is told of it")

// Change is one change of state of a message, as the history of its queue has it.
type Change struct {
	Queue    string      `json:"queue"`
	At       time.Time   `json:"at"`    // by the server's clock
	Event    string      `json:"event"` // one of the Event constants
	Group    string      `json:"group,omitempty"`
	Attempt  int         `json:"attempt,omitempty"`
	Due      time.Time   `json:"due,omitzero"`       // from then on
	Was      time.Time   `json:"was,omitzero"`       // rescheduled: due before
	Late     view.Millis `json:"late_ms,omitempty"`  // ready: after it was due
	After    view.Millis `json:"after_ms,omitempty"` // how an entry ended: after it was ready
	Idle     view.Millis `json:"idle_ms,omitempty"`  // how an entry ended: after it was delivered, or last extended
	Entry    string      `json:"entry,omitempty"`
	Letter   string      `json:"letter,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	Error    string      `json:"error,omitempty"`
	Consumer string      `json:"consumer,omitempty"` // who held the entry, where somebody else ended that
	By       string      `json:"by,omitempty"`       // who did it
}

// Story is what the histories of queues tell of a message, oldest first.
type Story struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"` // by the server's clock, when it was read
	Changes []Change  `json:"changes"`
	Queues  int       `json:"queues"` // how many have a history
	Looked  int64     `json:"looked"` // how many entries of histories were read
}

// StoryOptions change what ReadStory does. The zero value is fine.
type StoryOptions struct {
	Queues   []string                  // where to look; none = all that are registered
	Progress func(looked, total int64) // called now and then, one at a time; total grows
}

// ReadStory reads what became of a message, also of one that is gone, in the histories of queues that keep one. It is complete
// where the histories reach back far enough, but for what left no change to a script, as plain ZADD, XREADGROUP and XACK, for
// purges, and for acknowledgements of entries that were ready before the history begins.
// ErrNoHistory: there is nothing to read; ErrUntold: nothing is told of this message.
//
// It reads all that the histories hold, in pages of about 64 KiB.
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

// queue reads the histories of those partitions of a queue where the message may have been.
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
	// An entry of foreign make has its own ID for one.
	t := teller{id: r.id, queue: queue, ready: map[string]readyEntry{r.id: {}}, letters: map[string]bool{}}
	last, ok, err := view.ReadLastID(ctx, r.c, key) // what comes later is for the next one who asks
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

// readyEntry is what a teller remembers of an entry.
type readyEntry struct {
	at    time.Time // when it became ready
	group string    // of a retry: the only one that it is for
}

// teller picks the changes of one message out of the history of a partition, in its order. What is told of an entry, or of a
// letter, without the ID of its message, is known by what was told of it before.
type teller struct {
	id, queue string
	ready     map[string]readyEntry // entries of the message
	letters   map[string]bool
	changes   []Change
}

func (t *teller) hear(one lua.Told) {
	entry, known := t.ready[one.Entry]
	if one.ID == one.Entry { // of a body that was lost, that is all there is for an ID
		one.ID = ""
	}
	if one.ID != t.id && (one.ID != "" || !known && !t.letters[one.Letter]) {
		return
	}
	if one.Event == lua.EventAcknowledged && entry.group != "" && one.Group != entry.group {
		return // a retry of another group, which this one only takes out of its way
	}
	c := Change{
		Queue: t.queue, At: one.At, Event: one.Event, Group: one.Group, Attempt: one.Attempt, Due: one.Due, Was: one.Was,
		Idle: view.Millis(one.Idle), Entry: one.Entry, Letter: one.Letter, Reason: one.Reason, Error: one.Error,
		Consumer: one.Consumer, By: one.By,
	}
	switch {
	case one.Event == lua.EventReady:
		t.ready[one.Entry] = readyEntry{one.At, one.Group}
		if one.Due.UnixMilli() > 1e12 { // before 2001 is for those who mean now
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

// step adds to what was read, and to what there is to read.
func (r *storyReader) step(looked, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked += looked
	r.total += total
	if r.progress != nil {
		r.progress(min(r.looked, r.total), max(r.looked, r.total))
	}
}
