package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// recreateQueue writes the registry of a queue that had eight partitions, was deleted, and was created again with the
// given counts.
func recreateQueue(t *testing.T, c rueidis.Client, prefix, queue string, counts lua.Counts) {
	t.Helper()
	g := lua.NewGlobals(prefix)
	if err := lua.Unregister(t.Context(), c, g, queue, lua.Counts{1, 8}); err != nil {
		t.Fatal(err)
	}
	queuetest.PublishCount(t, c, prefix, queue, counts.Latest())
}

// Messages that come to a partition of a deleted queue must be moved with all their data to the partitions of their IDs
// in the new queue of that name. The partition count must stay. If the queue is paused, the messages wait there.
func TestMessagesOfADeletedPartitionMoveToWhereTheyBelong(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, shared *redistest.Server) {
		t.Parallel()
		s := shared
		if shared == redistest.Shared(t) {
			s = redistest.Own(t) // the shared server holds keys of many tests, which the scan would read
		}
		c, prefix := s.Client(t), s.Prefix(t)
		counts := map[string]lua.Counts{"one": {1}, "four": {1, 4}, "held": {1, 4}}
		later := time.Now().Add(time.Hour).UnixMilli()
		for queue, counts := range counts {
			for _, name := range counts.Names(queue) {
				k := lua.NewKeys(prefix, name)
				queuetest.Do(t, c, "XGROUP", "CREATE", k.Stream, "a", "0", "MKSTREAM")
				queuetest.Do(t, c, "XGROUP", "CREATE", k.Stream, "b", "0")
				if queue == "held" {
					queuetest.Do(t, c, "HSET", k.Policy, "held", "1")
				}
			}
			recreateQueue(t, c, prefix, queue, counts)
			lost := lua.NewKeys(prefix, queue+"/7")
			queuetest.Do(t, c, "HSET", lost.Payload, "m-1", "body", "m-2", "late")
			queuetest.Do(t, c, "HSET", lost.Meta, "m-1", `{"h:h":"v"}`)
			queuetest.Do(t, c, "ZADD", lost.Due, "1", "m-1", fmt.Sprint(later), "m-2")
		}
		b := start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
		for queue, counts := range counts {
			lost := lua.NewKeys(prefix, queue+"/7")
			redistest.Eventually(t, 15*time.Second, func() (bool, string) {
				n := queuetest.Integer(t, c, "EXISTS", lost.Due) + queuetest.Integer(t, c, "EXISTS", lost.Payload) +
					queuetest.Integer(t, c, "EXISTS", lost.Meta)
				return n == 0, queue + ": messages are still in partition 7"
			})
			if n := queuetest.Integer(t, c, "EXISTS", lost.Stream); n != 0 {
				t.Errorf("%s: partition 7 has a stream", queue)
			}
			name := lua.PartitionName(queue, counts.Of("m-1"))
			k, k2 := lua.NewKeys(prefix, name), lua.NewKeys(prefix, lua.PartitionName(queue, counts.Of("m-2")))
			redistest.Want(t, queue+": due time of the later message",
				queuetest.Text(t, c, "ZSCORE", k2.Due, "m-2"), fmt.Sprint(later))
			redistest.Want(t, queue+": payload of the later message", queuetest.Text(t, c, "HGET", k2.Payload, "m-2"), "late")
			if queue == "held" {
				meta := queuetest.Text(t, c, "HGET", k.Meta, "m-1")
				entries := queuetest.Entries(t, c, prefix, name)
				if meta != `{"h:h":"v"}` || len(entries) != 0 {
					t.Errorf("the paused queue holds meta %q and %d entries", meta, len(entries))
				}
			} else {
				redistest.Eventually(t, 10*time.Second, func() (bool, string) {
					return len(queuetest.Entries(t, c, prefix, name)) == 1, name + " is not drained"
				})
				for _, group := range []string{"a", "b"} {
					reply, err := c.Do(t.Context(),
						c.B().Xreadgroup().Group(group, "c").Streams().Key(k.Stream).Id(">").Build()).AsXRead()
					if got := reply[k.Stream]; err != nil || len(got) != 1 || got[0].FieldValues["payload"] != "body" ||
						got[0].FieldValues["h:h"] != "v" {
						t.Errorf("%s: group %s gets %v, %v", queue, group, reply, err)
					}
				}
			}
			queuetest.EventuallyRegistered(t, c, prefix, queue, counts.String())
		}
		if st := b.Status(); st.Partitions != 9 {
			t.Errorf("status %+v", st)
		}
	})
}

// A message in a partition that the queue never had must stay there and be logged, and must not change the partition
// count. The doctor moves it, by Gather. Regression: one ZADD to the schedule of partition 255 created 256 partitions
// for good, without any group or setting. A group missed the message, and a paused queue delivered it.
func TestAMadeUpPartitionIsLoggedAndAddsNoPartitions(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	madeUp, k := lua.NewKeys(prefix, queue+"/255"), lua.NewKeys(prefix, queue)
	queuetest.Do(t, c, "XGROUP", "CREATE", k.Stream, "a", "0", "MKSTREAM")
	queuetest.Do(t, c, "HSET", madeUp.Payload, "m", "body")
	queuetest.Do(t, c, "ZADD", madeUp.Due, "1", "m")
	b := start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
	const line = "messages wait in a partition that the queue never had"
	redistest.Eventually(t, 15*time.Second,
		func() (bool, string) { return b.log.count(line) > 0, "the message is not logged" })
	queuetest.EventuallyRegistered(t, c, prefix, queue, "1")
	redistest.Want(t, "due time in the made-up partition", queuetest.Text(t, c, "ZSCORE", madeUp.Due, "m"), "1")
	if err := Gather(t.Context(), c, prefix, queue, 255); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		got := queuetest.Entries(t, c, prefix, queue)
		return len(got) == 1 && got[0].ID == "m", fmt.Sprint(got)
	})
	redistest.Want(t, "keys that are left", queuetest.Integer(t, c, append([]string{"EXISTS"}, madeUp.All()...)...), 0)
	redistest.Want(t, "log lines", b.log.count(line), 1)
}

// A message of a lost partition must not overwrite a message with the same ID in the target. It stays where it is, one
// line is logged, and the messages behind it move.
func TestAMessageOfALostPartitionOverwritesNone(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	from, k := lua.NewKeys(prefix, queue+"/7"), lua.NewKeys(prefix, queue)
	recreateQueue(t, c, prefix, queue, lua.Counts{1})
	later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	queuetest.Do(t, c, "HSET", k.Payload, "taken", "accepted", "same", "body")
	queuetest.Do(t, c, "ZADD", k.Due, later, "taken", later, "same")
	queuetest.Do(t, c, "HSET", from.Payload, "taken", "other", "same", "body")
	queuetest.Do(t, c, "ZADD", from.Due, later, "taken", later, "same", "9e14", "behind")
	b := start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
	count := func(words string) int { return strings.Count(b.log.String(), words) }
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		return queuetest.Integer(t, c, "ZCARD", from.Due) == 1 && count("is failing") > 0, "not moved, or not logged"
	})
	redistest.Want(t, "payload in the target", queuetest.Text(t, c, "HGET", k.Payload, "taken"), "accepted")
	redistest.Want(t, "payload in the lost partition", queuetest.Text(t, c, "HGET", from.Payload, "taken"), "other")
	redistest.Want(t, "messages", queuetest.Integer(t, c, "ZCARD", k.Due), 3)
	queuetest.Do(t, c, "ZREM", k.Due, "taken") // as if it had been delivered
	queuetest.Do(t, c, "DEL", k.Seen)          // as if a minute had passed
	queuetest.Do(t, c, "ZADD", from.Due, later, "another")
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		return queuetest.Integer(t, c, "ZCARD", from.Due) == 0 && count("works again") == 1, "not moved, or not logged"
	})
	if count("moving messages out of") != 1 || count("is failing") != 1 {
		t.Errorf("log:\n%s", b.log)
	}
	queuetest.EventuallyRegistered(t, c, prefix, queue, "1")
}

// A message is moved by a copy and a removal. Regression: if another message came to the partition between the two, the
// removal failed. Each pass copied the message again, and it was delivered as often.
func TestMessagesOfABusyLostPartitionMoveOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	recreateQueue(t, c, prefix, queue, lua.Counts{1})
	k, from := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/7")
	queuetest.Do(t, c, "XGROUP", "CREATE", k.Stream, "a", "0", "MKSTREAM")
	const n = 20
	for i := range n {
		queuetest.Do(t, c, "ZADD", from.Due, "1", fmt.Sprint("old-", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	writers.Go(func() {
		// Without a pace, on a busy machine, the writer would prevent each try of a removal.
		pace := time.NewTicker(100 * time.Microsecond)
		defer pace.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-pace.C
			member := fmt.Sprint("later-", i%3)
			c.Do(ctx, c.B().Zadd().Key(from.Due).ScoreMember().ScoreMember(9e14+float64(i), member).Build())
		}
	})
	defer writers.Wait()
	defer stop()
	start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		left := queuetest.Integer(t, c, "ZCOUNT", from.Due, "-inf", "1")
		return left == 0 && len(queuetest.Entries(t, c, prefix, queue)) >= n, fmt.Sprintf("%d are left", left)
	})
	// Some messages may be delivered twice, because a copy can be drained before it is taken back. But not one at each
	// pass.
	if got := len(queuetest.Entries(t, c, prefix, queue)); got >= 2*n {
		t.Errorf("%d messages became %d entries", n, got)
	}
}

// A message that has to stay because its ID is taken must move later, when the other message is delivered. Regression:
// it stayed for ever if its partition did not change.
func TestAMessageOfALostPartitionMovesWhenItsPlaceIsFree(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	k, from := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/7")
	queuetest.Do(t, c, "HSET", k.Payload, "m", "accepted")
	queuetest.Do(t, c, "ZADD", k.Due, "9e14", "m")
	queuetest.Do(t, c, "ZADD", from.Due, "9e14", "m")
	b, err := New(Config{Client: c, Blocking: c, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	b.discovery.lost.watch([]string{queue + "/7"})
	one := b.discovery.lost.known[queue+"/7"]
	b.discovery.lost.emptyAll(t.Context())
	if queuetest.Text(t, c, "HGET", k.Payload, "m") != "accepted" || one.pausedUntil.IsZero() {
		t.Fatalf("%+v: the message overwrote another one, or the partition is not paused", one)
	}
	queuetest.Do(t, c, "DEL", k.Due, k.Payload, k.Seen) // delivered, and a minute has passed
	b.discovery.lost.emptyAll(t.Context())
	redistest.Want(t, "moved before the pause is over", queuetest.Text(t, c, "ZSCORE", k.Due, "m"), "")
	one.pausedUntil = time.Now()
	b.discovery.lost.emptyAll(t.Context())
	if queuetest.Text(t, c, "ZSCORE", k.Due, "m") == "" {
		t.Errorf("%+v: the message was not moved", one)
	}
}

// Messages with one ordering key must stay together: they move to the partition of their key. A message that waited for
// its key there gets its due time back.
func TestMessagesOfALostPartitionGoByTheirKey(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	counts := lua.Counts{1, 4}
	for _, name := range counts.Names(queue) {
		queuetest.Do(t, c, "HSET", lua.NewKeys(prefix, name).Policy, "held", "1")
	}
	recreateQueue(t, c, prefix, queue, counts)
	from, home := lua.NewKeys(prefix, queue+"/6"), lua.NewKeys(prefix, lua.PartitionName(queue, counts.Of("customer")))
	const n = 8
	for i := range n {
		id := fmt.Sprint("m-", i)
		queuetest.Do(t, c, "HSET", from.Meta, id, `{"key":"customer"}`)
		queuetest.Do(t, c, "ZADD", from.Due, fmt.Sprint(4e15*float64(i%2)+1e12+float64(i)), id)
	}
	start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		moved := queuetest.Integer(t, c, "ZCOUNT", home.Due, "1e12", "(4e15")
		return moved == n, fmt.Sprint(moved, " are in the partition of their key")
	})
}

// A deletion leaves a removed partition held if a message came to it. When the message has been moved, the hold must
// end, because a client of an earlier release may bring the partition back. The hold of a paused queue must stay,
// because a growth prepares new partitions with it.
func TestAnEmptiedPartitionIsHeldOnlyWithItsQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	for queue, want := range map[string]string{"deleted": "", "paused": "1"} {
		k, from := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/7")
		if want != "" {
			queuetest.Do(t, c, "HSET", k.Policy, "held", want)
		}
		queuetest.Do(t, c, "HSET", from.Policy, "held", "1", "max_attempts", "7")
		queuetest.Do(t, c, "ZADD", from.Due, "1900000000000", "m")
		b, err := New(Config{Client: c, Blocking: c, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		b.discovery.lost.watch([]string{queue + "/7"})
		b.discovery.lost.known[queue+"/7"].watchedUntil = time.Now()
		b.discovery.lost.emptyAll(t.Context())
		redistest.Want(t, queue+": moved", queuetest.Text(t, c, "ZSCORE", k.Due, "m"), "1900000000000")
		redistest.Want(t, queue+": held", queuetest.Text(t, c, "HGET", from.Policy, "held"), want)
		redistest.Want(t, queue+": max_attempts", queuetest.Text(t, c, "HGET", from.Policy, "max_attempts"), "7")
		queuetest.Do(t, c, "HSET", from.Policy, "held", "1")
		queuetest.Do(t, c, "ZADD", from.Due, "1900000000000", "m-2")
		if err := Gather(t.Context(), c, prefix, queue, 7); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, queue+": held after a repair", queuetest.Text(t, c, "HGET", from.Policy, "held"), want)
	}
}

// A client of an earlier release may bring back a partition that a deletion has left held. The hold must end when the
// partition has the groups of the queue, not before: a group would miss messages that another group acknowledges. The
// hold of a paused queue must stay. Regression: nothing ended the hold, and later it ended too early.
func TestAHeldPartitionThatComesBackIsServed(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	for _, paused := range []bool{false, true} {
		queue := redistest.Queue(t)
		first, from := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/7")
		for _, group := range []string{"a", "b"} {
			queuetest.Do(t, c, "XGROUP", "CREATE", first.Stream, group, "0", "MKSTREAM")
		}
		queuetest.Do(t, c, "XGROUP", "CREATE", from.Stream, "a", "0", "MKSTREAM")
		queuetest.Do(t, c, "HSET", from.Policy, "held", "1")
		if paused {
			queuetest.Do(t, c, "HSET", first.Policy, "held", "1")
		}
		b, err := New(Config{Client: c, Blocking: c, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		b.discovery.lost.watch([]string{queue + "/7"})
		b.discovery.lost.known[queue+"/7"].watchedUntil = time.Now()
		queuetest.PublishCount(t, c, prefix, queue, 8)
		b.discovery.lost.emptyAll(t.Context())
		redistest.Want(t, "held without group b", queuetest.Text(t, c, "HGET", from.Policy, "held"), "1")
		queuetest.Do(t, c, "XGROUP", "CREATE", from.Stream, "b", "0")
		b.discovery.lost.emptyAll(t.Context())
		want := ""
		if paused {
			want = "1"
		}
		redistest.Want(t, fmt.Sprint("held, paused ", paused), queuetest.Text(t, c, "HGET", from.Policy, "held"), want)
		redistest.Want(t, "lost partitions", len(b.discovery.lost.known), 0)
	}
}

// slowDo is a client whose calls of Do take longer by delay.
type slowDo struct {
	rueidis.Client
	delay atomic.Int64 // ns
}

func (c *slowDo) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	loop.Sleep(ctx, time.Duration(c.delay.Load()))
	return c.Client.Do(ctx, command)
}

// A step must end between two messages, and the next one must go on there. Regression: a step checked its time limit
// only between two pages. If a round trip took 60 ms, the step was cut off in the middle of a message, and a repair
// failed.
func TestAStepOfAGathererEndsBetweenTwoMessages(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Shared(t)
	slow, prefix, queue := &slowDo{Client: s.Client(t)}, s.Prefix(t), redistest.Queue(t)
	k, from := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/255")
	const n = 200
	for i := range n {
		queuetest.Do(t, slow, "ZADD", from.Due, "9e14", fmt.Sprint("m-", i))
	}
	g := gatherer{partitionReader: partitionReader{slow, prefix}, name: queue + "/255"}
	slow.delay.Store(int64(100 * time.Millisecond)) // a page of 100 takes 20 s, and the step has 10 s
	end, err := g.step(t.Context())
	slow.delay.Store(0)
	redistest.Want(t, "error of a slow step", err, nil)
	redistest.Want(t, "the round goes on", end == nil, true)
	left, moved := queuetest.Integer(t, slow, "ZCARD", from.Due), queuetest.Integer(t, slow, "ZCARD", k.Due)
	if left == 0 || moved == 0 || left+moved != n {
		t.Fatalf("%d are left, %d are moved, want some of each, and %d in all", left, moved, n)
	}
	redistest.Want(t, "Gather", Gather(t.Context(), slow, prefix, queue, 255), nil)
	redistest.Want(t, "left", queuetest.Integer(t, slow, "ZCARD", from.Due), 0)
	redistest.Want(t, "moved", queuetest.Integer(t, slow, "ZCARD", k.Due), n)
}

// A bridge of an older protocol level takes a message back that it cannot remove. If another bridge moved the same
// message at that time, the message could be lost. So no message may be moved while a bridge of an older level is
// alive.
func TestNothingIsMovedWhileAnOlderBridgeLives(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	k, from := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/7")
	identity := lua.NewIdentity("web-1", 1, "")
	identity.Level = lua.LevelMoves - 1
	older := identity.String()
	now, err := view.ServerTime(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(Config{Client: c, Blocking: c, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	b.discovery.lost.watch([]string{queue + "/7"})
	queuetest.Do(t, c, "ZADD", b.globals.Bridges, fmt.Sprint(now.UnixMilli()), older)
	queuetest.Do(t, c, "ZADD", from.Due, "9e14", "m")
	b.owners.live = []string{b.owners.self, older}
	redistest.Want(t, "discover", b.Discover(t.Context()), nil)
	if err := Gather(t.Context(), c, prefix, queue, 7); !errors.Is(err, lua.ErrOldBridge) {
		t.Errorf("Gather beside an older bridge: %v", err)
	}
	redistest.Want(t, "moved beside it", queuetest.Integer(t, c, "ZCARD", k.Due), 0)

	back := lua.NewKeys(prefix, queue+"/1") // a partition that was held, and that the queue has again
	queuetest.Do(t, c, "HSET", back.Policy, policy.SettingHeld, "1")
	queuetest.Do(t, c, "HSET", b.globals.Queues, queue, "1,2")
	b.discovery.lost.watch([]string{queue + "/1"})
	b.discovery.lost.known[queue+"/1"].watchedUntil = time.Time{}
	redistest.Want(t, "discover", b.Discover(t.Context()), nil)
	redistest.Want(t, "held", queuetest.Text(t, c, "HGET", back.Policy, policy.SettingHeld), "")
	queuetest.Do(t, c, "HSET", b.globals.Queues, queue, "1")

	queuetest.Do(t, c, "ZREM", b.globals.Bridges, older)
	b.owners.live = []string{b.owners.self}
	redistest.Want(t, "discover", b.Discover(t.Context()), nil)
	redistest.Want(t, "moved by the bridge", queuetest.Integer(t, c, "ZCARD", k.Due), 1)
	queuetest.Do(t, c, "ZADD", from.Due, "9e14", "m-2")
	redistest.Want(t, "Gather", Gather(t.Context(), c, prefix, queue, 7), nil)
	redistest.Want(t, "moved by Gather", queuetest.Integer(t, c, "ZCARD", k.Due), 2)
}
