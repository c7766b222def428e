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

// walkStep is how many members of a schedule one call looks at.
const walkStep = 1000

// Retry is a delivery of a message that waits in the schedule: a retry for a group that failed, or a redriven dead letter.
type Retry struct {
	ID    string
	Group string    // "" = redriven for all groups
	Due   time.Time // when it is due now; of a cancelled one, when it would have been
}

// walkFunc is one step of a walk through the schedule of one partition.
type walkFunc func(ctx context.Context, c rueidis.Client, k lua.Keys, w lua.Walk) (next string, found []lua.Waiting, err error)

// CancelRetries takes retries of messages that wait, and redriven letters, out of the schedule of every partition that may hold
// them: of one group, or with "" of all. It returns what it took: with no error nothing is left that waited from the beginning of
// the call to its end. What is ready or pending meanwhile is not touched, and may be tried again when it fails.
//
// No key says where retries are: the call looks through the whole schedule, in steps of 1,000 members, over a connection of its
// own. Errors as with Cancel; ErrUncertain says that a reply was lost, which may have named retries that were taken.
func (p *Producer) CancelRetries(ctx context.Context, queue, group string, ids ...string) ([]Retry, error) {
	found, err := p.walk(ctx, queue, group, ids, observe.Cancelled, func(ctx context.Context, c rueidis.Client, k lua.Keys,
		w lua.Walk) (string, []lua.Waiting, error) {
		return lua.CancelRetries(ctx, c, k, w, ids)
	})
	return found, wrap("cancel retries", queue, "", err)
}

// RescheduleRetries moves the due times of retries of messages: to at, or when that is zero to delay from the server's now; 0 has
// them tried at once. Otherwise as CancelRetries.
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

// walk goes through the schedules of all partitions that may hold the messages.
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

// walkAmong goes through the partitions that some counts name, and earlier ones did not: all at once. The retries of a
// message may be in any of them.
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

// walkOne goes through one schedule. Another server process does not know the cursor, so after a step that failed the walk begins
// anew, on another connection.
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
