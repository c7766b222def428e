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
	p     *Producer
	queue string
	ids   []string
	do    messageChange
	began time.Time

	mu     sync.Mutex
	found  []bool
	lost   []error // a reply was lost, and the repeat found nothing: matters if no partition found the message
	untold []error // a partition that may hold the message did not answer: matters always, because several may hold it
	late   error   // the change is not as durable as asked
	failed error   // the last error of a partition
}

// lookup applies a change to each message in every partition that may hold it. The key of a message decides its
// partition, and the caller does not know the key. Besides, a producer with no or an older partition count may have put
// the same ID into another partition as well. lookup asks all partitions at once, and the registry beside them: one
// round trip. It takes another one if the queue has grown, and one for messages that no partition has. An answer is
// definite if all partitions known after the call began have answered. There are answers beside an error, too: true
// means that the message was found and changed somewhere; false is not definite.
func (p *Producer) lookup(ctx context.Context, queue string, ids []string, e observe.Event, do messageChange) ([]bool, error) {
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
	s := &messageLookup{p: p, queue: queue, ids: ids, do: do, began: time.Now(), found: make([]bool, n), lost: make([]error, n),
		untold: make([]error, n)}
	k, err := r.counts(ctx)
	if err != nil {
		return s.found, err
	}
	// With a zero time the registry is out of reach: asking would break the connection that the partitions share.
	if !k.asked.IsZero() && k.asked.Before(s.began) {
		r.begin(time.Time{})
	}
	s.amongCounts(ctx, k.counts, nil)
	if !s.over(ctx) {
		again, err := r.countsAfter(ctx, s.began)
		if err == nil {
			s.amongCounts(ctx, again.counts, k.counts)
			s.onceMore(ctx, again.counts)
		}
		for i := range ids {
			noteDoubt(s.untold, i, err)
		}
	}
	changed := 0
	for _, found := range s.found {
		if found {
			changed++
		}
	}
	r.told(e, changed)
	return s.found, s.err(ctx)
}

// countsAfter returns counts that the registry gave after a point in time.
func (r *route) countsAfter(ctx context.Context, then time.Time) (k *knownCounts, err error) {
	err = r.p.harmlessly(ctx, time.Now(), func(ctx context.Context) error {
		for k = r.known.Load(); k.asked.Before(then); k = r.known.Load() { // an inquiry that began before is too old
			if err := r.ask(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	return k, err
}

// amongCounts asks the partitions that may hold the messages by some counts, except those of earlier counts.
func (s *messageLookup) amongCounts(ctx context.Context, counts, earlier lua.Counts) {
	places := map[int][]int{} // partition → messages
	for i, id := range s.ids {
		for _, at := range counts.Candidates(id) {
			if earlier == nil || !slices.Contains(earlier.Candidates(id), at) {
				places[at] = append(places[at], i)
			}
		}
	}
	s.in(ctx, places)
}

// onceMore looks again for messages that no partition had. While all were asked, a replacement with another key may
// have moved a message to a partition that had already answered, away from one that had not.
func (s *messageLookup) onceMore(ctx context.Context, counts lua.Counts) {
	places := map[int][]int{}
	for i, id := range s.ids {
		if s.found[i] || counts.Latest() == 1 {
			continue
		}
		for _, partition := range counts.Candidates(id) {
			places[partition] = append(places[partition], i)
		}
	}
	s.in(ctx, places)
}

// in asks partitions for messages, all at once.
func (s *messageLookup) in(ctx context.Context, places map[int][]int) {
	if len(places) == 1 {
		for partition, messages := range places {
			s.inChunks(ctx, partition, messages)
		}
		return
	}
	var all sync.WaitGroup // at once: a partition whose server hangs must not use up the time of the others
	for partition, messages := range places {
		all.Go(func() { s.inChunks(ctx, partition, messages) })
	}
	all.Wait()
}

// inChunks asks one partition for messages.
func (s *messageLookup) inChunks(ctx context.Context, partition int, messages []int) {
	keys := s.p.keys(lua.PartitionName(s.queue, partition))
	for chunk := range slices.Chunk(messages, cancelChunk) {
		if err := s.inPartition(ctx, keys, chunk); err != nil {
			s.mu.Lock()
			for _, at := range messages {
				noteDoubt(s.untold, at, err)
			}
			s.mu.Unlock()
			return
		}
	}
}

// over reports whether to ask no further partition: the caller has left, or the only server is unavailable.
func (s *messageLookup) over(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ctx.Err() != nil || lua.Temporary(s.failed) && s.p.cfg.Client.Mode() != rueidis.ClientModeCluster
}

// since returns the time from which repeats are counted. Once one partition has failed, the others get no time of their
// own.
func (s *messageLookup) since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return s.began
	}
	return time.Now()
}

// inPartition asks one partition for some messages. With an error none of them has an answer.
func (s *messageLookup) inPartition(ctx context.Context, k lua.Keys, which []int) error {
	ids := make([]string, len(which))
	for i, at := range which {
		ids[i] = s.ids[at]
	}
	var some []bool
	var waited error
	clean, err := s.p.repeat(ctx, s.since(), func(ctx context.Context) error {
		var err error
		some, err = s.do(ctx, k, ids)
		waited, err = setAside(err)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed = err
		return err
	}
	var lost error
	if !clean { // an earlier try may have done it
		lost = fmt.Errorf("%w: a reply was lost, and the message is not scheduled now", ErrUncertain)
	}
	for i, at := range which {
		s.found[at] = s.found[at] || some[i]
		noteDoubt(s.lost, at, lost)
	}
	if waited != nil && slices.Contains(some, true) {
		s.late = waited
	}
	return nil
}

// noteDoubt notes why the answer for a message is not definite. ErrUncertain, by which the message may have been
// changed, takes precedence over a partition that could not be asked.
func noteDoubt(kept []error, at int, err error) {
	if kept[at] == nil || errors.Is(err, ErrUncertain) && !errors.Is(kept[at], ErrUncertain) {
		kept[at] = err
	}
}

// err returns nil if all answers are definite, and as durable as asked.
func (s *messageLookup) err(ctx context.Context) error {
	for i, found := range s.found {
		switch {
		case !found:
			if err := cmp.Or(s.lost[i], s.untold[i]); err != nil {
				return err
			}
		case s.untold[i] != nil:
			return fmt.Errorf("done where it was found, but it may be in another partition as well: %w", s.untold[i])
		}
	}
	if slices.Contains(s.found, false) && ctx.Err() != nil {
		return ctx.Err()
	}
	return s.late
}
