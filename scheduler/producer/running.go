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
	// Unread: the given group has not read the message, and the message was not cancelled for that group. Either it
	// waits for its first delivery, which is for all groups, or it is ready and another group needs it.
	Unread CancelVerdict = "unread"
	// Cancelling: a worker holds the message. The worker learns of the cancellation with its next extend. The message
	// ends when the worker releases it.
	Cancelling CancelVerdict = "cancelling"
	// Cancelled: no delivery of the message is running, and none will start. With several groups this may be wrong if the
	// retry of a group became ready and failed again during each walk through the schedule.
	Cancelled CancelVerdict = "cancelled"
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
	Holders []Holder // workers that will learn of the cancellation; only with Cancelling
	Retries []Retry  // waiting retries that were removed
}

// entryStep is the number of stream entries that one call examines.
const entryStep = 1000

// maxRounds is the greatest number of walks of one call through the schedules.
const maxRounds = 3

// CancelRunning cancels messages in any state, in every partition: scheduled, waiting as a retry, ready, or held by a
// worker. It cancels them for all groups, or for one. With a group, a message that waits for its first delivery is not
// cancelled, because that delivery is for all groups. Nor is an entry cancelled that the group has not read and another
// group needs: see Unread.
//
// A worker that holds a message learns of the cancellation with its next extend, within 5 seconds and a third of the
// visibility timeout. Then the context of its handler is cancelled.
//
// Redis has no index of entries. So the call walks the streams, in steps of 1,000 entries, up to the last entry that
// each stream had when its walk began. Then it walks the schedules, like CancelRetries, and then the entries that were
// added to the streams meanwhile. During these walks a retry may become ready and fail again, so that no walk finds it.
// So the call walks the schedules and the new entries again if the last walk has found new entries. It also walks again
// if a group has read entries meanwhile, and a message was not found or all of several groups are cancelled. It walks
// the schedules three times at most: see Cancelled and NotFound. If all messages were found, it begins no further walk
// that would probably not end before the deadline of ctx.
//
// With an error, the messages found so far are cancelled and returned; others may still exist. Errors as with Cancel.
// Also lua.ErrOldBridge while a live bridge would dead-letter a cancelled delivery, unless AllowOldBridges is set.
func (p *Producer) CancelRunning(ctx context.Context, queue, group string, ids ...string) ([]Cancellation, error) {
	s := &entrySearch{
		producer: p, queue: queue, group: group, ids: ids, found: map[string][]lua.FoundEntry{}, ends: map[int]string{},
	}
	err := s.run(ctx)
	return s.verdicts(), wrap("cancel running", queue, "", err)
}

// entrySearch is one call of CancelRunning.
type entrySearch struct {
	producer     *Producer
	queue, group string
	ids          []string
	scheduled    []bool // by index of ids: the message waited for its first delivery, and was cancelled
	retries      []Retry
	// firstDeliveries are the first deliveries of the messages, by index of ids. They are only looked up for one group.
	firstDeliveries []firstDelivery

	mu         sync.Mutex
	found      map[string][]lua.FoundEntry // by message ID
	ends       map[int]string              // partition → ID of the last entry that was examined
	notDurable error                       // set if a cancellation is less durable than the producer's Durability
}

// firstDelivery is the result of looking a message up in the schedules.
type firstDelivery struct {
	waits bool // the message waits for its first delivery
	found int  // number of its entries that were found before the lookup
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
	r, err := s.producer.enter(ctx, s.queue)
	if err != nil {
		return err
	}
	defer s.producer.busy.Done()
	if err := s.producer.levels.Allow(ctx, lua.LevelCancelled, "cancellations of what runs"); err != nil {
		return err
	}
	if _, err := r.counts(ctx); err != nil {
		return err
	}
	// 1. Cancel entries in the streams. From then on, messages held by workers make no more retries.
	// 2. Remove waiting messages from the schedules; for one group only its retries.
	// 3. Cancel entries that were added to the streams since step 1, because messages may have become ready before
	// step 2 reached them.
	// 4. Repeat steps 2 and 3 if step 3 found an entry. Before that, groups may have failed this entry, and their retries
	// may be in the schedule. Also repeat them if a group has read entries meanwhile, and the steps may have missed a
	// retry (mayHaveMissed). The retry may have become ready before step 2 reached it, and have failed before step 3
	// reached it.
	before, err := s.readPositions(ctx, r)
	if err != nil {
		return err
	}
	if err := s.walkStreams(ctx, r); err != nil {
		return err
	}
	var waiting error
	for round := 1; ; round++ {
		began := time.Now()
		waiting = errors.Join(waiting, s.cancelWaiting(ctx, r, round))
		if !tookEffect(waiting) {
			return waiting
		}
		next, err := s.readPositions(ctx, r)
		if err != nil {
			return err
		}
		found := s.entriesFound()
		if err := s.walkStreams(ctx, r); err != nil {
			return err
		}
		if round == maxRounds {
			break
		}
		if s.entriesFound() > found {
			before = next
			continue
		}
		if !s.mayHaveMissed(next.groups) || !s.anyNotFound() && lacksTimeFor(ctx, time.Since(began)) {
			break
		}
		now, err := s.readPositions(ctx, r)
		if err != nil {
			return err
		}
		if now.text == before.text {
			break
		}
		before = next
	}
	r.report(observe.Cancelled, len(s.found))
	return errors.Join(waiting, s.notDurable)
}

// cancelWaiting removes waiting messages from the schedules. First deliveries do not come back, so only the first round
// removes them.
func (s *entrySearch) cancelWaiting(ctx context.Context, r *route, round int) (waiting error) {
	if s.group == "" && round == 1 {
		s.scheduled, waiting = s.producer.cancel(ctx, s.queue, s.ids)
	}
	if tookEffect(waiting) {
		retries, failed := s.producer.CancelRetries(ctx, s.queue, s.group, s.ids...)
		s.retries = append(s.retries, retries...)
		waiting = errors.Join(waiting, failed)
	}
	if tookEffect(waiting) && s.group != "" {
		waiting = errors.Join(waiting, s.lookUpFirstDeliveries(ctx, r))
	}
	return waiting
}

// entriesFound returns the number of entries of the messages that the walks through the streams have found.
func (s *entrySearch) entriesFound() (n int) {
	for _, entries := range s.found {
		n += len(entries)
	}
	return n
}

// mayHaveMissed reports whether the search may have missed a retry. It may if a message was not found, or if the call
// cancels for all groups and there are several. Then each group may have its own retry of a message that was found.
func (s *entrySearch) mayHaveMissed(groups int) bool {
	return s.group == "" && groups > 1 || s.anyNotFound()
}

// anyNotFound reports whether one of the messages was not found so far.
func (s *entrySearch) anyNotFound() bool {
	return slices.ContainsFunc(s.verdicts(), func(c Cancellation) bool { return c.Verdict == NotFound })
}

// lacksTimeFor reports whether ctx ends before a step of this length would. CancelRunning then returns its verdicts
// without the step. An error would hide that the messages were cancelled.
func lacksTimeFor(ctx context.Context, step time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < step
}

// positions tells how far the groups of a queue have read.
type positions struct {
	text   string // the last entry that each group has read in each partition; changes when a group reads
	groups int    // number of groups
}

// readPositions reads the positions of the groups.
func (s *entrySearch) readPositions(ctx context.Context, r *route) (positions, error) {
	known, err := r.counts(ctx)
	if err != nil {
		return positions{}, err
	}
	groups := make([][]view.GroupInfo, known.counts.Latest())
	err = s.producer.repeatIdempotent(ctx, time.Now(), func(ctx context.Context) error {
		questions := make([]view.Question, len(groups))
		for partition := range groups {
			keys := s.producer.keys(lua.PartitionName(s.queue, partition))
			questions[partition] = view.GroupsOf(s.producer.cfg.Client, keys.Stream, &groups[partition])
		}
		return view.Ask(ctx, s.producer.cfg.Client, questions...)
	})
	var text strings.Builder
	names := map[string]bool{}
	for partition, list := range groups {
		for _, g := range list {
			fmt.Fprintln(&text, partition, g.Name, g.Last)
			names[g.Name] = true
		}
	}
	return positions{text.String(), len(names)}, err
}

// tookEffect reports whether all changes so far took effect, though perhaps less durably than the producer's
// Durability. Then the call continues.
func tookEffect(err error) bool { return err == nil || errors.Is(err, lua.ErrNotDurable) }

// walkStreams walks the streams of all partitions at once, each from where the last walk ended. It uses partition
// counts that were read from the registry after it began.
func (s *entrySearch) walkStreams(ctx context.Context, r *route) error {
	known, err := r.countsAfter(ctx, time.Now())
	if err != nil {
		return err
	}
	var failed error
	var all sync.WaitGroup
	for partition := range known.counts.Latest() {
		all.Go(func() {
			err := s.walkStream(ctx, partition)
			s.mu.Lock()
			defer s.mu.Unlock()
			failed = errors.Join(failed, err)
		})
	}
	all.Wait()
	return failed
}

// lookUpFirstDeliveries looks up which messages wait for their first delivery in any partition.
func (s *entrySearch) lookUpFirstDeliveries(ctx context.Context, r *route) error {
	known, err := r.counts(ctx)
	if err != nil {
		return err
	}
	s.firstDeliveries = make([]firstDelivery, len(s.ids))
	for i, id := range s.ids {
		s.firstDeliveries[i].found = len(s.found[id])
	}
	messages := make([]batchMessage, len(s.ids))
	for i, id := range s.ids {
		messages[i].id = id
	}
	for partition := range known.counts.Latest() {
		keys := s.producer.keys(lua.PartitionName(s.queue, partition))
		done := 0 // messages of earlier chunks
		for chunk := range slices.Chunk(messages, duplicatesChunk) {
			var held []idState
			err := s.producer.repeatIdempotent(ctx, time.Now(), func(ctx context.Context) (err error) {
				held, err = lookUpChunk(ctx, s.producer.cfg.Client, keys, chunk)
				return err
			})
			if err != nil {
				return err
			}
			for i, state := range held {
				delivery := &s.firstDeliveries[done+i]
				delivery.waits = delivery.waits || state.scheduled
			}
			done += len(chunk)
		}
	}
	return nil
}

func (s *entrySearch) walkStream(ctx context.Context, partition int) error {
	s.mu.Lock()
	w := lua.EntryWalk{Limit: entryStep, Group: s.group, Cursor: entryAfter(s.ends[partition])}
	s.mu.Unlock()
	keys := s.producer.keys(lua.PartitionName(s.queue, partition))
	for {
		clean, err := s.producer.repeat(ctx, time.Now(), func(ctx context.Context) error {
			next, found, err := lua.CancelEntries(ctx, s.producer.cfg.Client, keys, w, s.ids,
				s.producer.cfg.Durability)
			notDurable, err := splitNotDurable(err)
			if err != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if notDurable != nil && len(found) > 0 {
				s.notDurable = notDurable
			}
			for _, f := range found {
				s.found[f.ID] = append(s.found[f.ID], f)
			}
			w, s.ends[partition] = next, next.Last
			return nil
		})
		if err == nil && !clean { // a try whose reply was lost may have deleted entries, and this one did not find them
			err = fmt.Errorf("%w: a reply was lost, and perhaps the IDs of some cancelled messages", ErrUncertain)
		}
		if err != nil {
			return fmt.Errorf("stream of partition %d, examined up to entry %s: %w", partition, w.Cursor, err)
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
		// If more entries were found since the lookup, the message has become ready and does not wait any more.
		waits := false
		if len(s.firstDeliveries) > i {
			delivery := s.firstDeliveries[i]
			waits = delivery.waits && delivery.found == len(s.found[id])
		}
		if unread || waits {
			c.Verdict = Unread
		}
	}
	return all
}

// entryAfter returns the next possible entry ID. For "" it returns "".
func entryAfter(id string) string {
	ms, seq, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	if err != nil || n == math.MaxUint64 {
		return id // the walk examines the entry with this ID again
	}
	return ms + "-" + strconv.FormatUint(n+1, 10)
}
