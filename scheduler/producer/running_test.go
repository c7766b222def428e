package producer

import (
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

// A message is cancelled in any state, in any partition, and the verdict tells its state.
func TestCancelRunningFindsAMessageWhereverItIs(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		p, parts := newProducer(t, c, prefix), partitioned(t, c, prefix, queue)
		for i, id := range []string{"held", "ready", "half"} { // in partitions other than that of the ID, as with a key
			queuetest.Do(t, c, "XADD", parts[i+1].Stream, "*", "id", id, "payload", "p", "attempt", "1", "due_ms", "1")
		}
		for _, group := range []string{"g", "h"} {
			queuetest.Do(t, c, "XREADGROUP", "GROUP", group, "c-"+group, "STREAMS", parts[1].Stream, ">")
		}
		queuetest.Do(t, c, "XREADGROUP", "GROUP", "g", "c-g", "STREAMS", parts[3].Stream, ">")
		waits(t, c, parts[2], lua.Member{Kind: lua.MemberRetry, ID: "again", Group: "h", Of: "1-1"},
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

// For one group, an entry that another group needs stays, and so does a message that waits for its first delivery; the
// verdict tells it.
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
	waits(t, c, parts[2], lua.Member{Kind: lua.MemberRetry, ID: "later", Group: "g", Of: "1-1"}, time.Now().Add(time.Hour).UnixMilli())
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

// The search covers more entries than one call examines, and reports a lost reply.
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
