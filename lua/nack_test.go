package lua

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// Modes of XNACK.
const (
	nackSilent = "SILENT"
	nackFail   = "FAIL"
	nackFatal  = "FATAL"
)

// giveBack does to pending entries what XNACK does on Redis 8.8: no consumer holds them, their idle time counts from
// 1970, and the delivery counter is changed by the mode.
func (b *testQueue) giveBack(group, mode string, entries ...string) {
	b.Helper()
	for _, e := range entries {
		n, _, _ := b.pendingEntry(group, e)
		switch mode {
		case nackSilent:
			n = max(0, n-1)
		case nackFatal:
			n = math.MaxInt64
		}
		b.do("XCLAIM", b.k.Stream, group, "", "0", e, "TIME", "0", "RETRYCOUNT", strconv.FormatInt(n, 10), "JUSTID")
	}
}

// newServer begins a script. It changes the replies of XPENDING to those of Redis 8.8: the idle time of an entry that
// no consumer holds is -1, and the delivery counter stays at 2^63 - 1 when a claim adds one.
const newServer = `
local server = redis
local function as_on_8_8(reply, command)
  if command == 'XPENDING' and type(reply) == 'table' then
    for _, one in ipairs(reply) do
      if one[2] == '' then one[3] = -1 end
      if one[4] and one[4] < 0 then one[4] = 9223372036854775807 end
    end
  end
  return reply
end
local redis = setmetatable({
  call = function(...) return as_on_8_8(server.call(...), (...)) end,
  pcall = function(...) return as_on_8_8(server.pcall(...), (...)) end,
}, {__index = server})
`

var reclaimOnNewServer = rueidis.NewLuaScript(newServer + Source("reclaim"))

// reclaimGivenBack reclaims with the replies of the server as they are, or as those of Redis 8.8. No bridge has looked
// at the queue before, and the visibility timeout is an hour, so nothing is reclaimed for its idle time.
func (b *testQueue) reclaimGivenBack(group string, onNewServer bool, attempts Attempts) Reclaimed {
	b.Helper()
	a := ReclaimArgs{Group: group, Attempts: attempts, MinIdle: time.Hour, Shortest: time.Hour, Limit: 100,
		MaxBytes: 1 << 20, Notes: 10}
	if !onNewServer {
		r, err := Reclaim(b.ctx, b.c, b.k, a)
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	most, delays := attempts.args()
	k := b.k
	reply, err := reclaimOnNewServer.Exec(b.ctx, b.c, []string{k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake,
		k.Calm, k.Turns, k.Policy, k.Leases, k.History, k.Progress}, []string{group, most, delays, ReclaimConsumer,
		millis(a.MinIdle), "0-0", "100", "1048576", millis(a.Shortest), "10", ""}).ToArray()
	if err != nil {
		b.Fatal(err)
	}
	var n [5]int
	for i := range n {
		v, err := reply[i+1].AsInt64()
		if err != nil {
			b.Fatal(err)
		}
		n[i] = int(v)
	}
	return Reclaimed{Retried: n[0], Dead: n[1], Skipped: n[2], Stuck: n[3], Cancelled: n[4]}
}

// onBoth runs f with the replies of the server, and with those of Redis 8.8.
func onBoth(t *testing.T, f func(b *testQueue, reclaim func(group string) Reclaimed)) {
	t.Helper()
	onServers(t, func(b *testQueue) {
		for _, onNewServer := range []bool{false, true} {
			q := b.queue("nack-" + strconv.FormatBool(onNewServer))
			f(q, func(group string) Reclaimed {
				q.Helper()
				return q.reclaimGivenBack(group, onNewServer, policy)
			})
		}
	})
}

// XNACK with SILENT is a release, with FAIL a failed attempt, and with FATAL a dead letter, whatever the number of
// attempts is. None waits for the visibility timeout. The mark of a delivery that was given up is above the mark of a
// cancelled one. Regression: the delivery ended without a dead letter, as if the message had been cancelled.
func TestEntriesThatAWorkerGaveBack(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		es := b.deliver([]string{"g"}, "held", "silent", "fail", "fatal")
		b.giveBack("g", nackSilent, es[1].EntryID)
		b.giveBack("g", nackFail, es[2].EntryID)
		b.giveBack("g", nackFatal, es[3].EntryID)
		before := b.now()
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Retried: 2, Dead: 1})
		redistest.Want(b, "pending", b.pending("g"), 1)

		letter := b.letters()[0]
		redistest.Want(b, "letter", [...]string{letter.ID, letter.Group, letter.Reason, letter.FailedEntry},
			[...]string{"fatal", "g", ReasonXNackFatal, es[3].EntryID})
		redistest.Want(b, "attempt of the letter", letter.Attempt, 1)
		if !strings.Contains(letter.Error, "XNACK FATAL") {
			b.Errorf("the error of the letter is %q", letter.Error)
		}

		fail := "fail" + Separator + "g" + Separator + es[2].EntryID
		if due := int64(b.dueOf(fail)); due < before+10_000 {
			b.Errorf("the failed one is due after %d ms", due-before)
		}
		b.drain(10) // only the released one is due
		silent := b.read("g", "c1", 10)
		wantList(b, "delivered again at once", ids(silent), "silent")
		redistest.Want(b, "its attempt", silent[0].Attempt, 1)
		redistest.Want(b, "its error", silent[0].Error, "")
		b.makeDue()
		b.drain(10)
		failed := b.read("g", "c1", 10)
		wantList(b, "delivered after the delay", ids(failed), "fail")
		redistest.Want(b, "its attempt", failed[0].Attempt, 2)
		if !strings.Contains(failed[0].Error, "XNACK") {
			b.Errorf("the error of the failed one is %q", failed[0].Error)
		}
	})
}

// The attempts of a message count by the delivery counter: XNACK with SILENT takes back only the last delivery. A crash
// is counted apart from failures, and XNACK is none.
func TestAGivenBackEntryCountsItsDeliveries(t *testing.T) {
	onServers(t, func(b *testQueue) {
		for _, onNewServer := range []bool{false, true} {
			b := b.queue("count-" + strconv.FormatBool(onNewServer))
			es := b.deliver([]string{"g"}, "silent", "fail", "last")
			b.do("XCLAIM", b.k.Stream, "g", "c2", "0", es[0].EntryID, es[1].EntryID) // a second delivery of each
			b.giveBack("g", nackSilent, es[0].EntryID)
			b.giveBack("g", nackFail, es[1].EntryID)
			crashes := Attempts{Max: 2, Delays: []time.Duration{0}, MaxCrashes: 1}
			redistest.Want(b, "reclaimed", b.reclaimGivenBack("g", onNewServer, crashes), Reclaimed{Retried: 1, Dead: 1})
			letter := b.letters()[0]
			redistest.Want(b, "letter", [...]string{letter.ID, letter.Reason}, [...]string{"fail", ReasonMaxAttempts})
			redistest.Want(b, "attempt of the letter", letter.Attempt, 2)
			b.drain(10)
			redistest.Want(b, "attempt of the other", b.read("g", "c1", 1)[0].Attempt, 2)
		}
	})
}

// A cancelled message ends, without an attempt and without a letter, when its worker gives it back. FATAL replaces the
// mark of the cancellation, so it makes a dead letter. If the message is cancelled after FATAL, it ends without a
// letter.
func TestGivenBackEntriesAndCancellations(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		es := b.deliver([]string{"g", "other"}, "silent", "fail", "fatal", "later", "held")
		b.cancelRunning("g", "silent", "fail", "fatal", "held")
		b.giveBack("other", nackFail, es[3].EntryID) // this group is not asked to cancel anything
		for i, mode := range []string{nackSilent, nackFail, nackFatal, nackFatal} {
			b.giveBack("g", mode, es[i].EntryID)
		}
		wantList(b, "cancelled", b.cancelRunning("g", "later"), "later g 1")
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Cancelled: 2, Dead: 1})
		redistest.Want(b, "letter", b.letters()[0].ID, "fatal")
		redistest.Want(b, "what a consumer holds", b.pending("g"), 1)
		redistest.Want(b, "pending in the other group", b.pending("other"), 5)
	})
}

// A worker may repeat XNACK with SILENT after a lost reply, so the counter of a cancelled delivery may fall below the
// mark of cancellations. Regression: the counter was read as a number of attempts, and made the message a dead letter.
func TestCancelledEntryThatWasGivenBackThreeTimes(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		e := b.deliver([]string{"g"}, "m")[0].EntryID
		b.cancelRunning("g", "m")
		b.giveBack("g", nackSilent, e)
		b.do("XCLAIM", b.k.Stream, "g", "", "0", e, "TIME", "0", "RETRYCOUNT", strconv.Itoa(CancelledMark-2), "JUSTID")
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Cancelled: 1})
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
	})
}

// An entry that nobody holds and no group needs is deleted when its message is cancelled, and its key is passed on.
func TestCancelDeletesAnEntryThatNobodyHolds(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		b.groups("g")
		b.enqueue(b.keyed("m", "k", 9), b.keyed("next", "k", 5))
		b.drain(10)
		b.giveBack("g", nackFail, b.read("g", "c", 1)[0].EntryID)
		wantList(b, "cancelled", b.cancelRunning("", "m"), "m  1")
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{})
		b.wantState("due=1 payload=1 meta=1 stream=0 dead=0 g=0", "g")
		b.drain(10)
		wantList(b, "the next one of the key", ids(b.read("g", "c", 10)), "next")
	})
}

// An entry that another group's consumer holds stays, so that the consumer can extend it.
func TestCancelKeepsAnEntryThatAnotherGroupHolds(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		e := b.deliver([]string{"g", "other"}, "m")[0]
		b.giveBack("g", nackFail, e.EntryID)
		wantList(b, "cancelled", b.cancelRunning("", "m"), "m  1", "m other 2 c1")
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 g=0 other=1", "g", "other")
		redistest.Want(b, "extended", b.extends("other", "c1", Held{Entry: e.EntryID})[0], HeldCancelled)
		redistest.Want(b, "reclaimed", reclaim("other"), Reclaimed{})
	})
}

// A message that was given up passes its key on. A released one keeps its turn, also before the next one of the key.
func TestGivenBackEntriesWithKeys(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		b.groups("g")
		b.enqueue(b.keyed("m", "k", 9), b.keyed("next", "k", 5))
		b.drain(10)
		for _, mode := range []string{nackSilent, nackFatal} {
			es := b.read("g", "c", 10)
			wantList(b, "delivered before "+mode, ids(es), "m")
			b.giveBack("g", mode, es[0].EntryID)
			redistest.Want(b, "left the pending list by "+mode, reclaim("g").Moved(), 1)
			b.drain(10)
		}
		wantList(b, "the next one of the key", ids(b.read("g", "c", 10)), "next")
	})
}

// A lease whose time is over does not keep an entry that its consumer gave back.
func TestGivenBackEntryWithALease(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		b.groups("g")
		e := b.receiveWithLease(time.Second, "m")[0]
		b.giveBack("g", nackFatal, e.EntryID)
		for _, member := range b.texts("ZRANGE", b.k.Leases, "0", "-1") {
			b.do("ZADD", b.k.Leases, "1", member)
		}
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Dead: 1})
		redistest.Want(b, "reason", b.letters()[0].Reason, ReasonXNackFatal)
		redistest.Want(b, "leases", b.count("EXISTS", b.k.Leases), 0)
	})
}

// An entry that was deleted after it was given back is a lost body, also if the message was given up.
func TestGivenBackEntryWithoutABody(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		es := b.deliver([]string{"g"}, "silent", "fatal")
		b.giveBack("g", nackSilent, es[0].EntryID)
		b.giveBack("g", nackFatal, es[1].EntryID)
		b.do("XDEL", b.k.Stream, es[0].EntryID, es[1].EntryID)
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Dead: 2})
		for _, letter := range b.letters() {
			redistest.Want(b, "reason", letter.Reason, ReasonBodyLost)
		}
	})
}

// While the dead letter is refused, the entry stays pending, and the others are reclaimed. Regression: the counter less
// one was no integer of Redis, so the reclaim of the whole group failed.
func TestDeadLetterOfAGivenUpMessageIsRefused(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		es := b.deliver([]string{"g"}, "fatal", "silent")
		b.giveBack("g", nackFatal, es[0].EntryID)
		b.giveBack("g", nackSilent, es[1].EntryID)
		b.fillStream(b.k.Dead)
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Retried: 1, Stuck: 1})
		redistest.Want(b, "pending", b.pending("g"), 1)
		b.do("DEL", b.k.Dead)
		redistest.Want(b, "reclaimed later", b.reclaim("g", 0), Reclaimed{Dead: 1})
		redistest.Want(b, "reason", b.letters()[0].Reason, ReasonXNackFatal)
	})
}

// Another consumer may have claimed an entry of a message that was given up, and on older servers the claim makes the
// counter negative. When that consumer dies, the message becomes a dead letter.
func TestClaimedEntryOfAGivenUpMessage(t *testing.T) {
	onServers(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0].EntryID
		b.giveBack("g", nackFatal, e)
		b.do("XCLAIM", b.k.Stream, "g", "c2", "0", e)
		redistest.Want(b, "extended", b.extends("g", "c2", Held{Entry: e})[0], StillHeld)
		redistest.Want(b, "reclaimed while it is held", b.reclaim("g", time.Hour), Reclaimed{})
		b.abandonGivenUp("g", "c2", e)
		redistest.Want(b, "reclaimed", b.reclaim("g", time.Minute), Reclaimed{Dead: 1})
		redistest.Want(b, "reason", b.letters()[0].Reason, ReasonXNackFatal)
	})
}

// abandonGivenUp makes a pending entry idle for an hour and leaves its counter, which may be negative, as it is.
func (b *testQueue) abandonGivenUp(group, consumer, entry string) {
	b.Helper()
	b.do("XCLAIM", b.k.Stream, group, consumer, "0", entry, "IDLE", "3600000", "JUSTID")
}

// A retry of another group is acknowledged only, in whatever way it was given back.
func TestGivenBackRetryOfAnotherGroup(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		b.groups("g", "other")
		b.do("XADD", b.k.Stream, "*", "id", "m", "for", "other")
		b.giveBack("g", nackFatal, b.read("g", "c", 1)[0].EntryID)
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Skipped: 1})
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 g=0", "g")
	})
}

// Nobody holds a given back entry, so bridges do not note since when it is held. Here 15 entries are given back, and a
// call of reclaim looks at ten.
func TestGivenBackEntryIsNotNotedAsHeld(t *testing.T) {
	onServers(t, func(b *testQueue) {
		es := b.deliver([]string{"g"}, append(numbered(15), "held")...)
		for _, e := range es[:15] {
			b.giveBack("g", nackSilent, e.EntryID)
		}
		b.noteHeld("g")
		redistest.Want(b, "pending", b.pending("g"), 6)
		notes := b.hash(b.k.Calm)[HeldField("g")]
		if !strings.Contains(notes, es[15].EntryID) || strings.Contains(notes, es[14].EntryID) {
			b.Errorf("notes %q, want only entry %s", notes, es[15].EntryID)
		}
	})
}

// A search must show that an entry is pending after a worker gave it back. The counter of the entry may be 0.
// Regression: the search showed such an entry as one that its group had not read.
func TestSearchFindsAGivenBackEntryAsPending(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for i, e := range b.deliver([]string{"g"}, "silent", "fail") {
			b.giveBack("g", []string{nackSilent, nackFail}[i], e.EntryID)
		}
		_, found, err := SearchEntries(b.ctx, b.c, b.k.Stream, SearchFilter{States: []string{"ready", "pending"}},
			StreamSearch{Limit: 10})
		got := ""
		for _, one := range found {
			got += fmt.Sprint(one.Unread, one.Held)
		}
		redistest.Want(b, "found", fmt.Sprint(got, err), "[] [{g  0s 0 false}][] [{g  0s 1 false}]<nil>")
	})
}

// A delivery counter is a number of deliveries, with the mark of a cancellation, or the mark of FATAL.
func TestDeliveries(t *testing.T) {
	for counter, want := range map[int64]struct {
		n         int64
		cancelled bool
	}{
		0: {0, false}, 1: {1, false}, CancelledMark: {0, true}, CancelledMark + 2: {2, true},
		CancelledMark - 1: {0, true},
		math.MaxInt64:     {math.MaxInt64, false}, math.MaxInt64 - 1: {math.MaxInt64, false},
		math.MinInt64: {math.MaxInt64, false},
	} {
		if n, cancelled := Deliveries(counter); n != want.n || cancelled != want.cancelled {
			t.Errorf("counter %d is %d, %t; want %d, %t", counter, n, cancelled, want.n, want.cancelled)
		}
	}
}

// The history records how a delivery ended after its worker gave it back. It names no consumer, because none held the
// entry at that time.
func TestHistoryOfGivenBackEntries(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		b.set("history", "100")
		es := b.deliver([]string{"g"}, "silent", "fail", "fatal", "cancelled")
		for i, mode := range []string{nackSilent, nackFail, nackFatal, nackSilent} {
			b.giveBack("g", mode, es[i].EntryID)
		}
		b.cancelRunning("", "cancelled")
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Retried: 2, Dead: 1})
		var ends []string
		for _, e := range b.raw(b.k.History) {
			for _, told := range ParseTold(e.ID, e.FieldValues) {
				if told.Event != "scheduled" && told.Event != "ready" {
					ends = append(ends, strings.TrimSpace(fmt.Sprint(told.Event, " ", told.ID, " ", told.Reason, told.Consumer)))
				}
			}
		}
		wantList(b, "ends", ends, "cancelled cancelled", "released silent", "retried fail", "dead fatal xnack_fatal")
	})
}

// The next attempt, or the dead letter, gets the progress that a worker stored before it gave the message back.
func TestProgressOfGivenBackEntries(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		e := b.deliver([]string{"g"}, "m")[0]
		for _, mode := range []string{nackSilent, nackFail} {
			redistest.Want(b, "saved", b.saveProgress("g", e, mode), StillHeld)
			b.giveBack("g", mode, e.EntryID)
			redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Retried: 1})
			var got string
			e, got = b.nextAttempt("g")
			redistest.Want(b, "progress", got, mode)
		}
		redistest.Want(b, "saved", b.saveProgress("g", e, "last"), StillHeld)
		b.giveBack("g", nackFatal, e.EntryID)
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Dead: 1})
		redistest.Want(b, "progress of the letter", b.letters()[0].Extra[FieldProgress], "last")
	})
}

// A message that was given back after its expiry becomes a dead letter when it is due again, whatever its delay is.
func TestGivenBackEntriesExpire(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		b.groups("g")
		for _, id := range []string{"silent", "fail"} {
			b.do("XADD", b.k.Stream, "*", "id", id, "payload", "p", "attempt", "1", "expires_ms", "1000000000000")
		}
		for i, e := range b.read("g", "c1", 2) {
			b.giveBack("g", []string{nackSilent, nackFail}[i], e.EntryID)
		}
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Retried: 2})
		b.makeDue()
		b.drain(10)
		for _, letter := range b.letters() {
			redistest.Want(b, letter.ID, letter.Reason+" "+letter.Group, ReasonExpired+" g")
		}
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=2 g=0", "g")
	})
}

// The dead letter of a message that was given up is redriven like any other letter: the message begins at attempt 1.
func TestLetterOfAGivenUpMessageIsRedriven(t *testing.T) {
	onBoth(t, func(b *testQueue, reclaim func(string) Reclaimed) {
		b.giveBack("g", nackFatal, b.deliver([]string{"g"}, "m")[0].EntryID)
		redistest.Want(b, "reclaimed", reclaim("g"), Reclaimed{Dead: 1})
		b.redrive(Redrive{Letter: b.letters()[0].EntryID, When: After(0)})
		b.drain(10)
		e := b.read("g", "c1", 1)[0]
		redistest.Want(b, "attempt", e.Attempt, 1)
		redistest.Want(b, "error", e.Error, "")
	})
}
