package stream

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestAbandonedEntryIsRetriedForItsGroupAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.groups("one", "two")
		r.policy(map[string]string{"retry_min_ms": "1", "retry_max_ms": "1"})
		r.ready("a")
		r.age("one", "dead", r.take("one", "dead", 1)...)
		want(t, "retried", r.reclaim().Retried, 1)
		want(t, "pending", r.pending("one"), int64(0))
		r.drainAll()

		found, err := r.c.Do(t.Context(), r.c.B().Xrevrange().Key(r.k.Stream).End("+").Start("-").Count(1).Build()).AsXRangeSlices()
		if err != nil || len(found) != 1 {
			t.Fatalf("got %v, %v", found, err)
		}
		e := lua.ParseEntry(found[0].ID, found[0].FieldValues)
		want(t, "id", e.ID, "a")
		want(t, "payload", string(e.Payload), "payload of a")
		want(t, "for", e.For, "one")
		want(t, "attempt", e.Attempt, 2)
		want(t, "error", strings.HasPrefix(e.Error, "visibility timeout"), true)
		// The reclaimer's own consumer is not left behind.
		consumers, err := Consumers(t.Context(), r.c, r.prefix, r.queue, "one")
		want(t, "consumers", fmt.Sprint(consumers, err), fmt.Sprint([]Consumer{{Name: "dead", Idle: consumers[0].Idle}}, nil))
		want(t, "consumers with the reclaimer's", len(mustArray(t, r.do("XINFO", "CONSUMERS", r.k.Stream, "one"))), 1)
	})
}

func mustArray(t *testing.T, m rueidis.RedisMessage) []rueidis.RedisMessage {
	t.Helper()
	list, err := m.ToArray()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A cursor that starts from the beginning each time sees only the first entries of a pending list: XAUTOCLAIM looks at ten entries per
// entry asked for. Behind a long head of entries that are extended all the time, abandoned ones were never found.
func TestReclaimFindsWhatLiesBehindALongHeadOfFreshEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	const fresh, abandoned = 12_000, 250
	r.fill(fresh + abandoned)
	r.take("g", "alive", fresh)
	r.age("g", "dead", r.take("g", "dead", abandoned)...)

	reclaimer := r.reclaimer()
	retried, passes := 0, 0
	for ; retried < abandoned && passes < 20; passes++ {
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		retried += result.Retried
	}
	want(t, "retried", retried, abandoned)
	want(t, "pending", r.pending("g"), int64(fresh))
	if passes < 2 {
		t.Errorf("done in %d pass: the head is too short to show anything", passes)
	}
}

func TestReclaimServesGroupsNobodyRegistered(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.ready("a", "b")
	names := []string{"a:due", "x}y{", "plain", "ünï", strings.Repeat("x", lua.MaxGroupBytes)}
	for _, name := range names {
		r.do("XGROUP", "CREATE", r.k.Stream, name, "0")
		r.age(name, "c", r.take(name, "c", 2)...)
	}
	got := r.reclaim()
	for _, name := range names {
		want(t, fmt.Sprintf("pending of %q", name), r.pending(name), int64(0))
	}
	want(t, "moved", got.Moved(), 2*len(names))
	want(t, "all of them somewhere", int(r.number("ZCARD", r.k.Due)+r.number("XLEN", r.k.Dead)), 2*len(names))
}

func TestUsedUpAttemptsMakeOneDeadLetter(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g", "other")
	r.policy(map[string]string{"max_attempts": "3", "retry_min_ms": "1", "retry_max_ms": "1"})
	r.ready("a")
	for attempt := 1; attempt <= 3; attempt++ {
		want(t, "dead letters before", len(r.letters()), 0)
		var ids []string
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			r.drainAll()
			ids = r.take("g", "c", 10)
			return len(ids) == 1, fmt.Sprintf("%d entries", len(ids))
		})
		r.age("g", "c", ids...)
		r.reclaim()
	}
	letters := r.letters()
	if len(letters) != 1 {
		t.Fatalf("%d letters", len(letters))
	}
	l := letters[0]
	want(t, "id", l.ID, "a")
	want(t, "group", l.Group, "g")
	want(t, "reason", l.Reason, lua.ReasonVisibilityTimeout)
	want(t, "attempt", l.Attempt, 3)
	want(t, "payload", string(l.Payload), "payload of a")
	want(t, "error", strings.Contains(l.Error, "visibility timeout"), true)
	want(t, "dead", time.Since(l.Dead) < time.Minute, true)
	want(t, "scheduled", r.number("ZCARD", r.k.Due), int64(0))
}

// What was pending before anybody looked says nothing about its consumer: each group waits for its own timeout, however often reclaimers
// start meanwhile. A bridge that started less than a visibility timeout ago once reclaimed nothing; with a deploy a day nothing ever came back.
func TestReclaimersThatStartAndStopReclaimInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("quick", "slow")
	r.policy(map[string]string{"group:quick:visibility_ms": "2000", "group:slow:visibility_ms": "60000"})
	r.ready("a")
	for _, g := range []string{"quick", "slow"} {
		r.age(g, "c", r.take(g, "c", 1)...)
	}
	began, moved := time.Now(), 0
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		reclaimer := NewReclaimer(ReclaimerConfig{Client: r.c, Prefix: r.prefix, Queue: r.queue, Watched: true}) // of a bridge that has just started
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "smallest timeout", result.Visibility, 2*time.Second)
		moved += result.Moved()
		return moved > 0, "nothing was reclaimed"
	})
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("reclaimed %s after the first look: nobody knows what was before it", took)
	}
	want(t, "the other group", r.pending("slow"), int64(1))
}

func TestBodyDeletedBySomeoneBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.groups("g")
		r.ready("a", "b")
		ids := r.take("g", "c", 2)
		r.age("g", "c", ids...)
		r.do("XDEL", r.k.Stream, ids[0])
		got := r.reclaim()
		want(t, "dead", got.Buried, 1)
		want(t, "retried", got.Retried, 1)
		letters := r.letters()
		if len(letters) != 1 {
			t.Fatalf("%d letters", len(letters))
		}
		want(t, "reason", letters[0].Reason, lua.ReasonBodyLost)
		want(t, "entry", letters[0].Entry, ids[0])
		want(t, "group", letters[0].Group, "g")
		want(t, "payload", letters[0].Payload == nil, true)
		want(t, "pending", r.pending("g"), int64(0))
	})
}

func TestDamagedEntriesLoseNothingAndStopNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	many := []string{"XADD", r.k.Stream, "*", "id", "many", "payload", "p"}
	for i := range 1500 {
		many = append(many, fmt.Sprint("f", i), "v")
	}
	r.do("XADD", r.k.Stream, "*", "id", "attempts", "payload", "p", "attempt", "abc")
	r.do("XADD", r.k.Stream, "*", "payload", "no id")
	r.do("XADD", r.k.Stream, "*", "id", "binary", "payload", "p\x00\xff", "attempt", "1", "h:raw", "\xff\xfe")
	r.do(many...)
	r.do("XADD", r.k.Stream, "*", "id", "", "payload", "empty id")
	r.do("XADD", r.k.Stream, "*", "id", "limit", "payload", "p", "max_attempts", "-3")
	r.do("XADD", r.k.Stream, "*", "colour", "green")
	r.ready("good")
	r.age("g", "c", r.take("g", "c", 100)...)

	got := r.reclaim()
	want(t, "stuck", got.Stuck, 0)
	want(t, "moved", got.Moved(), 8)
	want(t, "pending", r.pending("g"), int64(0))
	want(t, "retried", r.number("ZCARD", r.k.Due), int64(4)) // no id, binary, green, good
	var malformed []string
	for _, l := range r.letters() {
		if l.Reason != lua.ReasonMalformed || l.Error == "" || l.Group != "g" {
			t.Errorf("letter %+v", l)
		}
		malformed = append(malformed, l.ID)
	}
	slices.Sort(malformed)
	want(t, "malformed", fmt.Sprint(malformed), fmt.Sprint([]string{"", "attempts", "limit", "many"}))
}

func TestForeignClaimsCountAsDeliveries(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.policy(map[string]string{"max_attempts": "5"})
	r.ready("a", "b")
	ids := r.take("g", "c", 2)
	for range 4 { // delivered 5 times by now, as the server counts
		r.do("XCLAIM", r.k.Stream, "g", "thief", "0", ids[0])
	}
	r.age("g", "thief", ids...)
	r.reclaim()
	letters := r.letters()
	if len(letters) != 1 {
		t.Fatalf("%d letters", len(letters))
	}
	want(t, "id", letters[0].ID, "a")
	want(t, "attempt", letters[0].Attempt, 5)
}

func TestEntryTheDeadLettersRefuseStaysPendingAndIsReportedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.policy(map[string]string{"max_attempts": "1"})
	r.do("XADD", r.k.Dead, "18446744073709551615-18446744073709551615", "full", "1") // no further ID is possible
	r.ready("a", "b", "c")
	var book logBook
	reclaimer := NewReclaimer(ReclaimerConfig{Client: r.c, Prefix: r.prefix, Queue: r.queue, Logger: book.logger()})
	for range 3 {
		r.age("g", "c", r.take("g", "c", 3)...)
		if pending := r.do("XPENDING", r.k.Stream, "g", "-", "+", "10"); len(mustArray(t, pending)) > 0 {
			for _, one := range mustArray(t, pending) {
				entry, _ := mustArray(t, one)[0].ToString()
				r.age("g", "c", entry)
			}
		}
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "stuck", result.Stuck, 3)
		want(t, "moved", result.Moved(), 0)
	}
	want(t, "pending", r.pending("g"), int64(3))
	want(t, "log lines", book.count("refuses entries"), 1)
}

func TestReclaimOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	result, err := r.reclaimer().Reclaim(t.Context())
	if err != nil || result.Moved() != 0 || result.Visibility != 0 {
		t.Errorf("no stream: %+v, %v", result, err)
	}
	r.do("SET", r.k.Stream, "x")
	if _, err := r.reclaimer().Reclaim(t.Context()); !errors.Is(err, lua.ErrWrongType) {
		t.Errorf("wrong type: %v", err)
	}
}

// With thousands of groups and a slow link the time of a pass was up before the last of them, and the next pass began with the first again.
func TestReclaimGoesOnWithTheNextGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	groups := []string{"a", "b", "c", "d", "e"}
	r.do("XADD", r.k.Stream, "5-1", "id", "m", "payload", "p")
	for _, g := range groups {
		r.do("XGROUP", "CREATE", r.k.Stream, g, "0")
		r.do("XCLAIM", r.k.Stream, g, "gone", "0", "5-1", "FORCE", "IDLE", "3600000", "JUSTID")
	}
	reclaimer := NewReclaimer(ReclaimerConfig{Client: r.c, Prefix: r.prefix, Queue: r.queue})
	reclaimer.time = 0 // always up
	for i := range groups {
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "retried", result.Retried, 1)
		want(t, "more", result.More, true)
		want(t, "scheduled", r.number("ZCARD", r.k.Due), int64(i+1))
	}
}
