package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// change is one script call that changes some messages of one partition, and says which of them it found. With lua.ErrNotDurable the
// answers hold.
type change func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error)

// search looks for messages in the partitions that they may be in. It is what Cancel and Reschedule have in common.
type search struct {
	p     *Producer
	queue string
	ids   []string
	do    change
	began time.Time

	// Of one message only one partition is asked at a time.
	found []bool
	doubt []error // why a message that was not found may yet have been there

	mu     sync.Mutex
	late   error // what was done is not as durable as asked
	failed error // the last one
}

// seek makes a change to each message where it is found: in the partition that it goes to now, else in those of older counts. That a
// message is not there is the answer only when each of them said so, and no others were known after the call began. The answers
// are there also with an error: true is definite, false is not.
func (p *Producer) seek(ctx context.Context, queue string, ids []string, do change) ([]bool, error) {
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
	s := &search{p: p, queue: queue, ids: ids, do: do, began: time.Now(), found: make([]bool, len(ids)), doubt: make([]error, len(ids))}
	k, err := r.counts(ctx)
	if err != nil {
		return s.found, err
	}
	s.among(ctx, k.counts, nil)
	if slices.Contains(s.found, false) && !s.over(ctx) {
		again, err := r.countsAfter(ctx, s.began)
		if err == nil {
			s.among(ctx, again.counts, k.counts)
		}
		for i := range ids {
			s.wonder(i, err)
		}
	}
	return s.found, s.err(ctx)
}

// countsAfter returns counts that the registry was asked for after a point in time.
func (r *route) countsAfter(ctx context.Context, then time.Time) (k *known, err error) {
	err = r.p.harmlessly(ctx, time.Now(), func(ctx context.Context) error {
		for k = r.known.Load(); k.asked.Before(then); k = r.known.Load() { // one that was under way does not count
			if err := r.ask(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	return k, err
}

// among looks where messages may be by some counts, and were not looked for by earlier ones.
func (s *search) among(ctx context.Context, counts, earlier lua.Counts) {
	for round := 0; ; round++ {
		places, left := map[int][]int{}, false // partition → messages
		for i, id := range s.ids {
			if s.found[i] {
				continue
			}
			candidates := counts.Candidates(id)
			if round >= len(candidates) {
				continue
			}
			left = true
			if at := candidates[round]; earlier == nil || !slices.Contains(earlier.Candidates(id), at) {
				places[at] = append(places[at], i)
			}
		}
		if !left || s.over(ctx) {
			return
		}
		var all sync.WaitGroup // at once: one whose server hangs must not use up the time of the others
		for partition, messages := range places {
			keys := lua.NewKeys(s.p.cfg.Prefix, lua.PartitionName(s.queue, partition))
			all.Go(func() {
				for chunk := range slices.Chunk(messages, cancelChunk) {
					if err := s.in(ctx, keys, chunk); err != nil {
						for _, at := range messages {
							s.wonder(at, err)
						}
						return
					}
				}
			})
		}
		all.Wait()
	}
}

// over says whether to ask no further partition: the caller has left, or the one server that there is is away.
func (s *search) over(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ctx.Err() != nil || lua.Temporary(s.failed) && s.p.cfg.Client.Mode() != rueidis.ClientModeCluster
}

// since returns from when on repeats are counted: once one partition has failed, the others have no time of their own.
func (s *search) since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return s.began
	}
	return time.Now()
}

// in looks for messages in one partition. The error says that none of them had an answer.
func (s *search) in(ctx context.Context, k lua.Keys, which []int) error {
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
	var doubt error
	if !clean { // an earlier try may have done it
		doubt = fmt.Errorf("%w: a reply was lost, and the message is not scheduled now", ErrUncertain)
	}
	for i, at := range which {
		s.found[at] = some[i]
		s.wonder(at, doubt)
	}
	if waited != nil && slices.Contains(some, true) {
		s.late = waited
	}
	return nil
}

// wonder keeps why an answer is not known. That the message may have been changed comes before that it could not be asked for.
func (s *search) wonder(at int, err error) {
	if s.doubt[at] == nil || errors.Is(err, ErrUncertain) && !errors.Is(s.doubt[at], ErrUncertain) {
		s.doubt[at] = err
	}
}

// err is nil when all answers are definite, and as durable as asked.
func (s *search) err(ctx context.Context) error {
	for i, found := range s.found {
		if !found && s.doubt[i] != nil {
			return s.doubt[i]
		}
	}
	if slices.Contains(s.found, false) && ctx.Err() != nil {
		return ctx.Err()
	}
	return s.late
}
