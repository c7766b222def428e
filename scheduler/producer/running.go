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
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// CancelVerdict is the outcome of CancelRunning for one message.
type CancelVerdict string

// Verdicts; the first one that applies is returned.
const (
	// Unread: the given group has not read the message, and it stays. Either it waits for its first delivery, which is
	// for all groups, or it is ready and another group needs it. It is not cancelled for the given group.
	Unread CancelVerdict = "unread"
	// Cancelling: a worker holds the message. The worker learns of the cancellation with its next extend. The message
	// ends when the worker releases it.
	Cancelling CancelVerdict = "cancelling"
	Cancelled  CancelVerdict = "cancelled" // nothing of it runs, or will start
	// NotFound: the message is not scheduled, not ready, not held, and has no retry. This may be wrong if the message
	// became ready and failed again during each of three walks through the schedule.
	NotFound CancelVerdict = "not found"
)

// Holder is a worker that holds a message.
type Holder struct {
	Group    string `json:"group"`
	Consumer string `json:"consumer"`
}

// Cancellation is the outcome of CancelRunning for one message.
type Cancellation struct {
	ID      string
	Verdict CancelVerdict
	Holders []Holder // who learns of the cancellation; with Cancelling
	Retries []Retry  // waiting retries that were removed
}

// entryStep is the number of stream entries that one call examines.
const entryStep = 1000

// mostRounds is the most walks of one call through the schedules.
const mostRounds = 3

// CancelRunning cancels messages in any state, in every partition: scheduled, waiting as a retry, ready, or held by a
// worker; for all groups, or for one. For one group, a message that waits for its first delivery stays, because it is
// for all groups. So does an entry that this group has not read and another group needs: see Unread.
//
// A worker that holds a message learns of it with its next extend, within 5 seconds and a third of the visibility
// timeout; then its handler's context is cancelled.
//
// No key tells where entries are. So the call walks the streams, in steps of 1,000 entries, up to the end that each had
// when the walk reached it; then the schedules, like CancelRetries; then the rest of the streams. A message may become
// ready and fail during these walks, so that none finds it. So if the call has not found a message, and a group has
// read entries meanwhile, it walks the schedules and the rest of the streams again, three times at most: see NotFound.
//
// With an error, the messages found so far are cancelled and returned; others may still exist. Errors as with Cancel;
// also lua.ErrOldBridge while a live bridge would dead-letter a cancelled delivery, unless old bridges are allowed.
func (p *Producer) CancelRunning(ctx context.Context, queue, group string, ids ...string) ([]Cancellation, error) {
	s := &entrySearch{p: p, queue: queue, group: group, ids: ids, found: map[string][]lua.FoundEntry{}, ends: map[int]string{}}
	err := s.run(ctx)
	return s.verdicts(), wrap("cancel running", queue, "", err)
}

// entrySearch is one CancelRunning.
type entrySearch struct {
	p            *Producer
	queue, group string
	ids          []string
	scheduled    []bool
	stays        []staying // for one group: messages that wait for their first delivery, by index of ids
	retries      []Retry

	mu    sync.Mutex
	found map[string][]lua.FoundEntry // by message ID
	ends  map[int]string              // by partition: entry ID up to which the stream was examined
	late  error
}

// staying is whether a message waits for its first delivery, and how many of its entries were found before that was
// looked up.
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
	// 1. Cancel entries in the streams. Then messages held by workers make no more retries.
	// 2. Take waiting messages out of the schedules; for one group only its retries.
	// 3. Walk the rest of the streams, for messages that became ready before step 2 reached them, behind the end of
	// step 1.
	// 4. Repeat steps 2 and 3 if an ID was not found, and a group has read entries meanwhile: the message may have become
	// ready before step 2 reached it, and have failed before step 3 reached it.
	before, err := s.progress(ctx, r)
	if err != nil {
		return err
	}
	if err := s.streams(ctx, r); err != nil {
		return err
	}
	var waiting error
	for round := 1; ; round++ {
		waiting = errors.Join(waiting, s.schedules(ctx, r, round))
		if !lasting(waiting) {
			return waiting
		}
		next, err := s.progress(ctx, r)
		if err != nil {
			return err
		}
		if err := s.streams(ctx, r); err != nil {
			return err
		}
		if round == mostRounds || !s.misses() {
			break
		}
		now, err := s.progress(ctx, r)
		if err != nil {
			return err
		}
		if now == before {
			break
		}
		before = next
	}
	r.told(observe.Cancelled, len(s.found))
	return errors.Join(waiting, s.late)
}

// schedules takes waiting messages out of the schedules. First deliveries do not come back, so only the first round
// takes them.
func (s *entrySearch) schedules(ctx context.Context, r *route, round int) (waiting error) {
	if s.group == "" && round == 1 {
		s.scheduled, waiting = s.p.cancel(ctx, s.queue, s.ids)
	}
	if lasting(waiting) {
		retries, failed := s.p.CancelRetries(ctx, s.queue, s.group, s.ids...)
		s.retries = append(s.retries, retries...)
		waiting = errors.Join(waiting, failed)
	}
	if lasting(waiting) && s.group != "" {
		waiting = errors.Join(waiting, s.lookForStaying(ctx, r))
	}
	return waiting
}

// misses reports whether one of the messages was not found so far.
func (s *entrySearch) misses() bool {
	return slices.ContainsFunc(s.verdicts(), func(c Cancellation) bool { return c.Verdict == NotFound })
}

// progress returns a text with the last entry that each group has read in each partition. An equal text means that no
// group has read entries meanwhile.
func (s *entrySearch) progress(ctx context.Context, r *route) (string, error) {
	k, err := r.counts(ctx)
	if err != nil {
		return "", err
	}
	groups := make([][]view.GroupInfo, k.counts.Latest())
	err = s.p.harmlessly(ctx, time.Now(), func(ctx context.Context) error {
		questions := make([]view.Question, len(groups))
		for partition := range groups {
			keys := s.p.keys(lua.PartitionName(s.queue, partition))
			questions[partition] = view.GroupsOf(s.p.cfg.Client, keys.Stream, &groups[partition])
		}
		return view.Ask(ctx, s.p.cfg.Client, questions...)
	})
	var text strings.Builder
	for partition, list := range groups {
		for _, g := range list {
			fmt.Fprintln(&text, partition, g.Name, g.Last)
		}
	}
	return text.String(), err
}

// lasting reports whether the changes so far hold, so that the call continues.
func lasting(err error) bool { return err == nil || errors.Is(err, lua.ErrNotDurable) }

// streams walks the streams of all partitions at once, each from where the last walk ended. It uses partition counts
// that were read from the registry after it began.
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

// lookForStaying looks up which messages wait for their first delivery in any partition.
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
		if err == nil && !clean { // an earlier try may have deleted entries that this one does not find
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

// verdicts sums up the outcome of each message.
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
		// A message that waited, and became ready since, was found after the lookup.
		waits := len(s.stays) > i && s.stays[i].waits && s.stays[i].found == len(s.found[id])
		if unread || waits {
			c.Verdict = Unread
		}
	}
	return all
}

// entryAfter returns the next entry ID; "" for none.
func entryAfter(id string) string {
	ms, seq, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	if err != nil || n == math.MaxUint64 {
		return id // then this one is examined again
	}
	return ms + "-" + strconv.FormatUint(n+1, 10)
}
