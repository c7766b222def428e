package lua

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// hooked calls between once, before the first call of the script withdraw that removes a message. If looked is set, it
// calls looked once, after the first look of withdraw.
type hooked struct {
	rueidis.Client
	between, looked func()
}

func (c *hooked) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	words := command.Commands()
	withdraws := slices.Contains(words, withdrawScript.sha)
	removes := withdraws && words[len(words)-1] == "0"
	if between := c.between; between != nil && removes {
		c.between = nil
		between()
	}
	reply := c.Client.Do(ctx, command)
	if looked := c.looked; looked != nil && withdraws && !removes && reply.Error() == nil {
		c.looked = nil
		looked()
	}
	return reply
}

// move exports the only message of a partition, and moves it to the queue of b.
func (b *testQueue) move(c rueidis.Client, from *testQueue) Moved {
	b.Helper()
	page, err := Export(b.ctx, b.c, from.k, Exported{}, 10, 1<<20)
	if err != nil || len(page) != 1 {
		b.Fatalf("%d messages, %v", len(page), err)
	}
	outcome, err := Move(b.ctx, c, from.k, b.k, page[0])
	if err != nil {
		b.Fatal(err)
	}
	return outcome
}

// endMoves ends the tokens of all moves into the partition, as when moveWindow is over. Nothing removes them yet.
func (b *testQueue) endMoves() {
	for _, name := range b.texts("ZRANGE", b.k.Seen, "0", "-1") {
		b.do("ZADD", b.k.Seen, "1", name)
	}
}

// A moved member keeps its due time, payload and meta, and leaves nothing behind in its old partition.
func TestMoveTakesAMessageWithAllItsDataToAnotherPartition(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		const meta = `{"h:a":"b","key":"customer"}`
		retry := Member{Kind: MemberRetry, ID: "m", Group: "g", Of: "5-1"}.String()
		for _, c := range []struct{ member, score, due string }{
			{"m", "1900000000000", "1900000000000"},
			{"m", "1900000000000.25", "1900000000001"}, // never early
			{"m", "4001900000000000", "1900000000000"}, // it waited for its key there
			{retry, "1900000000000", "1900000000000"},
		} {
			b.do("DEL", b.k.Due, b.k.Payload, b.k.Meta)
			b.endMoves()
			from.do("ZADD", from.k.Due, c.score, c.member)
			from.do("HSET", from.k.Payload, c.member, "p\x00\xff")
			from.do("HSET", from.k.Meta, c.member, meta)
			from.do("ZADD", from.k.Turns, "0", Place("customer", 1.9e12, c.member))
			redistest.Want(b, c.score, b.move(b.c, from), MoveDone)
			redistest.Want(b, "due", fmt.Sprintf("%.0f", b.dueOf(c.member)), c.due)
			redistest.Want(b, "payload", b.text("HGET", b.k.Payload, c.member), "p\x00\xff")
			redistest.Want(b, "meta", b.text("HGET", b.k.Meta, c.member), meta)
			from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
			// A member that waited for its key leaves its place. A retry passes its key on, which removes places of
			// members that are not parked.
			gone := c.score[0] == '4' || c.member == retry
			redistest.Want(b, "its place in line is gone", from.count("ZCARD", from.k.Turns) == 0, gone)
			from.do("DEL", from.k.Turns)
		}
	})
}

// A message without a readable meta becomes a dead letter, wherever it is.
func TestMoveTakesAMalformedMessageThatIsDue(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "5", "m")
		from.do("HSET", from.k.Meta, "m", "[]")
		redistest.Want(b, "moved", b.move(b.c, from), MoveDone)
		from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
		b.wantState("due=1 payload=0 meta=1 stream=0 dead=0")
	})
}

// If the ID is taken in the new partition, by a scheduled message or by a dedup window, the message stays where it is.
func TestMoveOverwritesNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "1900000000000", "m")
		from.do("HSET", from.k.Payload, "m", "other")
		b.do("ZADD", b.k.Due, "1900000000000", "m")
		b.do("HSET", b.k.Payload, "m", "taken") // the same length
		redistest.Want(b, "scheduled there", b.move(b.c, from), MoveOccupied)
		redistest.Want(b, "there", b.text("HGET", b.k.Payload, "m"), "taken")
		b.do("DEL", b.k.Due, b.k.Payload, b.k.Seen)
		b.do("ZADD", b.k.Seen, "1900000000000", "m")
		redistest.Want(b, "in a dedup window there", b.move(b.c, from), MoveOccupied)
		redistest.Want(b, "here", from.text("HGET", from.k.Payload, "m"), "other")
		b.endMoves()
		redistest.Want(b, "free", b.move(b.c, from), MoveDone)
		redistest.Want(b, "moved", b.text("HGET", b.k.Payload, "m"), "other")
	})
}

// A caller that cancels or changes a message gets success as the answer, so the copy must not be delivered.
func TestMoveLeavesNoCopyOfAMessageThatChangesMeanwhile(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		for what, change := range map[string][]string{
			"cancelled":                        {"ZREM", from.k.Due, "m"},
			"put off":                          {"ZADD", from.k.Due, "1910000000000", "m"},
			"another payload of the same size": {"HSET", from.k.Payload, "m", "BODY"},
			"another meta of the same size":    {"HSET", from.k.Meta, "m", `{"h:a":"c"}`},
		} {
			from.do("DEL", from.k.Due, from.k.Payload, from.k.Meta)
			from.do("ZADD", from.k.Due, "1900000000000", "m")
			from.do("HSET", from.k.Payload, "m", "body")
			from.do("HSET", from.k.Meta, "m", `{"h:a":"b"}`)
			between := func() { from.do(change...) }
			redistest.Want(b, what, b.move(&hooked{Client: b.c, between: between}, from), MoveLater)
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
			b.endMoves()
		}
	})
}

// Regression: a retry that was cancelled while it was moved left its hold of the key in the other partition. The next
// message of the key waited until bridges swept the keys.
func TestARetryThatIsTakenBackPassesItsKeyOn(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		b.groups("g")
		retry := Member{Kind: MemberRetry, ID: "m", Group: "g", Of: "5-1"}.String()
		from.do("ZADD", from.k.Due, "1900000000000", retry)
		from.do("HSET", from.k.Meta, retry, `{"for":"g","key":"customer"}`)
		between := func() {
			b.enqueue(b.keyed("next", "customer", 1))
			b.wantDelivered([]string{"g"}) // the retry holds the key
			b.do("DEL", b.k.Wake)
			from.do("ZREM", from.k.Due, retry)
		}
		redistest.Want(b, "outcome", b.move(&hooked{Client: b.c, between: between}, from), MoveLater)
		redistest.Want(b, "wake tokens", b.count("XLEN", b.k.Wake), 1)
		given := b.wantDelivered([]string{"g"}, "next")
		wantList(b, "acknowledged", b.ack("g", heldOf(given...)...), true)
		b.wantNoTurns()
	})
}

// A retry leaves no hold of its key in the partition that it leaves.
func TestARetryThatIsMovedHoldsItsKeyInItsNewPartitionAlone(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		retry := Member{Kind: MemberRetry, ID: "m", Group: "g", Of: "5-1"}.String()
		hold := "customer" + Separator + "busy" + Separator + retry
		from.do("ZADD", from.k.Due, "1900000000000", retry)
		from.do("HSET", from.k.Meta, retry, `{"for":"g","key":"customer"}`)
		from.do("ZADD", from.k.Turns, "0", hold)
		redistest.Want(b, "outcome", b.move(b.c, from), MoveDone)
		from.wantNoTurns()
		wantList(b, "turns", b.texts("ZRANGE", b.k.Turns, "0", "-1"), hold)
	})
}

// A message whose ID is that of the entry that holds its key does not end this hold: only a retry holds a key itself.
func TestAMessageThatIsMovedEndsNoHoldOfAnEntry(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		hold := "customer" + Separator + "busy" + Separator + "5-1"
		from.do("ZADD", from.k.Due, "1900000000000", "5-1")
		from.do("HSET", from.k.Meta, "5-1", `{"key":"customer"}`)
		from.do("ZADD", from.k.Turns, "0", hold)
		redistest.Want(b, "outcome", b.move(b.c, from), MoveDone)
		wantList(b, "turns", from.texts("ZRANGE", from.k.Turns, "0", "-1"), hold)
	})
}

// Regression: a page of messages is moved one after the other. A message that was due and that was cancelled while its
// page waited became ready all the same.
func TestMoveLeavesAMessageThatWasCancelledBefore(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "5", "m")
		page, err := Export(b.ctx, b.c, from.k, Exported{}, 10, 1<<20)
		if err != nil || len(page) != 1 {
			b.Fatalf("%d messages, %v", len(page), err)
		}
		from.do("ZREM", from.k.Due, "m")
		outcome, err := Move(b.ctx, b.c, from.k, b.k, page[0])
		redistest.Want(b, "error", err, nil)
		redistest.Want(b, "outcome", outcome, MoveLater)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// Regression: two callers moved one message. The second one removed it from its old partition, so the first one took
// it for cancelled, and removed it from its new partition, too.
func TestTwoMovesOfAMessageLoseNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "1900000000000", "m")
		var second Moved
		between := func() { second = b.move(b.c, from) }
		redistest.Want(b, "first", b.move(&hooked{Client: b.c, between: between}, from), MoveDone)
		redistest.Want(b, "second", second, MoveLater)
		b.wantState("due=1 payload=0 meta=0 stream=0 dead=0")
		from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// A move stopped halfway, and two callers complete it. The one that comes too late takes nothing back.
func TestTwoCallersThatCompleteAMoveLoseNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "1900000000000", "m")
		b.do("ZADD", b.k.Due, "1900000000000", "m")
		var second Moved
		between := func() {
			b.endMoves()
			second = b.move(b.c, from)
		}
		redistest.Want(b, "first", b.move(&hooked{Client: b.c, between: between}, from), MoveLater)
		redistest.Want(b, "second", second, MoveDone)
		b.wantState("due=1 payload=0 meta=0 stream=0 dead=0")
		from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// Regression: a caller's machine was suspended in the middle of a move. Another caller finished the move meanwhile. The
// first caller took the message for cancelled, and removed it from its new partition. The wall clock of that machine
// shows how long it was suspended.
func TestAMoveTakesNothingBackAfterAStandstill(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "1900000000000", "m")
		page, err := Export(b.ctx, b.c, from.k, Exported{}, 10, 1<<20)
		if err != nil || len(page) != 1 {
			b.Fatalf("%d messages, %v", len(page), err)
		}
		suspended := time.Duration(0)
		clock := func() time.Time { return time.Now().Add(suspended) }
		var second Moved
		between := func() {
			suspended = moveWindow + time.Second
			b.endMoves()
			second = b.move(b.c, from)
		}
		first, err := page[0].move(b.ctx, &hooked{Client: b.c, between: between}, from.k, b.k, clock)
		redistest.Want(b, "error", err, nil)
		redistest.Want(b, "second", second, MoveDone)
		redistest.Want(b, "first", first, MoveLater)
		b.wantState("due=1 payload=0 meta=0 stream=0 dead=0")
		from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// Regression: a message waited for its key, and its wait ended between the exports of two callers. Each took it for
// another version, so both owned the move: one finished it, and the other took the message back.
func TestTwoMovesOfAMessageWhoseWaitForItsKeyEndsLoseNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "4001900000000000", "m")
		var second Moved
		between := func() {
			from.do("ZADD", from.k.Due, "1900000000000", "m")
			second = b.move(b.c, from)
		}
		first := b.move(&hooked{Client: b.c, between: between}, from)
		redistest.Want(b, "second", second, MoveLater)
		redistest.Want(b, "first", first, MoveDone)
		b.wantState("due=1 payload=0 meta=0 stream=0 dead=0")
		from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	})
}

// Regression: a move added the message there, and failed to remove it here, each time. So a message that was due was
// delivered again every minute.
func TestMoveAddsNothingThatItCannotRemove(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "5", "m")
		from.do("SET", from.k.Turns, "of another program")
		page, err := Export(b.ctx, b.c, from.k, Exported{}, 10, 1<<20)
		if err != nil || len(page) != 1 {
			b.Fatalf("%d messages, %v", len(page), err)
		}
		_, err = Move(b.ctx, b.c, from.k, b.k, page[0])
		redistest.Want(b, "another type", errors.Is(err, ErrWrongType), true)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
		from.do("DEL", from.k.Turns)
		redistest.Want(b, "outcome", b.move(b.c, from), MoveDone)
	})
}

// On a cluster the server of the old partition may refuse writes while the other one takes them.
func TestALookForAMessageFailsOnAServerThatRefusesWrites(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, k := s.Client(t), NewKeys(s.Prefix(t), "q")
	one := Exported{Member: "m", Score: "5"}
	s.Do(t, "ZADD", k.Due, "5", "m")
	there, err := one.isIn(t.Context(), c, k)
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "there", there, true)
	s.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1")
	_, err = one.isIn(t.Context(), c, k)
	redistest.Want(t, "it fails without a replica", err != nil, true)
}

// On a full server a message stays in its partition, and moves when there is memory again.
func TestAMoveThatAFullServerRefusesIsMadeLater(t *testing.T) {
	b := newTestQueue(t, redistest.Own(t))
	from := b.queue("q/7")
	from.do("HSET", from.k.Payload, "m", "body")
	from.do("ZADD", from.k.Due, "1900000000000", "m")
	page, err := Export(b.ctx, b.c, from.k, Exported{}, 10, 1<<20)
	if err != nil || len(page) != 1 {
		t.Fatalf("%d messages, %v", len(page), err)
	}
	b.do("CONFIG", "SET", "maxmemory", "1")
	_, err = Move(b.ctx, b.c, from.k, b.k, page[0])
	redistest.Want(t, "a full server refuses it", errors.Is(err, ErrFull), true)
	from.wantState("due=1 payload=1 meta=0 stream=0 dead=0")
	b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	b.do("CONFIG", "SET", "maxmemory", "0")
	redistest.Want(t, "later", b.move(b.c, from), MoveDone)
	from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
	b.wantState("due=1 payload=1 meta=0 stream=0 dead=0")
}

// Regression: a move forgot its token at its end. A caller that had looked before that, and added the message after it,
// made a message ready twice: of 6,000 that four processes moved, 1,846 were delivered twice.
func TestACallerThatLookedBeforeAMoveEndedAddsNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		if _, err := Withdraw(b.ctx, b.c, from.k, Exported{}); err != nil { // from now on the server knows the script
			b.Fatal(err)
		}
		for _, meta := range []string{"", `{"h:a":"b"}`} {
			b.do("DEL", b.k.Stream)
			from.do("ZADD", from.k.Due, "5", "m")
			if meta != "" {
				from.do("HSET", from.k.Meta, "m", meta)
			}
			var other Moved
			looked := func() { other = b.move(b.c, from) }
			redistest.Want(b, "the late caller", b.move(&hooked{Client: b.c, looked: looked}, from), MoveLater)
			redistest.Want(b, "the other one", other, MoveDone)
			b.wantState("due=0 payload=0 meta=0 stream=1 dead=0")
			from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
		}
	})
}

// The caller of a move stops after the message was added to its new partition. A later move must complete it, but only
// after the token of the first one has ended: until then the first caller may still be at work.
func TestAMoveThatStoppedHalfwayIsCompleted(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		from := b.queue("q/7")
		from.do("ZADD", from.k.Due, "1900000000000", "m")
		ctx, stop := context.WithCancel(b.ctx)
		page, err := Export(b.ctx, b.c, from.k, Exported{}, 1, 1)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Move(ctx, &hooked{Client: b.c, between: stop}, from.k, b.k, page[0]); err == nil {
			b.Fatal("it was not stopped")
		}
		redistest.Want(b, "at once", b.move(b.c, from), MoveLater)
		b.endMoves()
		redistest.Want(b, "later", b.move(b.c, from), MoveDone)
		b.wantState("due=1 payload=0 meta=0 stream=0 dead=0")
		from.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
		redistest.Want(b, "window", moveWindow > 10*time.Second, true)
	})
}
