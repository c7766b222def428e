package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const (
	gatherMembers   = 1000 // members in one step of a gatherer
	gatherTime      = time.Second
	gatherPage      = 100 // members in one page that is read
	gatherPageBytes = 1 << 20
)

// ErrOccupied: messages in a partition beyond the registered count cannot be moved, because the partitions in which
// they belong have other messages with their IDs.
var ErrOccupied = lua.NewHinted("others with the same ID are in the partition that they belong to",
	"compare both with ZSCORE and HGET, and take away the one that is not wanted")

// gatherer empties a partition that its queue does not have: it moves the scheduled messages to the partitions in which
// they belong. It walks through the schedule of the partition in bounded steps. A walk from the beginning to the end is
// a round.
type gatherer struct {
	partitionReader
	name  string // of the partition
	actor string

	last     lua.Exported // the last member that was read, after which the next step continues; zero = a round begins
	paused   bool         // step moves nothing, because a bridge of an older level is alive
	occupied int          // messages of this round that stay, because other messages have their IDs
	deferred int          // messages of this round that can be moved later: they changed, or another process moves them
}

// roundEnd is the result of a round.
type roundEnd struct {
	empty    bool // the partition holds no message, or belongs to the queue now
	occupied int  // messages that stay until their IDs are free
	deferred int  // messages that can be moved later
}

// step moves messages for at most gatherTime. end is nil if the round has not ended.
func (g *gatherer) step(ctx context.Context) (end *roundEnd, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*loop.CallTimeout)
	defer cancel()
	queue, partition, _ := lua.SplitPartition(g.name)
	counts, err := lua.ReadCounts(ctx, g.client, lua.NewGlobals(g.prefix), queue)
	if err != nil {
		return nil, err
	}
	if counts.Latest() > partition {
		return &roundEnd{empty: true}, nil
	}
	if g.paused {
		return &roundEnd{deferred: 1}, nil
	}
	from := lua.NewKeys(g.prefix, g.name)
	until := time.Now().Add(gatherTime)
	for members := 0; members < gatherMembers && time.Now().Before(until); {
		page, err := lua.Export(ctx, g.client, from, g.last, gatherPage, gatherPageBytes)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 && g.movedAll() {
			g.last = lua.Exported{} // begin another round, because other messages may have come meanwhile
			continue
		}
		if len(page) == 0 {
			return g.endRound(), nil
		}
		for _, one := range page {
			if members > 0 && time.Now().After(until) {
				return nil, nil // the next step continues after g.last
			}
			target := lua.PartitionName(queue, counts.Of(one.Place()))
			moved, err := lua.Move(ctx, g.client, from, lua.NewKeys(g.prefix, target).As(g.actor), one)
			if err != nil {
				return nil, fmt.Errorf("move a message: %w", err)
			}
			switch moved {
			case lua.MoveOccupied:
				g.occupied++
			case lua.MoveLater:
				g.deferred++
			}
			g.last = lua.Exported{Member: one.Member, Score: one.Score}
			members++
		}
	}
	return nil, nil
}

// movedAll reports whether this round met messages, and moved all of them.
func (g *gatherer) movedAll() bool { return g.last.Score != "" && g.occupied+g.deferred == 0 }

func (g *gatherer) endRound() *roundEnd {
	end := &roundEnd{empty: g.last.Score == "", occupied: g.occupied, deferred: g.deferred}
	g.last, g.occupied, g.deferred = lua.Exported{}, 0, 0
	return end
}

// occupiedError returns ErrOccupied with the number of messages that stay. If none stays, it returns nil.
func (g *gatherer) occupiedError(end *roundEnd) error {
	if end.occupied == 0 {
		return nil
	}
	return fmt.Errorf("%d messages of %s stay: %w", end.occupied, g.name, ErrOccupied)
}

// endHold ends the hold of a partition, unless partition 0 of its queue is held as well. The deletion of a queue leaves
// a partition held if messages came to it during the deletion. A client of an earlier release may register that
// partition again. Then endHold waits until the partition has all groups of partition 0, because a group that is
// created later would miss entries that the other groups acknowledged. done is false while endHold must be called
// again. It takes one round trip if the partition is not held, else up to six.
func (g *gatherer) endHold(ctx context.Context) (done bool, err error) {
	queue, partition, _ := lua.SplitPartition(g.name)
	lost, err := g.services(ctx, queue, partition, partition+1)
	if err != nil || !lost[0].isHeld() {
		return err == nil, err
	}
	first, err := g.services(ctx, queue, 0, 1)
	if err != nil || first[0].isHeld() {
		return err == nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	counts, err := lua.ReadCounts(ctx, g.client, lua.NewGlobals(g.prefix), queue)
	if err != nil {
		return false, err
	}
	if counts.Latest() > partition && !lost[0].hasGroups(first[0]) {
		return false, nil
	}
	err = lua.EndHold(ctx, g.client, lua.NewKeys(g.prefix, g.name))
	return err == nil, err
}

// gatherPause is the time between two rounds of Gather while another process moves messages.
const gatherPause = time.Second

// Gather empties a partition that the queue does not have: it moves the messages to the partitions in which they
// belong. If the queue has the partition, Gather does nothing. If another process began to move a message less than a
// minute ago, Gather waits for that process. It takes three to four round trips per message.
//
// ErrOccupied: some messages could not be moved. lua.ErrOldBridge: a bridge of an older protocol level is alive, and a
// message could be lost if that bridge and Gather moved it at the same time.
func Gather(ctx context.Context, c rueidis.Client, prefix, queue string, partition int) error {
	err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), lua.CheckPartitions(partition+1))
	if err != nil {
		return err
	}
	g := gatherer{partitionReader: partitionReader{c, prefix}, name: lua.PartitionName(queue, partition),
		actor: lua.Actor(lua.ActorOperator)}
	levels := lua.NewLevels(c, prefix)
	for {
		if err := levels.Allow(ctx, lua.LevelMoves, "moves between partitions"); err != nil {
			return err
		}
		end, err := g.step(ctx)
		switch {
		case err != nil:
			return err
		case end == nil: // the round has not ended
		case end.empty:
			_, err := g.endHold(ctx)
			return err
		case end.occupied > 0:
			return g.occupiedError(end)
		case end.deferred > 0 && !loop.Sleep(ctx, gatherPause):
			return ctx.Err()
		}
	}
}
