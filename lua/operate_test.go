package lua

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A bridge is live if its heartbeat is at most a timeout old, and at most a timeout ahead of the clock.
func TestHeartbeatReturnsTheLiveBridges(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		now := b.now()
		// Long dead; stamped by a clock that was far ahead; alive; a little ahead.
		b.do("ZADD", b.g.Bridges, ms(now-3001), "old", ms(now+60_000), "future", ms(now-500), "other", ms(now+500), "ahead")
		at, live, err := Heartbeat(b.ctx, b.c, b.g, "me", 3*time.Second)
		if err != nil {
			b.Fatal(err)
		}
		slices.Sort(live)
		wantList(b, "live", live, "ahead", "me", "other")
		if at.UnixMilli() < now || at.UnixMilli() > b.now() {
			b.Fatalf("server's time %v", at)
		}
		redistest.Want(b, "stored", b.count("ZCARD", b.g.Bridges), 3)
		if _, live, err = Heartbeat(b.ctx, b.c, b.g, "me", 3*time.Second); err != nil || len(live) != 3 {
			b.Fatal(live, err)
		}
	})
}

// A bridge must find itself among the live bridges, however many there are. Before, a heartbeat returned the 1,000
// oldest members. Beside 1,000 older heartbeats, no bridge found itself among them, and no queue had an owner any more.
func TestHeartbeatAlwaysReturnsTheCaller(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, others := range []int{999, 1000, 1500, 6000} {
			later := ms(b.now() + 2000)
			for n, args := 0, []string{"ZADD", b.g.Bridges}; n < others; n++ {
				args = append(args, later, fmt.Sprintf("b%04d", n))
				if len(args) > 1000 || n == others-1 {
					b.do(args...)
					args = args[:2]
				}
			}
			_, live, err := Heartbeat(b.ctx, b.c, b.g, "me", time.Minute)
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, fmt.Sprintf("beside %d others: the caller", others), slices.Contains(live, "me"), true)
			if most := min(others, 5000); len(live) < most || len(live) > most+1 {
				b.Fatalf("beside %d others: %d live", others, len(live))
			}
		}
	})
}

// A registration adds queues that are missing, changes no other, and wakes the bridges only if it added a queue.
func TestRegisterOnlyAdds(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("HSET", b.g.Queues, "grown", "1,4")
		for i, c := range []struct {
			queues []string
			added  int
			wake   bool
		}{{[]string{"grown", "a", "b"}, 2, true}, {[]string{"a", "grown"}, 0, false}, {nil, 0, false}} {
			before := b.count("EXISTS", b.g.Wake)
			tokens := b.raw(b.g.Wake)
			n, err := Register(b.ctx, b.c, b.g, c.queues)
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, fmt.Sprint("added ", i), n, c.added)
			after := b.raw(b.g.Wake)
			woke := before == 0 && len(after) == 1 || len(tokens) == 1 && tokens[0].ID != after[0].ID
			redistest.Want(b, "woke", woke, c.wake)
		}
		redistest.Want(b, "queues", fmt.Sprint(b.hash(b.g.Queues)), "map[a:1 b:1 grown:1,4]")
	})
}

// A push target is written only if it is still as the caller has read it, and if the queue has room for one more.
func TestSetTargetOverwritesNoOther(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for i, c := range []struct {
			group, before, target string
			done                  bool
		}{
			{"a", "1", "2", false}, {"a", "", "1", true}, {"a", "", "2", false}, {"a", "1", "2", true}, {"a", "1", "3", false},
			{"b", "", "1", true}, {"c", "", "1", false}, // two are the limit
			{"b", "1", "2", true},
		} {
			done, err := SetTarget(b.ctx, b.c, b.k, c.group, c.before, c.target, 2)
			redistest.Want(b, fmt.Sprint("written ", i), fmt.Sprint(done, err), fmt.Sprint(c.done, nil))
		}
		redistest.Want(b, "targets", fmt.Sprint(b.hash(b.k.Push)), "map[a:2 b:2]")
	})
}

// A partition that holds a message, a dead letter, a recurrence or a push target is not deleted; one that holds only
// settings, groups and orphans is.
func TestDeleteEmptyDeletesNothingThatSomebodyMade(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		deletes := func(want bool, what string) {
			b.Helper()
			got, err := DeleteEmpty(b.ctx, b.c, b.k, false)
			redistest.Want(b, what, fmt.Sprint(got, err), fmt.Sprint(want, nil))
			redistest.Want(b, what+": settings are left", b.count("EXISTS", b.k.Policy) == 1, !want)
		}
		for _, made := range [][]string{{"ZADD", b.k.Due, "1", "m"}, {"XADD", b.k.Stream, "*", "id", "m"},
			{"XADD", b.k.Dead, "*", "id", "m"}, {"HSET", b.k.Recurring, "r", "{}"}, {"HSET", b.k.Push, "g", "{}"}} {
			b.set("rate", "5")
			b.do(made...)
			deletes(false, made[1])
			b.do("DEL", made[1])
		}
		b.groups("g")
		b.do("HSET", b.k.Payload, "orphan", "p")
		deletes(true, "empty")
		redistest.Want(b, "keys left", b.count(append([]string{"EXISTS"}, b.k.All()...)...), 0)
		deletes(true, "nothing")
		b.set("rate", "5")
		b.groups("g")
		got, err := DeleteEmpty(b.ctx, b.c, b.k, true)
		redistest.Want(b, "with hold", fmt.Sprint(got, err), fmt.Sprint(true, nil))
		redistest.Want(b, "the policy that is left", fmt.Sprint(b.hash(b.k.Policy)), "map[held:1 rate:5]")
		b.enqueue(Item{ID: "m", When: "+0"})
		redistest.Want(b, "a message that comes", b.count("ZCARD", b.k.Due), 1)
		got, err = DeleteEmpty(b.ctx, b.c, b.k, false)
		redistest.Want(b, "while it is there", fmt.Sprint(got, err, b.hash(b.k.Policy)), "false <nil> map[held:1 rate:5]")
	})
}

// A group stays as long as the stream has entries, or the group holds an entry, even a deleted one.
func TestDropGroupsDestroysNoGroupThatIsOwedAnything(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		drop := func(want int) {
			b.Helper()
			n, err := DropGroups(b.ctx, b.c, b.k, []string{"a", "b", "nobody"})
			redistest.Want(b, "destroyed", fmt.Sprint(n, err), fmt.Sprint(want, nil))
		}
		drop(0) // there is no stream
		b.groups("a", "b")
		b.do("XADD", b.k.Stream, "5-1", "id", "m")
		drop(0)
		redistest.Want(b, "given to a", len(b.read("a", "c", 10)), 1)
		b.do("XDEL", b.k.Stream, "5-1")
		drop(1) // a holds an entry that was deleted: it is to become a dead letter
		b.do("XACK", b.k.Stream, "a", "5-1")
		drop(1)
		drop(0)
	})
}

// An empty value removes a setting. Each call wakes the bridges.
func TestConfigureWritesAndRemoves(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		set := func(pairs ...string) {
			before := b.token()
			if err := Configure(b.ctx, b.c, b.k.Policy, b.k.Wake, fields(pairs...)); err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, "woke", b.token() != before, true)
		}
		set("visibility_ms", "5000", "max_attempts", "7")
		set("visibility_ms", "", "held", "1", "absent", "")
		redistest.Want(b, "policy", fmt.Sprint(b.hash(b.k.Policy)), "map[held:1 max_attempts:7]")
		set("held", "", "max_attempts", "")
		redistest.Want(b, "exists", b.count("EXISTS", b.k.Policy), 0)
	})
}

// Each change of a value is recorded once, with its author, also when the call is repeated.
func TestSetPolicyRecordsWhoChangedWhat(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		set := func(by string, pairs ...string) {
			b.Helper()
			if done, err := SetPolicy(b.ctx, b.c, b.k.As(by), nil, fields(pairs...)); err != nil || !done {
				b.Fatal(done, err)
			}
		}
		set("token ana", "rate", "5", "burst", "")
		set("token ana", "rate", "5", "burst", "")
		set("token ben", "rate", "", "held", strings.Repeat("1", 3000))
		var got []string
		for _, e := range b.raw(b.k.Changes) {
			v := e.FieldValues // by, field, old, new
			got = append(got, v[0].Value+": "+v[1].Value+" "+v[2].Value+">"+v[3].Value)
		}
		wantList(b.T, "changes", got, "token ana: rate >5", "token ben: rate 5>",
			"token ben: held >"+strings.Repeat("1", 1024))
		set("token ana", "held", "0")
		last := b.raw(b.k.Changes)
		redistest.Want(b, "old value that no setting has", last[len(last)-1].FieldValues[2].Value, "3000 bytes")
		redistest.Want(b, "expires", b.count("PTTL", b.k.Changes) > 0, true)
		for i := range 60 {
			set("token ana", "burst", fmt.Sprint(i))
		}
		redistest.Want(b, "kept", b.count("XLEN", b.k.Changes), 50)

		set("token ana", "rate", "", "held", "", "burst", "")
		deleted, err := DeleteEmpty(b.ctx, b.c, b.k, false)
		redistest.Want(b, "deleted", fmt.Sprint(deleted, err), "true <nil>")
		redistest.Want(b, "left after the queue", b.count("EXISTS", b.k.Changes), 0)
	})
}

// One survey tells the state of many queues. Each queue here is in another state, and the error of one must not hide
// the others.
func TestSurveySeesEachQueueAndItsErrors(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		now := b.now()
		queues := map[string]*testQueue{}
		var keys []Keys
		names := []string{"empty", "scheduled", "overdue", "ready", "pending", "idle", "window", "orphan", "broken",
			"strange", "held", "watched", "tokenless"}
		for _, name := range names {
			queues[name] = b.queue(name)
			keys = append(keys, queues[name].k)
		}
		queues["scheduled"].enqueue(Item{ID: "m", When: After(time.Hour), Payload: []byte("p")})
		queues["overdue"].do("ZADD", queues["overdue"].k.Due, ms(now-5000), "m")
		queues["strange"].do("ZADD", queues["strange"].k.Due, "-inf", "m")
		queues["ready"].enqueueMany(1, 1)
		queues["pending"].deliver([]string{"g"}, "m")
		es := queues["idle"].deliver([]string{"g"}, "m")
		queues["idle"].ack("g", Held{Entry: es[0].EntryID})
		queues["window"].do("ZADD", queues["window"].k.Seen, "5", "m")
		queues["orphan"].do("HSET", queues["orphan"].k.Payload, "m", "p")
		queues["held"].do("ZADD", queues["held"].k.Due, ms(now-5000), "m")
		queues["held"].do("HSET", queues["held"].k.Policy, "held", "1")
		queues["watched"].do("HSET", queues["watched"].k.Calm, "seen_ms", "5")
		queues["broken"].do("SET", queues["broken"].k.Seen, "x")
		queues["tokenless"].do("SET", queues["tokenless"].k.Wake, "x")
		queues["tokenless"].do("ZADD", queues["tokenless"].k.Due, ms(now-5000), "m")
		looks, err := Survey(b.ctx, b.c, keys, true)
		if err != nil {
			b.Fatal(err)
		}
		for i, name := range names {
			got, from := looks[i], looks[i]
			got.Wait, got.Overdue, got.Token, got.Err, got.SideErr = 0, 0, "", nil, nil
			redistest.Want(b, name, got, map[string]Look{
				"ready": {Busy: true, Standing: "1 entries, 0 groups from "}, "pending": {Busy: true}, "watched": {Untidy: true},
				"window": {Untidy: true}, "orphan": {Untidy: true, Orphans: true, Bodies: 1}, "scheduled": {Bodies: 1},
			}[name])

			switch name {
			case "scheduled":
				if from.Wait > time.Hour || from.Wait < time.Hour-time.Minute || from.Overdue != 0 {
					b.Errorf("scheduled: %+v", from)
				}
				redistest.Want(b, "token", from.Token, queues[name].token())
			case "overdue":
				if from.Wait != 0 || from.Overdue < 5*time.Second || from.Overdue > time.Minute {
					b.Errorf("overdue: %+v", from)
				}
			case "strange":
				if from.Wait != 0 || from.Overdue < 1000*time.Hour {
					b.Errorf("strange: %+v", from)
				}
			case "broken":
				if !errors.Is(from.SideErr, ErrWrongType) || from.Err != nil {
					b.Errorf("broken: %v, %v", from.Err, from.SideErr)
				}
			case "tokenless":
				if !errors.Is(from.SideErr, ErrWrongType) || from.Err != nil || from.Overdue < 5*time.Second ||
					from.Token != "0-0" {
					b.Errorf("tokenless: %+v", from)
				}
			default:
				redistest.Want(b, name+" wait", from.Wait < 0, true)
				redistest.Want(b, name+" token", from.Token, "0-0")
			}
			if from.Err != nil {
				b.Errorf("%s: %v", name, from.Err)
			}
		}
	})
}

// The standing of entries that no group holds stays the same until somebody adds or reads an entry, or creates or
// destroys a group.
func TestSurveyDescribesEntriesThatNobodyHolds(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		seen := map[string]bool{}
		look := func(held, fresh bool) {
			b.Helper()
			for range 2 {
				looks, err := Survey(b.ctx, b.c, []Keys{b.k}, false)
				if err != nil {
					b.Fatal(err)
				}
				redistest.Want(b, "busy", looks[0].Busy, true)
				redistest.Want(b, "held", looks[0].Standing == "", held)
				redistest.Want(b, "fresh", !held && !seen[looks[0].Standing], fresh)
				seen[looks[0].Standing], fresh = true, false
			}
		}
		b.enqueueMany(2, 1)
		look(false, true)
		b.groups("g", "h")
		look(false, true)
		entry := b.read("g", "c", 1)[0].EntryID
		look(true, false)
		b.do("XACK", b.k.Stream, "g", entry)
		look(false, false) // h has read nothing, so nothing can be freed
		b.do("XADD", b.k.Stream, "*", "id", "more")
		look(false, true)
		b.do("XGROUP", "DESTROY", b.k.Stream, "h")
		look(false, true)
	})
}

// A group that holds only deleted entries is seen if groups are looked at, and costs nothing otherwise.
func TestSurveySeesDeletedEntriesWhenAsked(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		b := newTestQueue(t, s)
		for _, e := range b.deliver([]string{"g"}, "m") {
			b.do("XDEL", b.k.Stream, e.EntryID)
		}
		for _, held := range []bool{true, false} {
			looks, err := Survey(b.ctx, b.c, []Keys{b.k}, held)
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, fmt.Sprint("busy when asked ", held), looks[0].Busy, held)
		}
	})
}

// A survey takes MaxSurvey queues, and its results are in the order of the queues.
func TestSurveyLooksAtManyQueues(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		keys := make([]Keys, MaxSurvey)
		for i := range keys {
			q := b.queue(fmt.Sprint("q", i))
			keys[i] = q.k
		}
		b.do("ZADD", keys[200].Due, "5", "m")
		looks, err := Survey(b.ctx, b.c, keys, true)
		if err != nil {
			b.Fatal(err)
		}
		for i, l := range looks {
			redistest.Want(b, fmt.Sprint("overdue ", i), l.Overdue > 0, i == 200)
		}
		if looks, err = Survey(b.ctx, b.c, nil, true); err != nil || len(looks) != 0 {
			b.Fatal(looks, err)
		}
	})
}

// A field without a member is deleted only if the caller has found it before, its value still has the same length, and
// the caller calls it ripe: a producer may be about to add the member.
func TestSweepOrphansNeedsTwoLooks(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("HSET", b.k.Payload, "orphan", "p", "soon", "p", "kept", "p", "other", "p", "unripe", "pp", "gone", "p")
		b.do("ZADD", b.k.Due, "5", "kept")
		sweep := func(watched ...Watched) Swept {
			s, err := SweepOrphans(b.ctx, b.c, b.k.Due, b.k.Payload, "", 100, watched)
			if err != nil {
				b.Fatal(err)
			}
			slices.SortFunc(s.Found, func(a, b Orphan) int { return strings.Compare(a.Field, b.Field) })
			return s
		}
		first := sweep()
		redistest.Want(b, "deleted at the first look", first.Deleted, 0)
		redistest.Want(b, "cursor", first.Cursor, "0")
		wantList(b, "found", first.Found, Orphan{"gone", 1}, Orphan{"orphan", 1}, Orphan{"other", 1}, Orphan{"soon", 1},
			Orphan{"unripe", 2})
		// A producer in two steps writes the body before its member. Another one has sent another body under the first
		// one's ID.
		b.do("ZADD", b.k.Due, "6", "soon")
		b.do("HSET", b.k.Payload, "other", "longer")
		b.do("HDEL", b.k.Payload, "gone")
		second := sweep(Watched{Orphan{"orphan", 1}, true}, Watched{Orphan{"soon", 1}, true},
			Watched{Orphan{"other", 1}, true}, Watched{Orphan{"unripe", 2}, false},
			Watched{Orphan{"gone", 1}, true}, Watched{Orphan{"unripe", -1}, false})
		redistest.Want(b, "deleted", second.Deleted, 1)
		wantList(b, "left", second.Left, 1, -1, -1, 2, -1, 2)
		wantList(b, "found", second.Found, Orphan{"other", 6}, Orphan{"unripe", 2})
		redistest.Want(b, "bodies", b.count("HLEN", b.k.Payload), 4)
	})
}

// Sweeps that pass the cursor on find every orphan of a large hash, a limited number at a time.
func TestSweepOrphansGoesOnFromItsCursor(t *testing.T) {
	onServers(t, func(b *testQueue) {
		words := []string{"HSET", b.k.Meta}
		for i := range 3000 {
			words = append(words, fmt.Sprint("f", i), "v")
		}
		b.do(words...)
		cursor, found, calls := "", map[string]bool{}, 0
		for cursor != "0" {
			s, err := SweepOrphans(b.ctx, b.c, b.k.Due, b.k.Meta, cursor, 100, nil)
			if err != nil {
				b.Fatal(err)
			}
			if len(s.Found) > 1000 {
				b.Fatalf("one look found %d", len(s.Found))
			}
			for _, f := range s.Found {
				found[f.Field] = true
			}
			if cursor, calls = s.Cursor, calls+1; calls > 1000 {
				b.Fatal("the cursor never comes back to the beginning")
			}
		}
		redistest.Want(b, "found", len(found), 3000)
	})
}

// The wake token needs a call of its own, because on a cluster the shared keys are in different slots. Without it
// bridges are late, and nothing is lost.
func TestRegisterAndConfigureDoNotNeedTheirWakeStream(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("SET", b.g.Wake, "not a stream")
		n, err := Register(b.ctx, b.c, b.g, []string{"a", "b"})
		if err != nil || n != 2 {
			b.Fatal(n, err)
		}
		if err := Configure(b.ctx, b.c, b.g.Defaults, b.g.Wake, fields("visibility_ms", "5000")); err != nil {
			b.Fatal(err)
		}
		redistest.Want(b, "queues", fmt.Sprint(b.hash(b.g.Queues)), "map[a:1 b:1]")
		redistest.Want(b, "defaults", fmt.Sprint(b.hash(b.g.Defaults)), "map[visibility_ms:5000]")
		if err := Configure(b.ctx, b.c, b.g.Wake, b.k.Wake, fields("a", "b")); !errors.Is(err, ErrWrongType) {
			b.Fatalf("settings of the wrong type: %v", err)
		}
		redistest.Want(b, "tokens for what was refused", b.token(), "")
	})
}

// With expected values nothing must be written if one of the fields has another value, or has none.
func TestSetPolicyExpectsTheValuesThatTheCallerSaw(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		write := func(expected, values []FieldValue) bool {
			b.Helper()
			done, err := SetPolicy(b.ctx, b.c, b.k, expected, values)
			if err != nil {
				b.Fatal(err)
			}
			return done
		}
		redistest.Want(b, "no field expected", write(fields("rate", ""), fields("rate", "5", "burst", "7")), true)
		redistest.Want(b, "repeated", write(fields("rate", ""), fields("rate", "5", "burst", "7")), true)
		redistest.Want(b, "no field expected again", write(fields("rate", ""), fields("rate", "6")), false)
		redistest.Want(b, "one of two differs", write(fields("rate", "5", "burst", "8"), fields("rate", "6")), false)
		redistest.Want(b, "rate", b.text("HGET", b.k.Policy, "rate"), "5")
		redistest.Want(b, "both are the same", write(fields("rate", "5", "burst", "7"), fields("rate", "")), true)
		redistest.Want(b, "fields left", b.count("HLEN", b.k.Policy), 1)
	})
}
