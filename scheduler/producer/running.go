package producer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// CancelVerdict tells how CancelRunning ended a message, or why it did not.
type CancelVerdict string

// Verdicts, of which the first that is true counts.
const (
	// Unread: a group was asked for that has not read the message yet, and it stays: it waits for its first delivery,
	// which is for all groups, or it is ready and another group needs it. For that group it was not cancelled.
	Unread CancelVerdict = "unread"
	// Cancelling: a worker holds it. It hears of that with its next extend, and the message ends when the worker lets go of it.
	Cancelling CancelVerdict = "cancelling"
	Cancelled  CancelVerdict = "cancelled" // nothing of it runs, or will start
	NotFound   CancelVerdict = "not found" // nothing of it waits, is ready, or is held
)

// Holder is a worker that holds a message.
type Holder struct {
	Group    string `json:"group"`
	Consumer string `json:"consumer"`
}

// Cancellation tells how CancelRunning ended a message.
type Cancellation struct {
	ID      string
	Verdict CancelVerdict
	Holders []Holder // who hears of it; with Cancelling
	Retries []Retry  // that waited, and were taken
}

// entryStep is how many entries of a stream one call looks at.
const entryStep = 1000

// CancelRunning cancels messages wherever they are, in every partition: what is scheduled, waits as a retry, is ready, or is held
// by a worker; for all groups, or for one. For one group the message that waits for its first delivery stays, because it is for
// all, and so does an entry that another group needs and this one has not read: see Unread.
//
// A worker that holds a message hears of it with its next extend, within 5 seconds and a third of the visibility timeout: then
// its handler's context is cancelled. No key says where entries are: the call looks through the streams, up to the end that they
// had when it came there, in steps of 1,000 entries, and then through the schedules as CancelRetries does. With an error what was
// found is told and cancelled, and what was not found may be there. Errors as with Cancel; and lua.ErrOldBridge while a
// bridge is alive that makes a dead letter of a cancelled delivery, unless old bridges are allowed.
func (p *Producer) CancelRunning(ctx context.Context, queue, group string, ids ...string) ([]Cancellation, error) {
	s := &entrySearch{p: p, queue: queue, group: group, ids: ids, found: map[string][]lua.FoundEntry{}, ends: map[int]string{}}
	err := s.run(ctx)
	return s.verdicts(), wrap("cancel running", queue, "", err)
}

// entrySearch cancels messages wherever they are.
type entrySearch struct {
	p            *Producer
	queue, group string
	ids          []string
	scheduled    []bool
	stays        []staying // with a group: what waits for its first delivery, by index of ids
	retries      []Retry

	mu    sync.Mutex
	found map[string][]lua.FoundEntry // by message ID
	ends  map[int]string              // entry IDs: the end of what was looked at, by partition
	late  error
}

// staying says of a message whether it waits for its first delivery, and how many of its entries were found before that
// look.
type staying struct {
	waits bool
	found int
}

func (s *entrySearch) run(ctx context.Context) error {
	var errs []error
	if s.group != "" {
		errs = append(errs, lua.CheckGroup(s.group))
	}
	for _, id := range s.ids {
		errs = append(errs, lua.CheckID(id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(s.ids) == 0 {
		return nil
	}
	r, err := s.p.enter(ctx, s.queue)
	if err != nil {
		return err
	}
	defer s.p.busy.Done()
	if err := s.p.levels.Allow(ctx, lua.LevelCancelled, "cancellations of what runs"); err != nil {
		return err
	}
	if _, err := r.counts(ctx); err != nil {
		return err
	}
	// 1. What is in the stream is cancelled there. Of what a worker holds no retry comes any more.
	// 2. What waits in the schedule is taken out of it; for one group its retries alone.
	// 3. What became ready before 2 looked, and behind the end that 1 looked up to, is found by looking there again.
	if err := s.streams(ctx, r); err != nil {
		return err
	}
	var waiting error
	if s.group == "" {
		s.scheduled, waiting = s.p.cancel(ctx, s.queue, s.ids)
	}
	if lasting(waiting) {
		var failed error
		s.retries, failed = s.p.CancelRetries(ctx, s.queue, s.group, s.ids...)
		waiting = errors.Join(waiting, failed)
	}
	if !lasting(waiting) {
		return waiting
	}
	if s.group != "" {
		if err := s.lookForStaying(ctx, r); err != nil {
			return err
		}
	}
	if err := s.streams(ctx, r); err != nil {
		return err
	}
	r.told(observe.Cancelled, len(s.found))
	return errors.Join(waiting, s.late)
}

// lasting says whether what was done holds, so that the call goes on.
func lasting(err error) bool { return err == nil || errors.Is(err, lua.ErrNotDurable) }

// streams looks through the streams of all partitions at once, from where it looked before, by counts that the registry was asked
// for after that.
func (s *entrySearch) streams(ctx context.Context, r *route) error {
	k, err := r.countsAfter(ctx, time.Now())
	if err != nil {
		return err
	}
	var failed error
	var all sync.WaitGroup
	for partition := range k.counts.Latest() {
		all.Go(func() {
			err := s.stream(ctx, partition)
			s.mu.Lock()
			defer s.mu.Unlock()
			failed = errors.Join(failed, err)
		})
	}
	all.Wait()
	return failed
}

// lookForStaying looks which messages wait for their first delivery in any partition.
func (s *entrySearch) lookForStaying(ctx context.Context, r *route) error {
	k, err := r.counts(ctx)
	if err != nil {
		return err
	}
	s.stays = make([]staying, len(s.ids))
	for i, id := range s.ids {
		s.stays[i].found = len(s.found[id])
	}
	messages := make([]batchMessage, len(s.ids))
	for i, id := range s.ids {
		messages[i].id = id
	}
	for partition := range k.counts.Latest() {
		keys, at := s.p.keys(lua.PartitionName(s.queue, partition)), 0
		for chunk := range slices.Chunk(messages, duplicatesChunk) {
			var held []holding
			err := s.p.harmlessly(ctx, time.Now(), func(ctx context.Context) (err error) {
				held, err = holds(ctx, s.p.cfg.Client, keys, chunk)
				return err
			})
			if err != nil {
				return err
			}
			for i, one := range held {
				s.stays[at+i].waits = s.stays[at+i].waits || one.scheduled
			}
			at += len(chunk)
		}
	}
	return nil
}

func (s *entrySearch) stream(ctx context.Context, partition int) error {
	s.mu.Lock()
	w := lua.EntryWalk{Limit: entryStep, Group: s.group, Cursor: entryAfter(s.ends[partition])}
	s.mu.Unlock()
	for {
		clean, err := s.p.repeat(ctx, time.Now(), func(ctx context.Context) error {
			next, found, err := lua.CancelEntries(ctx, s.p.cfg.Client, s.p.keys(lua.PartitionName(s.queue, partition)), w, s.ids,
				s.p.cfg.Durability)
			waited, err := setAside(err)
			if err != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if waited != nil && len(found) > 0 {
				s.late = waited
			}
			for _, f := range found {
				s.found[f.ID] = append(s.found[f.ID], f)
			}
			w, s.ends[partition] = next, next.Last
			return nil
		})
		if err == nil && !clean { // an earlier try may have deleted what this one does not find
			err = fmt.Errorf("%w: a reply was lost, and with it perhaps the names of some", ErrUncertain)
		}
		if err != nil {
			return fmt.Errorf("stream of partition %d, looked at up to %s: %w", partition, w.Cursor, err)
		}
		if w.Cursor == "" {
			return nil
		}
	}
}

// verdicts sums up what was done to each message.
func (s *entrySearch) verdicts() []Cancellation {
	all := make([]Cancellation, len(s.ids))
	for i, id := range s.ids {
		c := &all[i]
		*c = Cancellation{ID: id, Verdict: NotFound}
		for _, r := range s.retries {
			if r.ID == id {
				c.Retries, c.Verdict = append(c.Retries, r), Cancelled
			}
		}
		if len(s.scheduled) > i && s.scheduled[i] || len(s.found[id]) > 0 {
			c.Verdict = Cancelled
		}
		for _, f := range s.found[id] {
			if f.Verdict == lua.EntryCancelling {
				c.Holders = append(c.Holders, Holder{f.Group, f.Consumer})
				c.Verdict = Cancelling
			}
		}
		unread := slices.ContainsFunc(s.found[id], func(f lua.FoundEntry) bool { return f.Verdict == lua.EntryUnread })
		// What waited, and became ready meanwhile, was found after the look.
		waits := len(s.stays) > i && s.stays[i].waits && s.stays[i].found == len(s.found[id])
		if unread || waits {
			c.Verdict = Unread
		}
	}
	return all
}

// entryAfter returns the entry ID that follows one; "" for none.
func entryAfter(id string) string {
	ms, seq, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	if err != nil || n == math.MaxUint64 {
		return id // looked at once more
	}
	return ms + "-" + strconv.FormatUint(n+1, 10)
}
