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

// targets is the result of reading the targets of many queues.
type targets struct {
	texts  map[targetID]string
	unread map[string]error // queues whose targets could not be read
}

// err returns one error for all unread queues. If any queue has an error that is not temporary, err wraps that error.
func (t targets) err() error {
	var first error
	for _, queue := range slices.Sorted(maps.Keys(t.unread)) {
		err := t.unread[queue]
		isWorse := first != nil && lua.Temporary(first) && !lua.Temporary(err)
		if first == nil || isWorse {
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

// batchSize is the number of keys in one EXISTS, and of questions to a cluster in one batch.
const batchSize = 500

// maxBatches is the number of batches of questions that are sent to a cluster concurrently.
const maxBatches = 8

// queues returns all registered queues.
func (s *Store) queues(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	return scheduler.Queues(ctx, s.client, s.prefix)
}

// all returns the stored texts of the targets of queues. It reads a queue that hadTargets at once. It first asks the
// server whether any other queue has targets now: with one EXISTS for hundreds of queues, or on a cluster with one
// EXISTS for each queue, in batches. A queue that cannot be read affects no other queue. A master that does not answer
// costs twice loop.CallTimeout.
func (s *Store) all(ctx context.Context, queues []string, hadTargets map[string]bool) targets {
	ctx, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	found := targets{map[targetID]string{}, map[string]error{}}
	var toRead, others []string
	for _, queue := range queues {
		if hadTargets[queue] {
			toRead = append(toRead, queue)
		} else {
			others = append(others, queue)
		}
	}
	toRead = append(toRead, s.withTargets(ctx, others, found.unread)...)
	s.read(ctx, toRead, found)
	return found
}

// withTargets returns the queues that have targets. It adds to unread the queues for which EXISTS fails.
func (s *Store) withTargets(ctx context.Context, queues []string, unread map[string]error) (have []string) {
	size := batchSize
	if s.isCluster() {
		size = 1
	}
	batches := slices.Collect(slices.Chunk(queues, size))
	for len(batches) > 0 { // a batch in which only some queues have targets is halved, down to single queues
		counts := make([]int64, len(batches))
		questions := make([]view.Question, len(batches))
		for i, batch := range batches {
			keys := make([]string, len(batch))
			for j, queue := range batch {
				keys[j] = s.key(queue)
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

// askEach asks questions, and returns the error of each question. On a cluster a question fails if its master does not
// answer within loop.CallTimeout.
func (s *Store) askEach(ctx context.Context, questions []view.Question) []error {
	errs := make([]error, len(questions))
	limit, size := loop.PassTimeout, len(questions)
	if s.isCluster() {
		limit, size = loop.CallTimeout, batchSize
	}
	room := make(chan struct{}, maxBatches)
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
