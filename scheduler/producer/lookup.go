package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// messageChange is one script call that changes messages of one partition, and returns for each whether it was found.
// With lua.ErrNotDurable the answers hold.
type messageChange func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error)

// messageLookup applies a change to messages in all partitions that may hold them. Cancel and Reschedule share it.
type messageLookup struct {
	producer *Producer
	queue    string
	ids      []string
	change   messageChange
	began    time.Time

	mu    sync.Mutex
	found []bool // by index of ids: a partition had the message
	// lostReplies has by index of ids an ErrUncertain if a reply was lost and the repeated call found nothing. It
	// counts only if no partition had the message.
	lostReplies []error
	// unanswered has by index of ids the error of a partition that may hold the message and did not answer. It always
	// counts, because several partitions may hold the message.
	unanswered []error
	notDurable error // set if a change is less durable than the producer's Durability
	failed     error // the last error of a partition
}

// lookup applies a change to each message in every partition that may hold it. The ordering key of a message decides
// its partition, and the caller does not know that key. Besides, a producer that knew no or an older partition count
// may have put the same ID into another partition as well.
//
// lookup asks all partitions and the registry at once: one round trip. It takes another one if the queue has grown, and
// one for messages that no partition has. Without an error the answers are definite, because all partitions have
// answered that were known after the call began. With an error, true means that the message was found and changed
// somewhere, and false is not definite.
func (p *Producer) lookup(ctx context.Context, queue string, ids []string, e observe.Event,
	change messageChange) ([]bool, error) {
	for _, id := range ids {
		if err := lua.CheckID(id); err != nil {
			return nil, err
		}
	}
	r, err := p.enter(ctx, queue)
	if err != nil {
		return nil, err
	}
	defer p.busy.Done()
	n := len(ids)
	s := &messageLookup{
		producer: p, queue: queue, ids: ids, change: change, began: time.Now(),
		found: make([]bool, n), lostReplies: make([]error, n), unanswered: make([]error, n),
	}
	known, err := r.counts(ctx)
	if err != nil {
		return s.found, err
	}
	// If the registry never answered, do not ask it now: it is probably out of reach, and a request that times out
	// would break the connection that the partitions share.
	if !known.asked.IsZero() && known.asked.Before(s.began) {
		r.beginInquiry()
	}
	s.askByCounts(ctx, known.counts, nil)
	if !s.mustStop(ctx) {
		current, err := r.countsAfter(ctx, s.began)
		if err == nil {
			s.askByCounts(ctx, current.counts, known.counts)
			s.askAgain(ctx, current.counts)
		}
		for i := range ids {
			noteDoubt(s.unanswered, i, err)
		}
	}
	changed := 0
	for _, found := range s.found {
		if found {
			changed++
		}
	}
	r.report(e, changed)
	return s.found, s.err(ctx)
}

// countsAfter returns partition counts that the registry was asked for after a point in time.
func (r *route) countsAfter(ctx context.Context, earliest time.Time) (known *knownCounts, err error) {
	err = r.producer.repeatIdempotent(ctx, time.Now(), func(ctx context.Context) error {
		// askRegistry may return the answer to an inquiry that began before earliest. So it is called until it does
		// not.
		for known = r.known.Load(); known.asked.Before(earliest); known = r.known.Load() {
			if err := r.askRegistry(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	return known, err
}

// askByCounts asks the partitions that may hold the messages according to counts. It leaves out partitions that may
// hold them according to earlier, because these were asked before.
func (s *messageLookup) askByCounts(ctx context.Context, counts, earlier lua.Counts) {
	places := map[int][]int{} // partition → indexes of ids
	for i, id := range s.ids {
		for _, partition := range counts.Candidates(id) {
			if earlier == nil || !slices.Contains(earlier.Candidates(id), partition) {
				places[partition] = append(places[partition], i)
			}
		}
	}
	s.askAll(ctx, places)
}

// askAgain asks all partitions again for messages that no partition had. During the first questions, a replacement with
// another ordering key may have moved a message from a partition that had not answered yet to one that had.
func (s *messageLookup) askAgain(ctx context.Context, counts lua.Counts) {
	places := map[int][]int{} // partition → indexes of ids
	for i, id := range s.ids {
		if s.found[i] || counts.Latest() == 1 {
			continue
		}
		for _, partition := range counts.Candidates(id) {
			places[partition] = append(places[partition], i)
		}
	}
	s.askAll(ctx, places)
}

// askAll asks partitions for their messages, all partitions at once. It gets the indexes of the IDs by partition.
func (s *messageLookup) askAll(ctx context.Context, places map[int][]int) {
	if len(places) == 1 {
		for partition, messages := range places {
			s.askInChunks(ctx, partition, messages)
		}
		return
	}
	var all sync.WaitGroup // concurrent calls, because a partition whose server hangs must not use up the others' time
	for partition, messages := range places {
		all.Go(func() { s.askInChunks(ctx, partition, messages) })
	}
	all.Wait()
}

// askInChunks asks one partition for messages, given by the indexes of their IDs, in calls of cancelChunk messages.
func (s *messageLookup) askInChunks(ctx context.Context, partition int, messages []int) {
	keys := s.producer.keys(lua.PartitionName(s.queue, partition))
	for chunk := range slices.Chunk(messages, cancelChunk) {
		if err := s.askPartition(ctx, keys, chunk); err != nil {
			s.mu.Lock()
			for _, i := range messages {
				noteDoubt(s.unanswered, i, err)
			}
			s.mu.Unlock()
			return
		}
	}
}

// mustStop reports whether to ask no further partition, because the context has ended or the only server is
// unavailable.
func (s *messageLookup) mustStop(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ctx.Err() != nil || lua.Temporary(s.failed) && s.producer.cfg.Client.Mode() != rueidis.ClientModeCluster
}

// since returns the time from which the RetryTimeout of a partition counts. Usually it is now. Once a partition has
// failed, it is the beginning of the whole lookup.
func (s *messageLookup) since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return s.began
	}
	return time.Now()
}

// askPartition asks one partition for some messages, given by the indexes of their IDs, in one call. With an error none
// of them has an answer.
func (s *messageLookup) askPartition(ctx context.Context, k lua.Keys, messages []int) error {
	ids := make([]string, len(messages))
	for i, index := range messages {
		ids[i] = s.ids[index]
	}
	var found []bool
	var notDurable error
	clean, err := s.producer.repeat(ctx, s.since(), func(ctx context.Context) error {
		var err error
		found, err = s.change(ctx, k, ids)
		notDurable, err = splitNotDurable(err)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed = err
		return err
	}
	var lostReply error
	if !clean { // the try whose reply was lost may have changed the message
		lostReply = fmt.Errorf("%w: a reply was lost, and the message is not scheduled now", ErrUncertain)
	}
	for i, index := range messages {
		s.found[index] = s.found[index] || found[i]
		noteDoubt(s.lostReplies, index, lostReply)
	}
	if notDurable != nil && slices.Contains(found, true) {
		s.notDurable = notDurable
	}
	return nil
}

// noteDoubt notes why the answer for a message is not definite. ErrUncertain replaces other errors, because the message
// may have been changed.
func noteDoubt(doubts []error, index int, err error) {
	moreUncertain := errors.Is(err, ErrUncertain) && !errors.Is(doubts[index], ErrUncertain)
	if doubts[index] == nil || moreUncertain {
		doubts[index] = err
	}
}

// err returns nil if all answers are definite, and all changes are as durable as the producer's Durability.
func (s *messageLookup) err(ctx context.Context) error {
	for i, found := range s.found {
		switch {
		case !found:
			if err := cmp.Or(s.lostReplies[i], s.unanswered[i]); err != nil {
				return err
			}
		case s.unanswered[i] != nil:
			return fmt.Errorf("the message was found and changed, but another partition may hold it as well: %w",
				s.unanswered[i])
		}
	}
	if slices.Contains(s.found, false) && ctx.Err() != nil {
		return ctx.Err()
	}
	return s.notDurable
}
