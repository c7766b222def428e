package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// ErrNotEmpty: a queue that was to be deleted holds messages.
var ErrNotEmpty = errors.New("the queue is not empty")

// ErrUnknownQueue: nobody registered the queue, and it has no keys.
var ErrUnknownQueue = errors.New("no such queue")

// Contents is what is lost, or was lost, with a queue.
type Contents struct {
	Scheduled int64    `json:"scheduled"`
	Entries   int64    `json:"entries"` // of the streams: ready, pending, or not freed yet
	Dead      int64    `json:"dead"`
	Groups    []string `json:"groups"`
	// "group/consumer" of those that were there within the last ten seconds: they will make the queue anew
	Readers []string `json:"readers"`
}

// Messages is how many there are.
func (c Contents) Messages() int64 { return c.Scheduled + c.Entries + c.Dead }

// aliveWithin is how recently a worker that lives must have read: it reads every few seconds.
const aliveWithin = 10 * time.Second

// DeleteQueue removes a queue: the keys of all its partitions, also of those that a growth prepared and did not publish, with its
// groups, settings and dedup windows, and then its registration. ErrNotEmpty: it holds messages, and force is false; nothing was
// changed then, or only partitions that held nothing are gone. What is written between the look and the removal of a partition is
// not lost: the look is repeated then. Contents says what there was. ErrUnknownQueue.
//
// Bridges do not register it anew. A producer that goes on scheduling, and a worker that goes on reading, make it again.
func DeleteQueue(ctx context.Context, c rueidis.Client, prefix, queue string, force bool) (Contents, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return Contents{}, err
	}
	fail := func(had Contents, err error) (Contents, error) {
		return had, fmt.Errorf("delete queue %s: %w", queue, err)
	}
	counts, err := view.ReadCounts(ctx, c, prefix, queue)
	if err != nil {
		return fail(Contents{}, err)
	}
	beyond, err := partitionsBeyond(ctx, c, prefix, queue, counts)
	if err != nil {
		return fail(Contents{}, err)
	}
	names := append(counts.Names(queue), beyond...)
	had := Contents{Groups: []string{}, Readers: []string{}} // lists in JSON, also of nothing
	there := false
	for _, name := range names { // look at all partitions before the first is gone
		some, exists, err := contentsOf(ctx, c, lua.NewKeys(prefix, name))
		if err != nil {
			return fail(had, err)
		}
		had.add(some)
		there = there || exists
	}
	if had.Messages() > 0 && !force {
		return fail(had, ErrNotEmpty)
	}
	for _, name := range names {
		if err := removePartition(ctx, c, lua.NewKeys(prefix, name), force); err != nil {
			return fail(had, err)
		}
	}
	// Without this mark the registry would seem lost, and bridges would register again what they remember.
	globals := lua.NewGlobals(prefix)
	if err := lua.MarkDeleted(ctx, c, globals, queue); err != nil {
		return fail(had, err)
	}
	registry := globals.Queues
	gone, err := c.Do(ctx, c.B().Hdel().Key(registry).Field(queue).Build()).AsInt64()
	if err != nil {
		return fail(had, lua.Classify("HDEL "+registry, err))
	}
	if gone == 0 && !there {
		return fail(had, ErrUnknownQueue)
	}
	return had, nil
}

// partitionsBeyond returns the names of partitions beyond the count that have keys: a growth that failed has prepared them, or a
// producer has made up their names. One round trip; on a cluster one to each server.
func partitionsBeyond(ctx context.Context, c rueidis.Client, prefix, queue string, counts lua.Counts) ([]string, error) {
	names := counts.With(lua.MaxPartitions).Names(queue)[counts.Latest():]
	keys := make([]int64, len(names))
	questions := make([]view.Question, len(names))
	for i, name := range names {
		questions[i] = view.Number(c.B().Exists().Key(lua.NewKeys(prefix, name).All()...).Build(), &keys[i])
	}
	if err := view.AskLong(ctx, c, questions...); err != nil {
		return nil, err
	}
	var found []string
	for i, name := range names {
		if keys[i] > 0 {
			found = append(found, name)
		}
	}
	return found, nil
}

func (c *Contents) add(o Contents) {
	c.Scheduled, c.Entries, c.Dead = c.Scheduled+o.Scheduled, c.Entries+o.Entries, c.Dead+o.Dead
	for _, group := range o.Groups {
		if !slices.Contains(c.Groups, group) {
			c.Groups = append(c.Groups, group)
		}
	}
	for _, reader := range o.Readers {
		if !slices.Contains(c.Readers, reader) {
			c.Readers = append(c.Readers, reader)
		}
	}
}

func keysOf(k lua.Keys) []string {
	return k.All()
}

// contentsOf looks at one partition.
func contentsOf(ctx context.Context, c rueidis.Client, k lua.Keys) (had Contents, exists bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	replies := c.DoMulti(ctx, c.B().Zcard().Key(k.Due).Build(), c.B().Xlen().Key(k.Stream).Build(),
		c.B().Xlen().Key(k.Dead).Build(),
		c.B().Exists().Key(keysOf(k)...).Build())
	var keys int64
	for i, n := range []*int64{&had.Scheduled, &had.Entries, &had.Dead, &keys} {
		if *n, err = replies[i].AsInt64(); err != nil {
			return had, false, lua.Classify("size of "+k.Due, err)
		}
	}
	entries, err := view.ReadStream(ctx, c, k.Stream)
	if err != nil {
		return had, keys > 0, err
	}
	for _, name := range entries.Names() {
		had.Groups = append(had.Groups, name)
		consumers, err := view.ReadConsumers(ctx, c, k.Stream, name)
		if err != nil {
			return had, keys > 0, err
		}
		for _, one := range consumers {
			if one.Idle < aliveWithin && one.Name != lua.ReclaimConsumer {
				had.Readers = append(had.Readers, name+"/"+one.Name)
			}
		}
	}
	return had, keys > 0, nil
}

// removePartition removes all keys of a partition at once: without force only when it holds no message at that moment.
func removePartition(ctx context.Context, c rueidis.Client, k lua.Keys, force bool) error {
	if force { // without a transaction, in which a full server refuses every command
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		return lua.Classify("UNLINK "+k.Due, c.Do(ctx, c.B().Unlink().Key(keysOf(k)...).Build()).Error())
	}
	for {
		removed, err := tryRemove(ctx, c, k)
		if removed || err != nil {
			return err
		}
	}
}

func tryRemove(ctx context.Context, c rueidis.Client, k lua.Keys) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	err = lua.Dedicated(ctx, c, func(one rueidis.DedicatedClient) error {
		if err := one.Do(ctx, one.B().Watch().Key(k.Due, k.Stream, k.Dead).Build()).Error(); err != nil {
			return lua.Classify("WATCH "+k.Due, err)
		}
		holds, err := one.Do(ctx, one.B().Zcard().Key(k.Due).Build()).AsInt64()
		for _, stream := range []string{k.Stream, k.Dead} {
			n, failed := one.Do(ctx, one.B().Xlen().Key(stream).Build()).AsInt64()
			holds, err = holds+n, errors.Join(err, failed)
		}
		if err != nil {
			return lua.Classify("size of "+k.Due, err)
		}
		if holds > 0 {
			return ErrNotEmpty
		}
		// Neither removed nor an error: a watched key has changed.
		removed, err = lua.Transact(ctx, one, k.Due, one.B().Unlink().Key(keysOf(k)...).Build())
		return err
	})
	return removed, err
}
