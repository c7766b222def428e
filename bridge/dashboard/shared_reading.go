package dashboard

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// readings shares what viewers read of things that no loop keeps up to date: one reading of a thing at a time, whose
// result is used for a while.
type readings[T any] struct {
	least time.Duration // a result is used for this long; 0 = readingFresh

	mu    sync.Mutex
	all   map[string]*reading[T]
	swept time.Time // when results that nobody asked for were last dropped
}

// reading is the last result of reading a thing.
type reading[T any] struct {
	turn  chan struct{} // has one element while nobody reads
	value T
	begun time.Time // of the last successful reading; zero = none
	took  time.Duration
	used  time.Time // guarded by the mu of readings
}

// Times of a reading.
const (
	readingFresh = 2 * time.Second // a result is used for this long
	readingShare = 20              // or for this multiple of the time that the reading took
	keepReading  = 10 * time.Minute
)

// maxReadings is the number of things whose results are kept.
const maxReadings = 5000

// get returns the result of a reading that began after the last change of a viewer and is fresh, or reads. Others who
// want the same thing wait.
func (r *readings[T]) get(ctx context.Context, key string, changed time.Time, read func() (T, error)) (T, error) {
	var zero T
	one := r.entry(key)
	select {
	case <-one.turn:
	case <-ctx.Done():
		return zero, ctx.Err()
	}
	defer func() { one.turn <- struct{}{} }()
	fresh := time.Since(one.begun) < max(cmp.Or(r.least, readingFresh), readingShare*one.took)
	if fresh && !changed.After(one.begun) {
		return one.value, nil
	}
	begun := time.Now()
	value, err := read()
	if err != nil {
		return zero, err
	}
	one.value, one.begun, one.took = value, begun, time.Since(begun)
	return value, nil
}

// entry returns the entry of a thing. Before it adds one, it drops those that nobody has used for long.
func (r *readings[T]) entry(key string) *reading[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	one := r.all[key]
	if one == nil {
		if now.Sub(r.swept) > sweepEvery {
			r.swept = now
			maps.DeleteFunc(r.all, func(_ string, e *reading[T]) bool { return now.Sub(e.used) > keepReading })
		}
		if r.all == nil || len(r.all) >= maxReadings { // those who wait for a result still get it
			r.all = map[string]*reading[T]{}
		}
		one = &reading[T]{turn: make(chan struct{}, 1)}
		one.turn <- struct{}{}
		r.all[key] = one
	}
	one.used = now
	return one
}

// unreadQueue is a queue that cannot be read, with the reason.
type unreadQueue struct {
	Queue string
	Err   error
}

// readAtOnce is how many queues one request reads at a time.
const readAtOnce = 16

// readQueues reads things of queues, and returns them in the order of the queues. Viewers share each reading. A queue
// that cannot be read, for example because a key has another type, is in unread. The error is one that concerns all
// queues.
func readQueues[T any](
	q *request, shared *readings[[]T], queues []string, read func(queue string) ([]T, error),
) (all []T, unread []unreadQueue, err error) {
	found, errs := make([][]T, len(queues)), make([]error, len(queues))
	turns := make(chan struct{}, readAtOnce)
	var running sync.WaitGroup
	for i, queue := range queues {
		turns <- struct{}{}
		running.Go(func() {
			defer func() { <-turns }()
			errs[i] = guarded(func() (err error) {
				found[i], err = shared.get(q.ctx, queue, q.changedAt(queue), func() ([]T, error) { return read(queue) })
				return err
			})
		})
	}
	running.Wait()
	for i, err := range errs {
		switch {
		case err == nil:
		case lua.Temporary(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			return nil, nil, err
		default:
			unread = append(unread, unreadQueue{queues[i], err})
		}
	}
	return slices.Concat(found...), unread, nil
}
