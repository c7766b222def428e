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
	Group string    // "" = all groups, for a redriven dead letter
	Due   time.Time // the new due time after RescheduleRetries; the last one after CancelRetries
}

// walkFunc makes one step of a walk through the schedule of one partition.
type walkFunc func(ctx context.Context, c rueidis.Client, k lua.Keys, w lua.Walk) (next string, found []lua.Waiting,
	err error)

// CancelRetries removes waiting retries of messages, and redriven dead letters, from the schedule of every partition
// that may hold them: for one group, or for all groups if group is "". It returns the retries that it removed. If the
// call returns no error, it has removed every retry that waited from the start of the call to its end. A delivery that
// is ready or pending during the call is not removed, and may be retried if it fails.
//
// Redis has no index of retries. So the call walks the whole schedule, in steps of 1,000 members, over a connection of
// its own. Errors as with Cancel. ErrUncertain: a reply was lost, so retries may have been removed that are not in the
// result.
func (p *Producer) CancelRetries(ctx context.Context, queue, group string, ids ...string) ([]Retry, error) {
	step := func(ctx context.Context, c rueidis.Client, k lua.Keys, w lua.Walk) (string, []lua.Waiting, error) {
		return lua.CancelRetries(ctx, c, k, w, ids)
	}
	found, err := p.walk(ctx, queue, group, ids, observe.Cancelled, step)
	return found, wrap("cancel retries", queue, "", err)
}

// RescheduleRetries sets a new due time for waiting retries: at, or if at is zero the server's time plus delay. With a
// delay of 0 they are retried at once. In all other respects it is like CancelRetries.
func (p *Producer) RescheduleRetries(ctx context.Context, queue, group string, delay time.Duration, at time.Time,
	ids ...string) ([]Retry, error) {
	when, err := dueWhen(delay, at)
	if err != nil {
		return nil, wrap("reschedule retries", queue, "", err)
	}
	step := func(ctx context.Context, c rueidis.Client, k lua.Keys, w lua.Walk) (string, []lua.Waiting, error) {
		return lua.RescheduleRetries(ctx, c, k, w, when, ids)
	}
	found, err := p.walk(ctx, queue, group, ids, observe.Rescheduled, step)
	return found, wrap("reschedule retries", queue, "", err)
}

// walk walks the schedules of all partitions that may hold the messages.
func (p *Producer) walk(ctx context.Context, queue, group string, ids []string, e observe.Event,
	step walkFunc) (found []Retry, err error) {
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
	known, err := r.counts(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { r.report(e, len(found)) }()
	found, err = p.walkByCounts(ctx, queue, group, ids, known.counts, nil, step)
	if err != nil {
		return found, err
	}
	// The known counts may be old, or the queue may have grown meanwhile: also walk the partitions that are new.
	current, err := r.countsAfter(ctx, began)
	if err != nil {
		return found, err
	}
	more, err := p.walkByCounts(ctx, queue, group, ids, current.counts, known.counts, step)
	return append(found, more...), err
}

// walkByCounts walks all partitions of counts at once, except the partitions of earlier, which were walked before. Any
// partition may hold the retries of a message.
func (p *Producer) walkByCounts(ctx context.Context, queue, group string, ids []string, counts, earlier lua.Counts,
	step walkFunc) (found []Retry, err error) {
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
			some, failed := p.walkPartition(ctx, p.keys(lua.PartitionName(queue, partition)), group, step)
			mu.Lock()
			defer mu.Unlock()
			found, err = append(found, some...), errors.Join(err, failed)
		})
	}
	all.Wait()
	return found, err
}

// walkPartition walks the schedule of one partition. A cursor is only valid in the server process that made it, so
// after a failed step the walk starts over, on another connection.
func (p *Producer) walkPartition(ctx context.Context, k lua.Keys, group string,
	step walkFunc) (found []Retry, err error) {
	var conn rueidis.Client
	var notDurable error
	release, lostReply := func() {}, false
	seen := map[string]int{} // member → index in found
	defer func() { release() }()
	for cursor := ""; cursor != lua.WalkDone; {
		clean, err := p.repeat(ctx, time.Now(), func(ctx context.Context) error {
			if conn == nil {
				conn, release = lua.Pin(p.cfg.Client)
				cursor = ""
			}
			next, some, err := step(ctx, conn, k, lua.Walk{Cursor: cursor, Limit: walkStep, Group: group})
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
				// Only the last confirmation counts, because it covers all earlier writes of the connection.
				var failed error
				if notDurable, failed = splitNotDurable(p.cfg.Durability.Confirm(ctx, conn, k.Due)); failed != nil {
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
		lostReply = lostReply || !clean
		if err != nil {
			return found, err
		}
	}
	if lostReply {
		return found, fmt.Errorf("%w: a reply was lost, and perhaps the IDs of some changed retries", ErrUncertain)
	}
	return found, notDurable
}
