package keeper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// A reclaimed entry must come back as a retry for its group only. Otherwise other groups would get the message twice.
func TestAbandonedEntryIsRetriedForItsGroupAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("one", "two")
		r.Policy(map[string]string{"retry_min_ms": "1", "retry_max_ms": "1"})
		r.Ready("a")
		r.Age("one", "dead", r.Take("one", "dead", 1)...)
		redistest.Want(t, "retried", r.reclaim().Retried, 1)
		redistest.Want(t, "pending", r.Pending("one"), int64(0))
		r.DrainAll()

		found, err := r.Client.Do(t.Context(),
			r.Client.B().Xrevrange().Key(r.Keys.Stream).End("+").Start("-").Count(1).Build()).AsXRangeSlices()
		if err != nil || len(found) != 1 {
			t.Fatalf("got %v, %v", found, err)
		}
		e := lua.ParseEntry(found[0].ID, found[0].FieldValues)
		redistest.Want(t, "id", e.ID, "a")
		redistest.Want(t, "payload", string(e.Payload), "payload of a")
		redistest.Want(t, "for", e.For, "one")
		redistest.Want(t, "attempt", e.Attempt, 2)
		redistest.Want(t, "error", strings.HasPrefix(e.Error, "visibility timeout"), true)
		// The reclaimer's own consumer is removed.
		redistest.Want(t, "consumers", fmt.Sprint(r.Consumers("one")), "[dead]")
	})
}

// A pass examines only a part of a long list of pending entries, because XAUTOCLAIM examines ten entries for each entry
// requested. Regression: each pass began at the start of the list. Abandoned entries behind thousands of entries that
// were extended all the time were never found.
func TestReclaimFindsWhatLiesBehindALongHeadOfFreshEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	const fresh, abandoned = 12_000, 250
	r.Fill(fresh + abandoned)
	r.Take("g", "alive", fresh)
	r.Age("g", "dead", r.Take("g", "dead", abandoned)...)

	reclaimer := r.reclaimer()
	retried, passes := 0, 0
	for ; retried < abandoned && passes < 20; passes++ {
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		retried += result.Retried
	}
	redistest.Want(t, "retried", retried, abandoned)
	redistest.Want(t, "pending", r.Pending("g"), int64(fresh))
	if passes < 2 {
		t.Errorf("%d pass was enough: too few fresh entries are before the abandoned ones", passes)
	}
}

// Anybody may create groups with XGROUP, with any name. Their abandoned entries must be reclaimed like those of others.
func TestReclaimServesGroupsNobodyRegistered(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Ready("a", "b")
	names := []string{"a:due", "x}y{", "plain", "ünï", strings.Repeat("x", lua.MaxGroupBytes)}
	for _, name := range names {
		r.Do("XGROUP", "CREATE", r.Keys.Stream, name, "0")
		r.Age(name, "c", r.Take(name, "c", 2)...)
	}
	got := r.reclaim()
	for _, name := range names {
		redistest.Want(t, fmt.Sprintf("pending of %q", name), r.Pending(name), int64(0))
	}
	redistest.Want(t, "moved", got.Moved(), 2*len(names))
	redistest.Want(t, "retries and dead letters", int(r.Number("ZCARD", r.Keys.Due)+r.Number("XLEN", r.Keys.Dead)),
		2*len(names))
}

// An entry that is abandoned at its last attempt must become a dead letter with the data of the message.
func TestUsedUpAttemptsMakeOneDeadLetter(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g", "other")
	r.Policy(map[string]string{"max_attempts": "3", "retry_min_ms": "1", "retry_max_ms": "1"})
	r.Ready("a")
	for attempt := 1; attempt <= 3; attempt++ {
		redistest.Want(t, "dead letters before", len(r.letters()), 0)
		var ids []string
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			r.DrainAll()
			ids = r.Take("g", "c", 10)
			return len(ids) == 1, fmt.Sprintf("%d entries", len(ids))
		})
		r.Age("g", "c", ids...)
		r.reclaim()
	}
	letters := r.letters()
	if len(letters) != 1 {
		t.Fatalf("%d letters", len(letters))
	}
	l := letters[0]
	redistest.Want(t, "id", l.ID, "a")
	redistest.Want(t, "group", l.Group, "g")
	redistest.Want(t, "reason", l.Reason, lua.ReasonVisibilityTimeout)
	redistest.Want(t, "attempt", l.Attempt, 3)
	redistest.Want(t, "payload", string(l.Payload), "payload of a")
	redistest.Want(t, "error", strings.Contains(l.Error, "visibility timeout"), true)
	redistest.Want(t, "dead", time.Since(l.Dead) < time.Minute, true)
	redistest.Want(t, "scheduled", r.Number("ZCARD", r.Keys.Due), int64(0))
}

// A reclaimer does not trust idle time from before the first look of any reclaimer, so an entry comes back a visibility
// timeout of its group after that first look. Regression: a bridge reclaimed nothing until it had run for a visibility
// timeout itself. With a timeout of a day and a deploy each day, nothing ever came back.
func TestReclaimersThatStartAndStopReclaimInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("quick", "slow")
	r.Policy(map[string]string{"group:quick:visibility_ms": "2000", "group:slow:visibility_ms": "60000"})
	r.Ready("a")
	for _, g := range []string{"quick", "slow"} {
		r.Age(g, "c", r.Take(g, "c", 1)...)
	}
	began, moved := time.Now(), 0
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		// Each try is by a bridge that has just started.
		reclaimer := NewReclaimer(ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue, Watched: true})
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "smallest timeout", result.Visibility, 2*time.Second)
		moved += result.Moved()
		return moved > 0, "nothing was reclaimed"
	})
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("reclaimed %s after the first look, before the timeout of 2 s", took)
	}
	redistest.Want(t, "the other group", r.Pending("slow"), int64(1))
}

// If somebody deletes an entry that a group holds, the group must get a dead letter that says so: the message must not
// vanish silently.
func TestBodyDeletedBySomeoneBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("g")
		r.Ready("a", "b")
		ids := r.Take("g", "c", 2)
		r.Age("g", "c", ids...)
		r.Do("XDEL", r.Keys.Stream, ids[0])
		got := r.reclaim()
		redistest.Want(t, "dead", got.Dead, 1)
		redistest.Want(t, "retried", got.Retried, 1)
		letters := r.letters()
		if len(letters) != 1 {
			t.Fatalf("%d letters", len(letters))
		}
		redistest.Want(t, "reason", letters[0].Reason, lua.ReasonBodyLost)
		redistest.Want(t, "entry", letters[0].Entry, ids[0])
		redistest.Want(t, "group", letters[0].Group, "g")
		redistest.Want(t, "payload", letters[0].Payload == nil, true)
		redistest.Want(t, "pending", r.Pending("g"), int64(0))
	})
}

// Entries of other programs may have any fields. Each abandoned one must become a retry, or a dead letter if a retry
// cannot hold it, and must not stop the pass.
func TestDamagedEntriesLoseNothingAndStopNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	many := []string{"XADD", r.Keys.Stream, "*", "id", "many", "payload", "p"}
	for i := range 1500 {
		many = append(many, fmt.Sprint("f", i), "v")
	}
	r.Do("XADD", r.Keys.Stream, "*", "id", "attempts", "payload", "p", "attempt", "abc")
	r.Do("XADD", r.Keys.Stream, "*", "payload", "no id")
	r.Do("XADD", r.Keys.Stream, "*", "id", "binary", "payload", "p\x00\xff", "attempt", "1", "h:raw", "\xff\xfe")
	r.Do(many...)
	r.Do("XADD", r.Keys.Stream, "*", "id", "", "payload", "empty id")
	r.Do("XADD", r.Keys.Stream, "*", "id", "limit", "payload", "p", "max_attempts", "-3")
	r.Do("XADD", r.Keys.Stream, "*", "colour", "green")
	r.Ready("good")
	r.Age("g", "c", r.Take("g", "c", 100)...)

	got := r.reclaim()
	redistest.Want(t, "stuck", got.Stuck, 0)
	redistest.Want(t, "moved", got.Moved(), 8)
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
	redistest.Want(t, "retried", r.Number("ZCARD", r.Keys.Due), int64(4)) // no id, binary, green, good
	var malformed []string
	for _, l := range r.letters() {
		if l.Reason != lua.ReasonMalformed || l.Error == "" || l.Group != "g" {
			t.Errorf("letter %+v", l)
		}
		malformed = append(malformed, l.ID)
	}
	slices.Sort(malformed)
	redistest.Want(t, "malformed", fmt.Sprint(malformed), fmt.Sprint([]string{"", "attempts", "limit", "many"}))
}

// A consumer of another program may claim entries with XCLAIM. The server counts these deliveries, and they must count
// as attempts. Otherwise a message that kills each such consumer would come back for ever.
func TestForeignClaimsCountAsDeliveries(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Policy(map[string]string{"max_attempts": "5"})
	r.Ready("a", "b")
	ids := r.Take("g", "c", 2)
	for range 4 { // together with the read, five deliveries by the server's count
		r.Do("XCLAIM", r.Keys.Stream, "g", "thief", "0", ids[0])
	}
	r.Age("g", "thief", ids...)
	r.reclaim()
	letters := r.letters()
	if len(letters) != 1 {
		t.Fatalf("%d letters", len(letters))
	}
	redistest.Want(t, "id", letters[0].ID, "a")
	redistest.Want(t, "attempt", letters[0].Attempt, 5)
}

// eventCounts is an observer that counts events. Only one goroutine may use it.
type eventCounts map[observe.Event]int

func (c eventCounts) Series(observe.Part, string, string) observe.Series { return c }
func (c eventCounts) Call(string, time.Duration, error)                  {}
func (c eventCounts) BridgeStarted(observe.BridgeView) (ended func())    { return func() {} }
func (c eventCounts) Add(e observe.Event, n int)                         { c[e] += n }
func (c eventCounts) AddSized(e observe.Event, n, _ int)                 { c[e] += n }
func (c eventCounts) AddTimed(e observe.Event, n int, _ time.Duration)   { c[e] += n }

// If the stream of dead letters takes no further entry, an entry that should die must stay pending, so that it is not
// lost. It must be logged and counted once, not at each pass.
func TestEntryTheDeadLettersRefuseStaysPendingAndIsReportedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Policy(map[string]string{"max_attempts": "1"})
	r.Do("XADD", r.Keys.Dead, "18446744073709551615-18446744073709551615", "full", "1") // no further ID is possible
	r.Ready("a", "b", "c")
	var book queuetest.LogBook
	observer := eventCounts{}
	reclaimer := NewReclaimer(ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue, Logger: book.Logger(),
		Observer: observer})
	for range 3 {
		r.Age("g", "c", r.Take("g", "c", 3)...)
		if pending := r.Do("XPENDING", r.Keys.Stream, "g", "-", "+", "10"); len(queuetest.Array(t, pending)) > 0 {
			for _, one := range queuetest.Array(t, pending) {
				entry, _ := queuetest.Array(t, one)[0].ToString()
				r.Age("g", "c", entry)
			}
		}
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "stuck", result.Stuck, 3)
		redistest.Want(t, "moved", result.Moved(), 0)
	}
	redistest.Want(t, "pending", r.Pending("g"), int64(3))
	redistest.Want(t, "log lines", book.Count("refuses entries"), 1)
	redistest.Want(t, "events of stuck entries", observer[observe.Stuck], 3) // one for each entry, not one for each pass
}

func TestReclaimOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	result, err := r.reclaimer().Reclaim(t.Context())
	if err != nil || result.Moved() != 0 || result.Visibility != 0 {
		t.Errorf("no stream: %+v, %v", result, err)
	}
	r.Do("SET", r.Keys.Stream, "x")
	if _, err := r.reclaimer().Reclaim(t.Context()); !errors.Is(err, lua.ErrWrongType) {
		t.Errorf("wrong type: %v", err)
	}
}

// Regression: with thousands of groups and a slow link, a pass ran out of time before it came to the last group, and
// the next pass began with the first group again.
func TestReclaimGoesOnWithTheNextGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	groups := []string{"a", "b", "c", "d", "e"}
	r.Do("XADD", r.Keys.Stream, "5-1", "id", "m", "payload", "p")
	for _, g := range groups {
		r.Do("XGROUP", "CREATE", r.Keys.Stream, g, "0")
		r.Do("XCLAIM", r.Keys.Stream, g, "gone", "0", "5-1", "FORCE", "IDLE", "3600000", "JUSTID")
	}
	reclaimer := NewReclaimer(ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue})
	reclaimer.maxTime = 0 // the time of a pass is over after one group
	for i := range groups {
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "retried", result.Retried, 1)
		redistest.Want(t, "more", result.More, true)
		redistest.Want(t, "scheduled", r.Number("ZCARD", r.Keys.Due), int64(i+1))
	}
}

// Regression: a stuck entry became a dead letter, and nothing was pending any more. The loop of the reclaimer ended
// before two visibility timeouts had passed, and never logged that dead-lettering works again.
func TestWhatIsNoLongerStuckIsToldAtOnceWhenNothingIsPending(t *testing.T) {
	t.Parallel()
	var book queuetest.LogBook
	r := &Reclaimer{stuckState: loop.Reporter{Log: book.Logger(), Activity: "dead-lettering of abandoned entries"}}
	held := ReclaimResult{Visibility: 1 << 40, stream: view.StreamInfo{Groups: []view.GroupInfo{{Pending: 1}}}}
	stuck := held
	stuck.Stuck = 1
	r.logStuck(stuck)
	r.logStuck(held)
	redistest.Want(t, "while pending: only failing", slices.Equal(book.Turns(), []string{"failing"}), true)
	r.logStuck(ReclaimResult{})
	redistest.Want(t, "in the end: failing, again", slices.Equal(book.Turns(), []string{"failing", "again"}), true)
}

// An abandoned entry whose lease has ended must come back in the next pass, even if 1,500 leases of settled entries are
// before it and thousands of entries are held. Regression: a pass looked at only 500 leases.
func TestAReclaimComesToEveryLeaseThatIsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g", "other")
	r.Fill(6000)
	held := r.Take("g", "alive", 6000)
	r.addLeases("g", 1500)
	last := held[len(held)-1]
	r.Do("XCLAIM", r.Keys.Stream, "g", "alive", "0", last, "IDLE", "600000", "JUSTID")
	r.Do("ZADD", r.Keys.Leases, "6", "1000"+lua.Separator+last+lua.Separator+"g")
	r.Policy(map[string]string{"visibility_ms": "60000"})
	result, err := r.reclaimer().Reclaim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "retried", result.Retried, 1)
	redistest.Want(t, "leases", r.Number("ZCARD", r.Keys.Leases), int64(0))
}
