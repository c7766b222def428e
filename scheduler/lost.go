package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const (
	occupiedPause     = 15 * time.Second // before messages whose IDs were not free are tried again
	watchTime         = time.Minute      // how long a partition of a deleted queue is watched
	madeUpLogInterval = time.Hour        // between two log lines about messages in a made-up partition
)

// lostPartition is a partition that the queue had, or that a growth prepared, and that the queue does not have now,
// because the queue was deleted or the registry lost the count. Producers that do not know this yet may write to the
// partition. It has no workers, so a bridge neither registers nor drains it. Instead the bridge moves its messages to
// the partitions in which they belong.
type lostPartition struct {
	gatherer
	state        loop.Reporter
	watchedUntil time.Time // before this time the partition is examined again even if it is empty
	pausedUntil  time.Time // before this time the partition is not examined
}

// lostPartitions are the lost partitions that this scheduler knows. A partition with neither groups nor settings, which
// no deleted queue had, is not lost: a producer made up its name. The scheduler moves nothing out of a made-up
// partition. It only logs the partition, and the doctor reports and mends it.
type lostPartitions struct {
	partitionReader
	globals lua.Globals
	actor   string
	log     *slog.Logger
	quiet   func(error) bool

	paused bool // no message is moved, but holds of partitions that the queue has again are ended
	known  map[string]*lostPartition
	madeUp map[string]time.Time // made-up partition → time at which this scheduler logged it
}

// watch adds partitions of deleted queues. Producers that know the old count may write to them for some seconds. A scan
// of all keys would find these messages as well, but on a large server only after hours.
func (l *lostPartitions) watch(names []string) {
	for _, name := range names {
		l.add(name).watchedUntil = time.Now().Add(watchTime)
	}
}

// noteFound adds partitions that hold messages and that the queue does not have, or logs them if they are made up.
func (l *lostPartitions) noteFound(ctx context.Context, queue string, partitions []int) error {
	deleted, err := lua.ReadDeletedCounts(ctx, l.client, l.globals, queue)
	if err != nil {
		return err
	}
	var errs []error
	for _, partition := range partitions {
		name := lua.PartitionName(queue, partition)
		if l.known[name] != nil {
			continue
		}
		services, err := l.services(ctx, queue, partition, partition+1)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		log := l.log.With(slog.String("queue", name))
		if deleted.Latest() > partition || services[0].hasTrace() {
			log.Warn("moving messages out of a partition that the queue does not have")
			l.add(name)
		} else if time.Since(l.madeUp[name]) > madeUpLogInterval {
			log.Warn("messages wait in a partition that the queue never had: see duestream doctor")
			l.madeUp[name] = time.Now()
		}
	}
	return errors.Join(errs...)
}

func (l *lostPartitions) add(name string) *lostPartition {
	if l.known[name] == nil {
		l.known[name] = &lostPartition{
			gatherer: gatherer{partitionReader: l.partitionReader, name: name, actor: l.actor},
			state: loop.Reporter{Log: l.log.With(slog.String("queue", name)),
				Activity: "move messages out of a partition that the queue does not have", Quiet: l.quiet},
		}
	}
	return l.known[name]
}

// emptyAll makes one step in each lost partition, until gatherTime has passed. The order of a map is random, so each
// partition gets its turn in some pass.
func (l *lostPartitions) emptyAll(ctx context.Context) {
	until := time.Now().Add(gatherTime)
	for name, one := range l.known {
		if ctx.Err() != nil || time.Now().After(until) {
			return
		}
		if time.Now().Before(one.pausedUntil) {
			continue
		}
		one.paused = l.paused
		if one.pass(ctx) {
			delete(l.known, name)
		}
	}
}

// pass makes one step. done is set if the scheduler may forget the partition: it is empty or belongs to the queue
// again, and it is neither watched nor held any more.
func (p *lostPartition) pass(ctx context.Context) (done bool) {
	end, err := p.step(ctx)
	switch {
	case err != nil:
	case end == nil:
		return false // the round has not ended
	case end.occupied > 0:
		p.pausedUntil = time.Now().Add(occupiedPause)
		err = p.occupiedError(end)
	case end.empty && time.Now().After(p.watchedUntil):
		done, err = p.endHold(ctx)
	}
	if ctx.Err() == nil {
		p.state.Report(err)
	}
	return done
}
