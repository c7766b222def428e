package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// walkStep is the number of schedule members that one call examines.
const walkStep = 1000

// Retry is a delivery that waits in the schedule: a retry for one group after a failure, or a redriven dead letter.
type Retry struct {
	ID    string
	Group string    // "" = redriven for all groups
	Due   time.Time // its present due time; of a cancelled one, the former
}

// walkFunc is one step of a walk through the schedule of one partition.
type walkFunc func(ctx context.Context, c rueidis.Client, k lua.Keys, w lua.Walk) (next string, found []lua.Waiting, err error)

// CancelRetries takes waiting retries of messages, and redriven dead letters, out of the schedule of every partition
// that may hold them: those of one group, or with "" of all groups. It returns what it removed. Without an error,
// nothing is left that waited during the whole call. A delivery that is ready or pending meanwhile is not touched, and
// may be retried if it fails.
//
// No key tells where retries are. So the call walks the whole schedule, in steps of 1,000 members, over a connection of
// its own. Errors as with Cancel. ErrUncertain: a reply was lost; it may have named retries that were removed.
func (p *Producer) CancelRetries(ctx context.Context, queue, group string, ids ...string) ([]Retry, error) {
	found, err := p.walk(ctx, queue, group, ids, observe.Cancelled, func(ctx context.Context, c rueidis.Client, k lua.Keys,
		w lua.Walk) (string, []lua.Waiting, error) {
		return lua.CancelRetries(ctx, c, k, w, ids)
	})
	return found, wrap("cancel retries", queue, "", err)
}

// RescheduleRetries moves the due times of waiting retries: to at, or if that is zero to delay from the server's now; 0
// retries at once. Otherwise like CancelRetries.
func (p *Producer) RescheduleRetries(ctx context.Context, queue, group string, delay time.Duration, at time.Time,
	ids ...string) ([]Retry, error) {
	when, err := dueWhen(delay, at)
	if err != nil {
		return nil, wrap("reschedule retries", queue, "", err)
	}
	found, err := p.walk(ctx, queue, group, ids, observe.Rescheduled, func(ctx context.Context, c rueidis.Client, k lua.Keys,
		w lua.Walk) (string, []lua.Waiting, error) {
		return lua.RescheduleRetries(ctx, c, k, w, when, ids)
	})
	return found, wrap("reschedule retries", queue, "", err)
}

// walk walks the schedules of all partitions that may hold the messages.
func (p *Producer) walk(ctx context.Context, queue, group string, ids []string, e observe.Event,
	do walkFunc) (found []Retry, err error) {
	var errs []error
	if group != "" {
		errs = append(errs, lua.CheckGroup(group))
	}
	for _, id := range ids {
		errs = append(errs, lua.CheckID(id))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r, err := p.enter(ctx, queue)
	if err != nil {
		return nil, err
	}
	defer p.busy.Done()
	began := time.Now()
	k, err := r.counts(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { r.told(e, len(found)) }()
	found, err = p.walkAmong(ctx, queue, group, ids, k.counts, nil, do)
	if err != nil {
		return found, err
	}
	again, err := r.countsAfter(ctx, began)
	if err != nil {
		return found, err
	}
	more, err := p.walkAmong(ctx, queue, group, ids, again.counts, k.counts, do)
	return append(found, more...), err
}

// walkAmong walks the partitions of some counts that earlier counts lack, all at once. Any of them may hold the retries
// of a message.
func (p *Producer) walkAmong(ctx context.Context, queue, group string, ids []string, counts, earlier lua.Counts,
	do walkFunc) (found []Retry, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	first := 0
	if earlier != nil {
		first = earlier.Latest()
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for partition := first; partition < counts.Latest(); partition++ {
		all.Go(func() {
			some, failed := p.walkOne(ctx, p.keys(lua.PartitionName(queue, partition)), group, do)
			mu.Lock()
			defer mu.Unlock()
			found, err = append(found, some...), errors.Join(err, failed)
		})
	}
	all.Wait()
	return found, err
}

// walkOne walks one schedule. A cursor is only valid in the server process that made it, so after a failed step the
// walk starts over, on another connection.
func (p *Producer) walkOne(ctx context.Context, k lua.Keys, group string, do walkFunc) (found []Retry, err error) {
	var conn rueidis.Client
	var waited error
	release, lost, seen := func() {}, false, map[string]int{}
	defer func() { release() }()
	for cursor := ""; cursor != lua.WalkDone; {
		clean, err := p.repeat(ctx, time.Now(), func(ctx context.Context) error {
			if conn == nil {
				conn, release = lua.Pin(p.cfg.Client)
				cursor = ""
			}
			next, some, err := do(ctx, conn, k, lua.Walk{Cursor: cursor, Limit: walkStep, Group: group})
			for _, w := range some {
				r := Retry{ID: w.ID, Group: w.Group, Due: w.Due}
				if i, known := seen[w.Member]; known { // a walk may meet a member twice
					found[i] = r
					continue
				}
				seen[w.Member] = len(found)
				found = append(found, r)
			}
			if err == nil && len(some) > 0 {
				var failed error
				if waited, failed = setAside(p.cfg.Durability.Confirm(ctx, conn, k.Due)); failed != nil {
					err = failed
				}
			}
			if err != nil {
				release()
				conn, release = nil, func() {}
				return err
			}
			cursor = next
			return nil
		})
		lost = lost || !clean
		if err != nil {
			return found, err
		}
	}
	if lost {
		return found, fmt.Errorf("%w: a reply was lost, and with it perhaps the names of some", ErrUncertain)
	}
	return found, waited
}
