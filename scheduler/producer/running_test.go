package producer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// partitioned is a queue of four partitions with the groups g and h in each.
func partitioned(t *testing.T, c rueidis.Client, prefix, queue string) (parts []lua.Keys) {
	t.Helper()
	queuetest.Do(t, c, "HSET", lua.NewGlobals(prefix).Queues, queue, "1,4")
	for i := range 4 {
		k := lua.NewKeys(prefix, lua.PartitionName(queue, i))
		parts = append(parts, k)
		for _, group := range []string{"g", "h"} {
			if _, err := lua.EnsureGroup(t.Context(), c, k, group); err != nil {
				t.Fatal(err)
			}
		}
	}
	return parts
}

// CancelRunning must find a message in any state, in any partition, and its verdict must tell the state. The groups g
// and h both hold "held". Only g holds "half".
func TestCancelRunningFindsAMessageWhereverItIs(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		p, parts := newProducer(t, c, prefix), partitioned(t, c, prefix, queue)
		// An ordering key chooses the partition of its messages, so a message may be in another partition than the one
		// that its ID would choose.
		for i, id := range []string{"held", "ready", "half"} {
			queuetest.Do(t, c, "XADD", parts[i+1].Stream, "*", "id", id, "payload", "p", "attempt", "1", "due_ms", "1")
		}
		for _, group := range []string{"g", "h"} {
			queuetest.Do(t, c, "XREADGROUP", "GROUP", group, "c-"+group, "STREAMS", parts[1].Stream, ">")
		}
		queuetest.Do(t, c, "XREADGROUP", "GROUP", "g", "c-g", "STREAMS", parts[3].Stream, ">")
		addRetry(t, c, parts[2], lua.Member{Kind: lua.MemberRetry, ID: "again", Group: "h", Of: "1-1"},
			time.Now().Add(time.Hour).UnixMilli())
		if _, err := p.Schedule(t.Context(), queue, Message{ID: "later", Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		all := []string{"held", "ready", "half", "again", "later", "nobody"}
		done, err := p.CancelRunning(t.Context(), queue, "", all...)
		want := "[{held cancelling [{g c-g} {h c-h}] 0} {ready cancelled [] 0} {half cancelling [{g c-g}] 0} " +
			"{again cancelled [] 1} {later cancelled [] 0} {nobody not found [] 0}]"
		if got := summed(done); err != nil || got != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
		for what, cmd := range map[string][]string{
			"the retry": {"ZCARD", parts[2].Due}, "what was ready": {"XLEN", parts[2].Stream},
			"what one group had not read": {"XLEN", parts[3].Stream},
		} {
			redistest.Want(t, what, queuetest.Integer(t, c, cmd...), int64(0))
		}
		done, err = p.CancelRunning(t.Context(), queue, "", all...)
		want = "[{held cancelling [{g c-g} {h c-h}] 0} {ready not found [] 0} {half not found [] 0} {again not found [] 0} " +
			"{later not found [] 0} {nobody not found [] 0}]"
		if got := summed(done); err != nil || got != want {
			t.Errorf("again: %s, %v, want %s", got, err, want)
		}
	})
}

// summed formats a row for each cancellation: ID, verdict, holders (group and consumer), number of removed retries.
func summed(all []Cancellation) string {
	type row struct {
		id      string
		verdict CancelVerdict
		holders []Holder
		retries int
	}
	var rows []row
	for _, one := range all {
		rows = append(rows, row{one.ID, one.Verdict, one.Holders, len(one.Retries)})
	}
	return fmt.Sprint(rows)
}

// A cancellation for one group must not take a message from another group. So an entry that another group has not read
// stays, and so does a message that waits for its first delivery. The verdict "unread" says so.
func TestCancelRunningForOneGroup(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p, parts := newProducer(t, c, prefix), partitioned(t, c, prefix, queue)
	if _, err := p.Schedule(t.Context(), queue, Message{ID: "later", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	queuetest.Do(t, c, "XADD", parts[1].Stream, "*", "id", "m", "payload", "p", "attempt", "1", "due_ms", "1")
	done, err := p.CancelRunning(t.Context(), queue, "g", "m", "later")
	if got := summed(done); err != nil || got != "[{m unread [] 0} {later unread [] 0}]" {
		t.Error(got, err)
	}
	queuetest.Do(t, c, "XREADGROUP", "GROUP", "g", "c", "STREAMS", parts[1].Stream, ">")
	done, err = p.CancelRunning(t.Context(), queue, "g", "m")
	if got := summed(done); err != nil || got != "[{m cancelling [{g c}] 0}]" {
		t.Error(got, err)
	}
	// A retry of the group is removed; the message of the same ID that waits for all groups stays.
	addRetry(t, c, parts[2], lua.Member{Kind: lua.MemberRetry, ID: "later", Group: "g", Of: "1-1"},
		time.Now().Add(time.Hour).UnixMilli())
	done, err = p.CancelRunning(t.Context(), queue, "g", "later")
	if got := summed(done); err != nil || got != "[{later unread [] 1}]" {
		t.Error(got, err)
	}
	redistest.Want(t, "what the other group reads", queuetest.Integer(t, c, "XLEN", parts[1].Stream), int64(1))
	for _, bad := range [][]string{{"a\x1f", "m"}, {"", "a\x1fb"}} {
		if _, err := p.CancelRunning(t.Context(), queue, bad[0], bad[1]); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// The search must go on in a stream with more entries than one call of the script examines. A lost reply must be
// reported as ErrUncertain.
func TestCancelRunningInALongStream(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	p, k := newProducer(t, proxy.Client(t), prefix), lua.NewKeys(prefix, queue)
	if _, err := lua.EnsureGroup(t.Context(), c, k, "g"); err != nil {
		t.Fatal(err)
	}
	var cmds rueidis.Commands
	for i := range 2*entryStep + 10 {
		id := fmt.Sprint("m", i)
		cmds = append(cmds, c.B().Xadd().Key(k.Stream).Id("*").FieldValue().FieldValue("id", id).Build())
	}
	for _, reply := range c.DoMulti(t.Context(), cmds...) {
		if err := reply.Error(); err != nil {
			t.Fatal(err)
		}
	}
	last := fmt.Sprint("m", 2*entryStep+9)
	done, err := p.CancelRunning(t.Context(), queue, "", last, "m0")
	if got := summed(done); err != nil || got != "[{"+last+" cancelled [] 0} {m0 cancelled [] 0}]" {
		t.Error(got, err)
	}
	loseReply(p, proxy)
	if _, err = p.CancelRunning(t.Context(), queue, "", "m1"); !errors.Is(err, ErrUncertain) {
		t.Error(err)
	}
}

// hopper is a client that calls before and after around each walk through the stream of k. The stream is so short that
// one call of the script walks all of it.
type hopper struct {
	rueidis.Client
	k             lua.Keys
	walks         int
	before, after func(walk int)
}

func (h *hopper) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	if len(words) < 6 || words[0] != "EVALSHA" || words[3] != h.k.Stream || words[4] != h.k.Due || words[5] != h.k.Seen {
		return h.Client.Do(ctx, cmd)
	}
	h.walks++
	h.before(h.walks)
	reply := h.Client.Do(ctx, cmd)
	h.after(h.walks)
	return reply
}

// loadCancelEntries loads the script that a hopper counts. Without it EVALSHA fails with NOSCRIPT, and the hopper
// counts one walk too many.
func loadCancelEntries(t *testing.T, r *queuetest.Rig) {
	t.Helper()
	if _, _, err := lua.CancelEntries(t.Context(), r.Client, r.Keys, lua.EntryWalk{Limit: 1}, []string{"x"},
		lua.Durability{}); err != nil {
		t.Fatal(err)
	}
}

// Regression: a message became ready and failed again while the call walked the schedule. Neither the walk through the
// schedule nor a walk through the stream met it. The call returned "not found", and the message was delivered again.
//
//  1. The walk through the stream finds nothing: the message waits as a retry.
//  2. A bridge makes the retry ready, and a worker reads it.
//  3. The walk through the schedule finds nothing: the message is an entry behind the end of step 1.
//  4. The handler fails: the next retry is in the schedule, and the entry is gone.
//  5. The walk through the rest of the stream finds nothing.
//
// The test lets the message hop once, twice, and not at all. Without a hop there is no message to find.
func TestCancelRunningFindsARetryThatHops(t *testing.T) {
	t.Parallel()
	for hops, want := range map[int]CancelVerdict{1: Cancelled, 2: Cancelled, 0: NotFound} {
		t.Run(fmt.Sprint(hops), func(t *testing.T) {
			t.Parallel()
			r := queuetest.New(t, redistest.Shared(t))
			r.Groups("g")
			loadCancelEntries(t, r)
			entry := ""
			hop := func() {
				r.DrainAll()
				entry = r.Take("g", "c", 1)[0]
			}
			fails := func(delay time.Duration) {
				failed := []lua.Failure{{Held: lua.Held{Entry: entry, ID: "m"}, Delay: delay, Error: "no"}}
				if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", lua.Attempts{Max: 100}, failed); err != nil {
					t.Error(err)
				}
			}
			if hops > 0 {
				r.Ready("m")
				hop()
				fails(0)
			}
			// After each of the first `hops` walks the retry becomes ready and is read. Before the next walk it fails.
			// After the last hop it fails with a delay of an hour, so that it stays in the schedule. One walk follows
			// the last hop, and one more finds nothing new.
			h := &hopper{Client: r.Client, k: r.Keys}
			h.before = func(walk int) {
				switch {
				case walk-1 == hops && hops > 0:
					fails(time.Hour)
				case walk > 1 && walk <= hops:
					fails(0)
				}
			}
			h.after = func(walk int) {
				if walk <= hops {
					hop()
				}
			}
			done, err := newProducer(t, h, r.Prefix).CancelRunning(t.Context(), r.Queue, "", "m")
			if err != nil || done[0].Verdict != want {
				t.Errorf("%+v, %v, want %s", done, err, want)
			}
			redistest.Want(t, "what is delivered later", r.Number("ZCARD", r.Keys.Due), int64(0))
			redistest.Want(t, "walks through the stream", h.walks, max(2, hops+2))
		})
	}
}

// A round that takes more than half of the caller's time is the last one, if the message was found.
func TestCancelRunningEndsInTime(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	r := queuetest.New(t, s)
	r.Groups("g", "h")
	loadCancelEntries(t, r)
	r.Ready("m")
	r.Take("h", "c", 1)
	r.Ready("other")
	slow := s.Client(t)
	h := &hopper{Client: r.Client, k: r.Keys, after: func(int) {}}
	h.before = func(walk int) {
		if walk == 2 {
			const seconds = 6
			slow.Do(t.Context(), slow.B().Blpop().Key(r.Keys.Stream+":none").Timeout(seconds).Build())
			redistest.Want(t, "entries that a group reads meanwhile", len(r.Take("g", "c", 1)), 1)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done, err := newProducer(t, h, r.Prefix).CancelRunning(ctx, r.Queue, "", "m")
	if err != nil || done[0].Verdict != Cancelling {
		t.Errorf("%+v, %v", done, err)
	}
	redistest.Want(t, "walks through the stream", h.walks, 2)
}

// A further walk begins only if it can end in time.
func TestAWalkThatCannotEndInTimeDoesNotBegin(t *testing.T) {
	t.Parallel()
	soon, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, c := range []struct {
		ctx  context.Context
		step time.Duration
		want bool
	}{{t.Context(), 1000 * time.Hour, false}, {soon, 2 * time.Hour, true}, {soon, time.Minute, false}} {
		redistest.Want(t, "a walk of "+c.step.String()+" lacks time", lacksTimeFor(c.ctx, c.step), c.want)
	}
}

// Regression: one group held a message, and another group waited for its retry. The retry became ready after the first
// walk through the stream, and failed before the next walk. The call had found the held entry, so it ended, and the
// retry was delivered later.
func TestCancelRunningFindsARetryThatHopsBesideAHeldEntry(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	r.Groups("g", "h")
	loadCancelEntries(t, r)
	r.Ready("m")
	entry := r.Take("g", "c", 1)[0]
	r.Take("h", "c", 1)
	fails := func(delay time.Duration) {
		failed := []lua.Failure{{Held: lua.Held{Entry: entry, ID: "m"}, Delay: delay, Error: "no"}}
		if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", lua.Attempts{Max: 100}, failed); err != nil {
			t.Error(err)
		}
	}
	fails(0)
	h := &hopper{Client: r.Client, k: r.Keys, before: func(int) {}, after: func(int) {}}
	h.after = func(walk int) {
		if walk == 1 {
			r.DrainAll()
			entry = r.Take("g", "c", 1)[0]
		}
	}
	h.before = func(walk int) {
		if walk == 2 {
			fails(time.Hour)
		}
	}
	done, err := newProducer(t, h, r.Prefix).CancelRunning(t.Context(), r.Queue, "", "m")
	if err != nil || done[0].Verdict != Cancelling || len(done[0].Holders) != 1 || len(done[0].Retries) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	redistest.Want(t, "what is delivered later", r.Number("ZCARD", r.Keys.Due), int64(0))
}

// Regression: a message became ready behind the first walk through the stream. One group failed it before the next
// walk, and the other group still held it. The call found the entry and ended, and the retry of the first group was
// delivered after the cancellation.
func TestCancelRunningFindsTheRetryBesideAHeldEntry(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	r.Groups("g", "h")
	loadCancelEntries(t, r)
	entry := ""
	h := &hopper{Client: r.Client, k: r.Keys, before: func(int) {}, after: func(int) {}}
	h.after = func(walk int) {
		if walk == 1 {
			r.Ready("m")
			entry = r.Take("g", "c", 1)[0]
			r.Take("h", "c", 1)
		}
	}
	h.before = func(walk int) {
		if walk == 2 {
			failed := []lua.Failure{{Held: lua.Held{Entry: entry, ID: "m"}, Delay: time.Hour, Error: "no"}}
			if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", lua.Attempts{Max: 100}, failed); err != nil {
				t.Error(err)
			}
		}
	}
	done, err := newProducer(t, h, r.Prefix).CancelRunning(t.Context(), r.Queue, "", "m")
	if err != nil || done[0].Verdict != Cancelling || len(done[0].Holders) != 1 || len(done[0].Retries) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	redistest.Want(t, "what is delivered later", r.Number("ZCARD", r.Keys.Due), int64(0))
}
