package scheduler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func textOf(t *testing.T, c rueidis.Client, command ...string) string {
	t.Helper()
	got, err := c.Do(t.Context(), c.B().Arbitrary(command...).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("%q: %v", command, err)
	}
	return got
}

// One ZADD to the schedule of partition 255 used to create 256 partitions for good, without any group or setting: a
// group missed the message, and a paused queue delivered it. Now the message is moved to the partition of its ID, and
// the count stays.
func TestStrayMessageMovesToWhereItBelongs(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, shared *redistest.Server) {
		t.Parallel()
		s := shared
		if shared == redistest.Shared(t) {
			s = redistest.Own(t) // the shared one holds keys of many tests
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
			queuetest.PublishCount(t, c, prefix, queue, counts.Latest())
			stray := lua.NewKeys(prefix, queue+"/255")
			queuetest.Do(t, c, "HSET", stray.Payload, "m-1", "body", "m-2", "late")
			queuetest.Do(t, c, "HSET", stray.Meta, "m-1", `{"h":"v"}`)
			queuetest.Do(t, c, "ZADD", stray.Due, "1", "m-1", fmt.Sprint(later), "m-2")
		}
		b := start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
		for queue, counts := range counts {
			stray := lua.NewKeys(prefix, queue+"/255")
			redistest.Eventually(t, 15*time.Second, func() (bool, string) {
				n := queuetest.Integer(t, c, "EXISTS", stray.Due) + queuetest.Integer(t, c, "EXISTS", stray.Payload) +
					queuetest.Integer(t, c, "EXISTS", stray.Meta)
				return n == 0, queue + ": messages are still in partition 255"
			})
			if n := queuetest.Integer(t, c, "EXISTS", stray.Stream); n != 0 {
				t.Errorf("%s: partition 255 has a stream", queue)
			}
			name := lua.PartitionName(queue, counts.Of("m-1"))
			k, k2 := lua.NewKeys(prefix, name), lua.NewKeys(prefix, lua.PartitionName(queue, counts.Of("m-2")))
			if due, payload := textOf(t, c, "ZSCORE", k2.Due, "m-2"), textOf(t, c, "HGET", k2.Payload,
				"m-2"); due != fmt.Sprint(later) || payload != "late" {
				t.Errorf("%s: the later message is due at %q with %q", queue, due, payload)
			}
			if queue == "held" {
				if meta := textOf(t, c, "HGET", k.Meta, "m-1"); meta != `{"h":"v"}` ||
					len(queuetest.Entries(t, c, prefix, name)) != 0 {
					t.Errorf("the paused queue holds meta %q and %d entries", meta, len(queuetest.Entries(t, c, prefix, name)))
				}
			} else {
				redistest.Eventually(t, 10*time.Second, func() (bool, string) {
					return len(queuetest.Entries(t, c, prefix, name)) == 1, name + " is not drained"
				})
				for _, group := range []string{"a", "b"} {
					reply, err := c.Do(t.Context(),
						c.B().Xreadgroup().Group(group, "c").Streams().Key(k.Stream).Id(">").Build()).AsXRead()
					if got := reply[k.Stream]; err != nil || len(got) != 1 || got[0].FieldValues["payload"] != "body" ||
						!strings.Contains(fmt.Sprint(got), "v") {
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

// A message with the same ID in the target is not overwritten: the stray one stays, which is logged once, and the
// messages behind it move.
func TestStrayMessageOverwritesNone(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	stray, k := lua.NewKeys(prefix, queue+"/7"), lua.NewKeys(prefix, queue)
	later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	queuetest.Do(t, c, "HSET", k.Payload, "taken", "accepted", "same", "body")
	queuetest.Do(t, c, "ZADD", k.Due, later, "taken", later, "same")
	queuetest.Do(t, c, "HSET", stray.Payload, "taken", "other", "same", "body")
	queuetest.Do(t, c, "ZADD", stray.Due, later, "taken", later, "same", "9e14", "behind")
	b := start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
	count := func(words string) int { return strings.Count(b.log.String(), words) }
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		return queuetest.Integer(t, c, "ZCARD", stray.Due) == 1 && count("is failing") > 0, "not moved, or not said"
	})
	if a, b, n := textOf(t, c, "HGET", k.Payload, "taken"), textOf(t, c, "HGET", stray.Payload, "taken"), queuetest.Integer(t, c,
		"ZCARD", k.Due); a != "accepted" || b != "other" || n != 3 {
		t.Errorf("there is %q, the stray one %q, %d messages", a, b, n)
	}
	queuetest.Do(t, c, "ZREM", k.Due, "taken") // as if it had been delivered
	queuetest.Do(t, c, "ZADD", stray.Due, later, "another")
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		return queuetest.Integer(t, c, "ZCARD", stray.Due) == 0 && count("works again") == 1, "not moved, or not said"
	})
	if count("moving messages out of") != 1 || count("is failing") != 1 {
		t.Errorf("log:\n%s", b.log)
	}
	queuetest.EventuallyRegistered(t, c, prefix, queue, "1")
}

// A producer that made up a partition cancelled or moved its message between the copy and the removal. The call
// succeeded, but the copy used to be delivered.
func TestStrayMessageThatChangesWhileItIsMovedIsNotCopied(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	for name, change := range map[string][]string{"cancelled": {"ZREM", "m"}, "put off": {"ZADD", "9.1e14", "m"}} {
		from, k := lua.NewKeys(prefix, name[:3]+"/7"), lua.NewKeys(prefix, name[:3])
		queuetest.Do(t, c, "HSET", from.Payload, "m", "body")
		queuetest.Do(t, c, "ZADD", from.Due, "9e14", "m")
		m := move{c: c, prefix: prefix, from: from, to: func(string) lua.Keys {
			queuetest.Do(t, c, append([]string{change[0], from.Due}, change[1:]...)...)
			return k
		}}
		outcome, err := m.at(t.Context(), 0)
		if n := queuetest.Integer(t, c, "EXISTS", k.Due, k.Payload, k.Meta); err != nil || outcome != moveRaced || n != 0 {
			t.Errorf("%s: outcome %d, %v, %d keys where it would have gone", name, outcome, err, n)
		}
	}
}

// Another message that came to the partition between the copy and the removal used to prevent the removal: each pass
// copied the message, and it was delivered as often.
func TestStrayMessagesOfABusyPartitionMoveOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	queuetest.PublishCount(t, c, prefix, queue, 1)
	k, stray := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/7")
	queuetest.Do(t, c, "XGROUP", "CREATE", k.Stream, "a", "0", "MKSTREAM")
	const n = 20
	for i := range n {
		queuetest.Do(t, c, "ZADD", stray.Due, "1", fmt.Sprint("old-", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	writers.Go(func() {
		pace := time.NewTicker(100 * time.Microsecond) // without a pace it wins all the tries of a removal on a busy machine
		defer pace.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-pace.C
			c.Do(ctx, c.B().Zadd().Key(stray.Due).ScoreMember().ScoreMember(9e14+float64(i), fmt.Sprint("later-", i%3)).Build())
		}
	})
	defer writers.Wait()
	defer stop()
	start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		left := queuetest.Integer(t, c, "ZCOUNT", stray.Due, "-inf", "1")
		return left == 0 && len(queuetest.Entries(t, c, prefix, queue)) >= n, fmt.Sprintf("%d are left", left)
	})
	// A copy that is removed again may have been drained by then: at least once, but not once per pass.
	if got := len(queuetest.Entries(t, c, prefix, queue)); got >= 2*n {
		t.Errorf("%d messages became %d entries", n, got)
	}
}

// A stray message that had to stay used to stay for ever if its partition did not change, even after the message in its
// place was delivered.
func TestStrayMessageMovesWhenItsPlaceIsFree(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	k, from := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/7")
	queuetest.Do(t, c, "HSET", k.Payload, "m", "accepted")
	queuetest.Do(t, c, "ZADD", k.Due, "9e14", "m")
	queuetest.Do(t, c, "ZADD", from.Due, "9e14", "m")
	b, st := Scheduler{cfg: Config{Client: c, Prefix: prefix}, globals: lua.NewGlobals(prefix)}, &stray{}
	pass := func() bool {
		t.Helper()
		done, err := b.moveStray(t.Context(), queue+"/7", st, time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if pass() || !st.settled {
		t.Fatalf("%+v: it was moved over another one", st)
	}
	queuetest.Do(t, c, "DEL", k.Due, k.Payload) // delivered
	if pass() {
		t.Error("it is looked at without a rest")
	}
	st.ended = st.ended.Add(-strayRest)
	if !pass() || textOf(t, c, "ZSCORE", k.Due, "m") == "" {
		t.Errorf("%+v: it was not moved", st)
	}
}

// Messages of one key stay together: they move to the partition of their key, and one that waited for its key waits no
// more.
func TestStrayMessagesGoByTheirKey(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	counts := lua.Counts{1, 4}
	for _, name := range counts.Names(queue) {
		queuetest.Do(t, c, "HSET", lua.NewKeys(prefix, name).Policy, "held", "1")
	}
	queuetest.PublishCount(t, c, prefix, queue, counts.Latest())
	stray, home := lua.NewKeys(prefix, queue+"/6"), lua.NewKeys(prefix, lua.PartitionName(queue, counts.Of("customer")))
	const n = 8
	for i := range n {
		id := fmt.Sprint("m-", i)
		queuetest.Do(t, c, "HSET", stray.Meta, id, `{"key":"customer"}`)
		queuetest.Do(t, c, "ZADD", stray.Due, fmt.Sprint(4e15*float64(i%2)+1e12+float64(i)), id)
	}
	start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 50 * time.Millisecond })
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		moved := queuetest.Integer(t, c, "ZCOUNT", home.Due, "1e12", "(4e15")
		return moved == n, fmt.Sprint(moved, " are where their key belongs")
	})
}

// A deletion leaves a removed partition held if a message came to it. When the message has been moved, the partition is
// not held any more: a client of an earlier release may bring it back. The hold of a paused queue stays: a growth
// prepares new partitions with it.
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
		queuetest.Do(t, c, "ZADD", from.Due, "1", "m")
		b, err := New(Config{Client: c, Blocking: c, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		b.foundStrays([]string{queue + "/7"})
		b.moveStrays(t.Context())
		redistest.Want(t, queue+": moved", textOf(t, c, "ZSCORE", k.Due, "m"), "1")
		redistest.Want(t, queue+": held", textOf(t, c, "HGET", from.Policy, "held"), want)
		redistest.Want(t, queue+": max_attempts", textOf(t, c, "HGET", from.Policy, "max_attempts"), "7")
		queuetest.Do(t, c, "HSET", from.Policy, "held", "1")
		queuetest.Do(t, c, "ZADD", from.Due, "1", "m-2")
		if err := Gather(t.Context(), c, prefix, queue, 7); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, queue+": held after a repair", textOf(t, c, "HGET", from.Policy, "held"), want)
	}
}

// A client of an earlier release brings back a partition that a deletion has left held. Its hold ends when it has the
// groups of the queue. Regression: nothing ended the hold; then the hold ended before the partition had the groups, and
// a group missed the messages that another group acknowledged. The hold of a paused queue stays.
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
		b.foundStrays([]string{queue + "/7"})
		queuetest.PublishCount(t, c, prefix, queue, 8)
		b.moveStrays(t.Context())
		redistest.Want(t, "held without group b", textOf(t, c, "HGET", from.Policy, "held"), "1")
		queuetest.Do(t, c, "XGROUP", "CREATE", from.Stream, "b", "0")
		b.moveStrays(t.Context())
		want := ""
		if paused {
			want = "1"
		}
		redistest.Want(t, fmt.Sprint("held, paused ", paused), textOf(t, c, "HGET", from.Policy, "held"), want)
		redistest.Want(t, "strays", len(b.strays), 0)
	}
}
