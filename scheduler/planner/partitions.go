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
	// lookPatience is the time before an occurrence from which it no longer waits for a partition: it is planned although
	// that partition does not say whether it has a message with its ID. It is longer than Interval and a pass together.
	lookPatience = 10 * time.Second
	// askPatience is the time limit of a question to the registry, or to another partition. On a cluster these may be on
	// other servers than the recurrences.
	askPatience = 2 * time.Second
	// briefPatience is the time limit of a question whose reply is not needed, or which got no reply the last time.
	briefPatience = 500 * time.Millisecond
)

var errNoCounts = errors.New("the partitions of the queue are not known yet")

// partitions is the state of a Queue about the partitions of its queue. The goroutines of a pass share it: mu guards
// away and awaiting.
type partitions struct {
	counts   lua.Counts // nil = the registry has not answered yet
	askAt    time.Time  // local time; the registry did not answer, and is not asked before it; zero = it answered
	mu       sync.Mutex
	away     map[int]time.Time // partition that did not answer → local time before which it is not asked
	awaiting bool              // an occurrence waits for a partition, and the log says so
}

// readCounts reads the partition counts of the queue. If the registry does not answer, the last counts stay in use, and
// the registry is asked again after Interval.
func (q *Queue) readCounts(ctx context.Context) {
	if time.Now().Before(q.parts.askAt) {
		return
	}
	patience := askPatience
	if q.parts.counts != nil || !q.parts.askAt.IsZero() {
		patience = briefPatience
	}
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	counts, err := lua.ReadCounts(call, q.p.client, lua.NewGlobals(q.p.prefix), q.name)
	if err != nil {
		q.parts.askAt = time.Now().Add(Interval)
		return
	}
	q.parts.counts, q.parts.askAt = q.parts.counts.With(counts...), time.Time{}
}

// markTaken marks the occurrences whose ID a scheduled message of another partition has: a user's message takes the
// place of the occurrence with its ID, in whichever partition it is. Partition 0 is left to the script plan. markTaken
// returns false if another partition does not answer, and the first occurrence can wait. One round trip; none for a
// queue with one partition.
func (q *Queue) markTaken(ctx context.Context, name string, all []lua.Occurrence, now time.Time) bool {
	if len(all) == 0 || len(q.parts.counts) > 0 && q.parts.counts.Latest() == 1 {
		return true
	}
	waits := all[0].At.After(now.Add(lookPatience))
	patience := briefPatience
	if waits {
		patience = askPatience
	}
	err := q.look(ctx, name, all, patience)
	q.parts.mu.Lock()
	defer q.parts.mu.Unlock()
	if err != nil && waits && !q.parts.awaiting {
		q.p.log.Warn("occurrences wait for a partition that does not answer, until 10s before their time",
			slog.String("queue", q.name), slog.Any("error", err))
	}
	q.parts.awaiting = err != nil && (waits || q.parts.awaiting)
	return err == nil || !waits
}

// look asks all other partitions concurrently. Each gets a separate call, so that a partition without a server does not
// make the calls to the others fail.
func (q *Queue) look(ctx context.Context, name string, all []lua.Occurrence, patience time.Duration) error {
	if len(q.parts.counts) == 0 {
		return errNoCounts
	}
	taken := make([][]bool, q.parts.counts.Latest())
	errs := make([]error, len(taken))
	var calls sync.WaitGroup
	for partition := 1; partition < len(taken); partition++ {
		calls.Go(func() { taken[partition], errs[partition] = q.lookIn(ctx, partition, name, all, patience) })
	}
	calls.Wait()
	for _, found := range taken {
		for i := range found {
			all[i].Taken = all[i].Taken || found[i]
		}
	}
	return cmp.Or(errs...)
}

// lookIn returns for each occurrence whether the schedule of a partition has a message with its ID. A partition that
// did not answer is asked again after Interval; until then lookIn returns an error without asking it.
func (q *Queue) lookIn(ctx context.Context, partition int, name string, all []lua.Occurrence,
	patience time.Duration) ([]bool, error) {
	q.parts.mu.Lock()
	away, known := q.parts.away[partition]
	q.parts.mu.Unlock()
	switch {
	case time.Now().Before(away):
		return nil, lua.Classify("ZSCORE", context.DeadlineExceeded)
	case known:
		patience = briefPatience
	}
	due := q.p.keys(lua.PartitionName(q.name, partition)).Due
	var commands rueidis.Commands
	for i := range all {
		id := lua.OccurrenceID(name, all[i].At)
		commands = append(commands, q.p.client.B().Zscore().Key(due).Member(id).Build())
	}
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	taken := make([]bool, len(all))
	var failed error
	for i, reply := range q.p.client.DoMulti(call, commands...) {
		err := reply.Error()
		taken[i] = err == nil
		if err != nil && !rueidis.IsRedisNil(err) {
			failed = lua.Classify("ZSCORE "+due, err)
		}
	}
	q.parts.mu.Lock()
	defer q.parts.mu.Unlock()
	if delete(q.parts.away, partition); failed != nil {
		if q.parts.away == nil {
			q.parts.away = map[int]time.Time{}
		}
		q.parts.away[partition] = time.Now().Add(Interval)
	}
	return taken, failed
}
