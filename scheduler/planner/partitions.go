package planner

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

const (
	// plannedAnyway is how long before its time an occurrence is planned although another partition does not answer
	// whether it has a message with the ID of the occurrence. It is longer than Interval and a pass together.
	plannedAnyway = 10 * time.Second
	// askTimeout is the time limit of a question to the registry, or to another partition. On a cluster these may be on
	// other servers than the recurrences.
	askTimeout = 2 * time.Second
	// briefTimeout is the time limit of a question whose reply is not needed, or to which there was no reply the last
	// time.
	briefTimeout = 500 * time.Millisecond
)

var errNoCounts = errors.New("the partitions of the queue are not known yet")

// partitions holds what a Queue knows about the partitions of its queue. The goroutines of a pass share it.
type partitions struct {
	counts lua.Counts // nil = the registry has not answered yet
	// askAgainAt is the local time before which the registry is not asked, because it did not answer. Zero = it
	// answered.
	askAgainAt time.Time

	mu          sync.Mutex
	unavailable map[int]time.Time // partition that did not answer → local time before which it is not asked
	isWaiting   bool              // an occurrence waits for a partition, and this was logged
}

// isOne reports whether the queue is known to have one partition.
func (p *partitions) isOne() bool { return len(p.counts) > 0 && p.counts.Latest() == 1 }

// readCounts reads the partition counts of the queue. If the registry does not answer, the last counts stay in use, and
// the registry is asked again after Interval.
func (q *Queue) readCounts(ctx context.Context) {
	if time.Now().Before(q.partitions.askAgainAt) {
		return
	}
	timeout := askTimeout
	if q.partitions.counts != nil || !q.partitions.askAgainAt.IsZero() {
		timeout = briefTimeout
	}
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	counts, err := lua.ReadCounts(call, q.planner.client, lua.NewGlobals(q.planner.prefix), q.name)
	if err != nil {
		q.partitions.askAgainAt = time.Now().Add(Interval)
		return
	}
	q.partitions.counts, q.partitions.askAgainAt = q.partitions.counts.With(counts...), time.Time{}
}

// markTaken marks the occurrences whose ID a scheduled message of another partition has: a user's message takes the
// place of the occurrence with its ID. The script plan checks partition 0. If another partition does not answer, and
// there is still time to ask again, markTaken returns false. It takes one round trip.
func (q *Queue) markTaken(ctx context.Context, name string, all []lua.Occurrence, now time.Time) bool {
	if len(all) == 0 {
		return true
	}
	canWait := all[0].At.After(now.Add(plannedAnyway))
	timeout := briefTimeout
	if canWait {
		timeout = askTimeout
	}
	err := q.askPartitions(ctx, name, all, timeout)
	q.partitions.mu.Lock()
	defer q.partitions.mu.Unlock()
	if err != nil && canWait && !q.partitions.isWaiting {
		q.planner.log.Warn("occurrences wait for a partition that does not answer, until 10s before their time",
			slog.String("queue", q.name), slog.Any("error", err))
	}
	q.partitions.isWaiting = err != nil && (canWait || q.partitions.isWaiting)
	return err == nil || !canWait
}

// askPartitions asks all partitions except 0 which occurrences are taken, and marks these. Each partition gets a call
// of its own, so that a server that is unavailable does not make the calls to the other partitions fail.
func (q *Queue) askPartitions(ctx context.Context, name string, all []lua.Occurrence, timeout time.Duration) error {
	if len(q.partitions.counts) == 0 {
		return errNoCounts
	}
	taken := make([][]bool, q.partitions.counts.Latest())
	errs := make([]error, len(taken))
	var calls sync.WaitGroup
	for partition := 1; partition < len(taken); partition++ {
		calls.Go(func() { taken[partition], errs[partition] = q.askPartition(ctx, partition, name, all, timeout) })
	}
	calls.Wait()
	for _, found := range taken {
		for i := range found {
			all[i].Taken = all[i].Taken || found[i]
		}
	}
	return cmp.Or(errs...)
}

// askPartition returns for each occurrence whether the schedule of a partition has a message with its ID. If a
// partition did not answer, askPartition returns an error without asking it again until Interval has passed.
func (q *Queue) askPartition(ctx context.Context, partition int, name string, all []lua.Occurrence,
	timeout time.Duration) ([]bool, error) {
	q.partitions.mu.Lock()
	askAgainAt, didNotAnswer := q.partitions.unavailable[partition]
	q.partitions.mu.Unlock()
	switch {
	case time.Now().Before(askAgainAt):
		return nil, lua.Classify("ZSCORE", context.DeadlineExceeded)
	case didNotAnswer:
		timeout = briefTimeout
	}
	due := q.planner.keys(lua.PartitionName(q.name, partition)).Due
	var commands rueidis.Commands
	for i := range all {
		id := lua.OccurrenceID(name, all[i].At)
		commands = append(commands, q.planner.client.B().Zscore().Key(due).Member(id).Build())
	}
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	taken := make([]bool, len(all))
	var failed error
	for i, reply := range q.planner.client.DoMulti(call, commands...) {
		err := reply.Error()
		taken[i] = err == nil
		if err != nil && !rueidis.IsRedisNil(err) {
			failed = lua.Classify("ZSCORE "+due, err)
		}
	}
	q.partitions.mu.Lock()
	defer q.partitions.mu.Unlock()
	delete(q.partitions.unavailable, partition)
	if failed != nil {
		if q.partitions.unavailable == nil {
			q.partitions.unavailable = map[int]time.Time{}
		}
		q.partitions.unavailable[partition] = time.Now().Add(Interval)
	}
	return taken, failed
}
