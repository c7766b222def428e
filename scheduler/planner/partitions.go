package planner

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// lookPatience is how long before its time an occurrence is planned although another partition does not say whether it
// has a message with its ID. It is longer than the wait of a bridge after an error.
const lookPatience = 10 * time.Second

var errNoCounts = errors.New("the partitions of the queue are not known yet")

// markTaken marks the occurrences for which another partition has a message in its schedule: a message of a user with
// the ID of an occurrence takes the place of the occurrence, whatever its partition. The script looks in partition 0.
// An error of another partition is returned only while the first occurrence can wait. One round trip for all
// partitions; none for a queue with one partition.
func (q *Queue) markTaken(ctx context.Context, name string, all []lua.Occurrence, now time.Time) error {
	if len(all) == 0 || len(q.counts) > 0 && q.counts.Latest() == 1 {
		return nil
	}
	err := q.look(ctx, name, all)
	if err != nil && !all[0].At.After(now.Add(lookPatience)) {
		return nil
	}
	return err
}

func (q *Queue) look(ctx context.Context, name string, all []lua.Occurrence) error {
	if len(q.counts) == 0 {
		return errNoCounts
	}
	var commands rueidis.Commands
	var asked []*lua.Occurrence // by command
	for partition := 1; partition < q.counts.Latest(); partition++ {
		due := q.p.keys(lua.PartitionName(q.name, partition)).Due
		for i := range all {
			id := lua.OccurrenceID(name, all[i].At)
			commands = append(commands, q.p.client.B().Zscore().Key(due).Member(id).Build())
			asked = append(asked, &all[i])
		}
	}
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var failed error
	for i, reply := range q.p.client.DoMulti(call, commands...) {
		switch err := reply.Error(); {
		case err == nil:
			asked[i].Taken = true
		case !rueidis.IsRedisNil(err):
			failed = lua.Classify("ZSCORE", err)
		}
	}
	return failed
}
