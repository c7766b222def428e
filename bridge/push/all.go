package push

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
)

// targets is the result of a look at the targets of many queues.
type targets struct {
	texts  map[targetID]string
	unread map[string]error // queues whose targets could not be read
}

// err returns one error for all unread queues. It wraps an error that does not pass by itself, if any queue has one.
func (t targets) err() error {
	var first error
	for _, queue := range slices.Sorted(maps.Keys(t.unread)) {
		if err := t.unread[queue]; first == nil || lua.Temporary(first) && !lua.Temporary(err) {
			first = err
		}
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("read the targets of %d queues: %w", len(t.unread), first)
}

// otherType is the stored text for a queue whose key of targets has another Redis type.
const otherType = "of another type"

// existsBatch is the number of keys in one EXISTS, and of questions to a cluster in one batch.
const existsBatch = 500

// mostAsked is the number of batches of questions that are sent to a cluster concurrently.
const mostAsked = 8

// queues returns all registered queues.
func (s *Store) queues(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	return scheduler.Queues(ctx, s.client, s.prefix)
}

// all returns the stored texts of the targets of queues. If a queue had no targets at the last look, it first asks
// whether the queue has some now: one EXISTS asks for hundreds of queues; on a cluster it sends one EXISTS for each
// queue, in batches. A queue that cannot be read affects no other. A master that does not answer costs twice
// loop.CallTimeout.
func (s *Store) all(ctx context.Context, queues []string, had map[string]bool) targets {
	ctx, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	found := targets{map[targetID]string{}, map[string]error{}}
	var have, others []string
	for _, queue := range queues {
		if had[queue] {
			have = append(have, queue)
		} else {
			others = append(others, queue)
		}
	}
	s.read(ctx, append(have, s.withTargets(ctx, others, found.unread)...), found)
	return found
}

// withTargets returns the queues that have targets. Queues that cannot be asked are added to unread.
func (s *Store) withTargets(ctx context.Context, queues []string, unread map[string]error) (have []string) {
	size := existsBatch
	if s.isCluster() {
		size = 1
	}
	batches := slices.Collect(slices.Chunk(queues, size))
	for len(batches) > 0 { // a batch with some targets is halved, down to single queues
		counts := make([]int64, len(batches))
		questions := make([]view.Question, len(batches))
		for i, batch := range batches {
			keys := make([]string, len(batch))
			for k, queue := range batch {
				keys[k] = s.key(queue)
			}
			questions[i] = view.Number(s.client.B().Exists().Key(keys...).Build(), &counts[i])
		}
		errs := s.askEach(ctx, questions)
		var next [][]string
		for i, batch := range batches {
			switch n := len(batch); {
			case errs[i] != nil:
				for _, queue := range batch {
					unread[queue] = errs[i]
				}
			case counts[i] == 0:
			case counts[i] == int64(n):
				have = append(have, batch...)
			default:
				next = append(next, batch[:n/2], batch[n/2:])
			}
		}
		batches = next
	}
	return have
}

// read adds the stored texts of the targets of queues to found. A key of another Redis type does not affect the other
// queues.
func (s *Store) read(ctx context.Context, queues []string, found targets) {
	texts := make([]map[string]string, len(queues))
	questions := make([]view.Question, len(queues))
	for i, queue := range queues {
		questions[i] = s.ask(queue, &texts[i])
	}
	for i, err := range s.askEach(ctx, questions) {
		switch {
		case errors.Is(err, lua.ErrWrongType):
			found.texts[targetID{queues[i], ""}] = otherType
			continue
		case err != nil:
			found.unread[queues[i]] = err
			continue
		}
		for n, group := range slices.Sorted(maps.Keys(texts[i])) {
			if n < MaxTargets {
				found.texts[targetID{queues[i], group}] = texts[i][group]
			}
		}
	}
}

// askEach asks questions, and returns the error of each one. On a cluster a question without an answer within
// loop.CallTimeout fails: its master is away.
func (s *Store) askEach(ctx context.Context, questions []view.Question) []error {
	errs := make([]error, len(questions))
	limit, size := loop.PassTimeout, len(questions)
	if s.isCluster() {
		limit, size = loop.CallTimeout, existsBatch
	}
	room := make(chan struct{}, mostAsked)
	var asking sync.WaitGroup
	for first := 0; first < len(questions); first += size {
		room <- struct{}{}
		asking.Go(func() {
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			lists := make([][]view.Question, min(size, len(questions)-first))
			for i := range lists {
				lists[i] = questions[first+i : first+i+1]
			}
			copy(errs[first:], view.AskEach(ctx, s.client, lists...))
		})
	}
	asking.Wait()
	return errs
}

func (s *Store) isCluster() bool { return s.client.Mode() == rueidis.ClientModeCluster }
