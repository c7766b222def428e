package search

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/lookup"
)

// A search must find messages in each state by each field of the filter, and no others.
func TestSearchFindsEachStateByEachField(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g", "h")
		gold := map[string]string{"tier": "gold", "x": "y"}
		r.schedule("order-1", "blue car", at(1), gold)
		r.schedule("order-2", "red car", at(2), nil)
		r.schedule("mail-1", "red letter", at(3), map[string]string{"tier": "tin"})
		r.retry("order-3", "g", "red retry", "timeout of partner", at(4))
		r.retry("order-3", "h", "red retry", "refused", at(5))
		r.entry("order-4", "red and held", at(6), "h:tier", "gold")
		r.Take("g", "worker", 1)
		r.entry("order-5", "red and unread", at(7), "for", "g", "error", "timeout again")
		r.letter("order-6", "red and dead", "g", "max_attempts", "timeout at last", at(8), "h:tier", "gold")
		r.letter("mail-6", "blue and dead", "h", "expired", "", at(9))
		all := "dead mail-6 h, dead order-6 g, pending order-4 g, ready order-4, ready order-5 g, retrying order-3 g, " +
			"retrying order-3 h, scheduled mail-1, scheduled order-1, scheduled order-2"
		for _, c := range []struct {
			filter Filter
			want   string
		}{
			{Filter{}, all},
			{Filter{States: []lookup.State{lookup.StateScheduled}}, "scheduled mail-1, scheduled order-1, scheduled order-2"},
			{Filter{States: []lookup.State{lookup.StateRetrying}}, "retrying order-3 g, retrying order-3 h"},
			{Filter{States: []lookup.State{lookup.StateReady}}, "ready order-4, ready order-5 g"},
			{Filter{States: []lookup.State{lookup.StatePending}}, "pending order-4 g"},
			{Filter{States: []lookup.State{lookup.StateDead}}, "dead mail-6 h, dead order-6 g"},
			{Filter{Prefix: "mail-"}, "dead mail-6 h, scheduled mail-1"},
			{Filter{Prefix: "rder"}, ""},
			{Filter{IDs: []string{"order-1", "order-3", "order-4", "mail-6", "nobody"}}, "dead mail-6 h, pending order-4 g, " +
				"ready order-4, retrying order-3 g, retrying order-3 h, scheduled order-1"},
			{Filter{Headers: map[string]string{"tier": "gold"}}, "dead order-6 g, pending order-4 g, ready order-4, " +
				"retrying order-3 g, retrying order-3 h, scheduled order-1"},
			{Filter{Headers: gold}, "scheduled order-1"},
			{Filter{Headers: map[string]string{"tier": ""}}, ""},
			{Filter{Error: "timeout"}, "dead order-6 g, ready order-5 g, retrying order-3 g"},
			{Filter{Text: "red"}, "dead order-6 g, pending order-4 g, ready order-4, ready order-5 g, retrying order-3 g, " +
				"retrying order-3 h, scheduled mail-1, scheduled order-2"},
			{Filter{Text: "red car"}, "scheduled order-2"},
			{Filter{Text: "red cars"}, ""},
			{Filter{Group: "g"}, "dead order-6 g, pending order-4 g, ready order-5 g, retrying order-3 g"},
			{Filter{Group: "h"}, "dead mail-6 h, ready order-4 h, retrying order-3 h"},
			{Filter{Reason: "expired"}, "dead mail-6 h"},
			{Filter{From: at(2), Until: at(5)}, "retrying order-3 g, scheduled mail-1, scheduled order-2"},
			{Filter{From: at(8)}, "dead mail-6 h, dead order-6 g"},
			{Filter{Until: at(2)}, "scheduled order-1"},
			{Filter{Text: "red", Error: "timeout", Group: "g", Prefix: "order", From: at(5)}, "dead order-6 g, ready order-5 g"},
		} {
			hits, _ := r.search(c.filter)
			if got := names(hits); got != c.want {
				t.Errorf("%+v:\n%s\nwant\n%s", c.filter, got, c.want)
			}
		}
	})
}

// In every state, a search by ID, and one by payload, must find the places that Locate finds.
func TestSearchFindsWhatLocateFinds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("one", "two", "three")
		const id, payload = `a*?[b]\`, "the payload"
		for i := range 30 { // others, most of which have no meta
			r.schedule(fmt.Sprint("other-", i), "other", at(i), nil)
		}
		same := func(state string) {
			t.Helper()
			var want []string
			places, err := lookup.Locate(t.Context(), r.Client, r.Prefix, r.Queue, id)
			if err != nil {
				t.Fatal(state, err)
			}
			for _, p := range places {
				want = append(want, fmt.Sprint(p.State, p.Group, sorted(p.Groups), p.Consumer, p.Entry, p.Letter, p.Due,
					p.Attempt, p.Error, p.Reason, p.Dead, p.Headers, p.Expires, len(p.Payload)))
			}
			for _, f := range []Filter{{IDs: []string{id}}, {Text: payload}, {Headers: map[string]string{"k": "v"}}} {
				hits, _ := r.search(f)
				var got []string
				for _, h := range hits {
					if h.State == lookup.StateReady { // Locate names the only group of a retry elsewhere
						h.Group = ""
					}
					got = append(got, fmt.Sprint(h.State, h.Group, sorted(h.Groups), h.Consumer, h.Entry, h.Letter,
						h.Due, h.Attempt, h.Error, h.Reason, h.Dead, h.Headers, h.Expires, h.Bytes))
				}
				redistest.Want(t, state+fmt.Sprintf(" by %+v", f), strings.Join(sorted(got), "\n"),
					strings.Join(sorted(want), "\n"))
			}
		}
		meta := lua.EncodeMeta(map[string]string{"k": "v"}, 5, at(1e6))
		r.Enqueue(lua.Item{ID: id, When: lua.At(at(1)), Payload: []byte(payload), Meta: meta})
		same("scheduled")
		if _, _, err := lua.Reschedule(t.Context(), r.Client, r.Keys, id, lua.After(0), lua.Durability{}); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			if _, err := lua.Drain(t.Context(), r.Client, r.Keys, 500, 1<<20); err != nil {
				return false, err.Error()
			}
			return r.Length(r.Keys.Stream) == 1, "not drained"
		})
		same("ready")
		entry := r.Take("one", "worker", 1)[0]
		r.Xack("three", r.Take("three", "other", 1)...)
		same("pending, ready and done")
		r.Take("two", "other", 1)
		fail := func(group, entry string, action lua.Action) {
			t.Helper()
			failure := lua.Failure{
				Held: lua.Held{Entry: entry}, Action: action, Delay: time.Hour, Reason: lua.ReasonDeadLetter, Error: "boom",
			}
			out, err := lua.Retry(t.Context(), r.Client, r.Keys, group, policy.Default().Attempts(), []lua.Failure{failure})
			if err != nil || out[0] == lua.Lost {
				t.Fatal(out, err)
			}
		}
		fail("one", entry, lua.ActionRetry)
		same("retrying and pending")
		fail("two", entry, lua.ActionDead)
		same("retrying and dead")
	})
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

// Data that other programs wrote must be found by what can be read of it, and must not stop a search.
func TestSearchOfDamagedData(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		for member, score := range map[string]string{
			"never": "inf", "always": "-inf", "fraction": "4000000000000.5", "exponent": "4.000000000001e12", "a\x1fb": "1",
			"parked": "8000000000000", "a\x1f\x1fall": "1", "\xff": "2", "\x1f\x1f": "3", "bare": "4",
		} {
			if member == "parked" { // it waits for its key, and is due at 4e12
				score = "4004000000000000"
			}
			r.Do("ZADD", r.Keys.Due, score, member)
		}
		for member, meta := range map[string]string{
			"never": `{"h:\u0074ier":"gold","error":"b\u006fom"}`, "always": `{"h:tier":"gold"`, "fraction": `[1]`,
			"exponent": `{"h:tier":["gold"]}`, "parked": "{\"h:tier\":\"gold\"}\x00", "bare": `null`, "\xff": "\xff",
			"orphan": `{"h:tier":"gold"}`, "a\x1f\x1fall": `{"id":"a"}`,
		} {
			r.Do("HSET", r.Keys.Meta, member, meta)
		}
		r.Do("XADD", r.Keys.Stream, "1-1", "payload", "no id")
		r.Do("XADD", r.Keys.Stream, "1-2", "id", "twice", "id", "twice again", "payload", "a", "payload", "last", "due_ms",
			"0x10")
		r.Do("XADD", r.Keys.Stream, "1-3", "x", "")
		r.Do("XADD", r.Keys.Dead, "1-1", "id", "letter", "due_ms", "x")
		for _, c := range []struct {
			filter Filter
			want   string
		}{
			{Filter{}, "dead letter, ready 1-1, ready 1-3, ready twice again, scheduled, scheduled a, " +
				"scheduled a\x1fb, scheduled always, scheduled bare, scheduled exponent, scheduled fraction, scheduled never, " +
				"scheduled parked, scheduled \xff"},
			{Filter{IDs: []string{"1-1", "twice", "twice again", "a"}}, "ready 1-1, ready twice again, scheduled a"},
			{Filter{Text: "last"}, "ready twice again"},
			{Filter{Headers: map[string]string{"tier": "gold"}}, "scheduled never"},
			{Filter{Error: "boom"}, "scheduled never"},
			{Filter{From: time.UnixMilli(4e12)}, "scheduled exponent, scheduled fraction, scheduled never, scheduled parked"},
			{Filter{From: time.UnixMilli(4e12 + 1), Until: time.UnixMilli(4e12 + 2)}, "scheduled exponent, scheduled fraction"},
			{Filter{From: time.UnixMilli(4e12), Until: time.UnixMilli(4e12 + 1)}, "scheduled parked"},
			{Filter{Until: time.UnixMilli(1)}, "scheduled always"},
		} {
			hits, _ := r.search(c.filter)
			if got := names(hits); got != c.want {
				t.Errorf("%+v:\n%q\nwant\n%q", c.filter, got, c.want)
			}
			for _, h := range hits {
				if _, err := json.Marshal(h); err != nil {
					t.Errorf("%+v has no JSON: %v", h, err)
				}
				if h.ID == "parked" && (!h.Waits || !h.Due.Equal(time.UnixMilli(4e12))) {
					t.Errorf("parked: %+v", h)
				}
			}
		}
	})
}

// A key of a wrong type in one queue must not end the search of the others. The result says that it is not complete.
func TestAKeyOfAWrongTypeHidesOneQueueOnly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		for _, key := range []string{"due", "payload", "meta", "stream", "dead"} {
			r, broken := newRig(t, s), newRig(t, s)
			r.schedule("wanted", "payload", at(1), nil)
			k := lua.NewKeys(r.Prefix, "a-first")
			broken.Do("SET", map[string]string{
				"due": k.Due, "payload": k.Payload, "meta": k.Meta, "stream": k.Stream, "dead": k.Dead,
			}[key], "of another program")
			var found []string
			f := Filter{Queues: []string{"a-first", r.Queue}}
			p, err := Run(t.Context(), r.Client, r.Prefix, f, Options{Load: 1}, func(h Hit) error {
				found = append(found, h.ID)
				return nil
			})
			redistest.Want(t, key+": found", fmt.Sprint(found), "[wanted]")
			if !errors.Is(err, lua.ErrWrongType) || p.Complete || !strings.Contains(err.Error(), "a-first") {
				t.Errorf("%s: %v, %+v", key, err, p)
			}
		}
	})
}

// An error of the caller must end the search, also one that a move of a slot explains: the hits were given already, so
// a new scan would leave them out.
func TestTheCallersErrorEndsTheSearch(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.schedule("wanted", "payload", at(1), nil)
	moving := fmt.Errorf("change: %w", r.Client.Do(t.Context(), r.Client.B().Arbitrary("EVAL").Args(
		"return redis.error_reply('TRYAGAIN Multiple keys request during rehashing of slot')", "0").Build()).Error())
	calls := 0
	_, err := Run(t.Context(), r.Client, r.Prefix, Filter{Queues: []string{r.Queue}}, Options{Load: 1}, func(Hit) error {
		calls++
		return moving
	})
	if calls != 1 || !errors.Is(err, moving) {
		t.Errorf("found was called %d times, and the search returned %v", calls, err)
	}
}

// A search by ordering key must find the key in each state, and no message whose header, payload or ID has that text.
func TestSearchFindsAKeyInEachState(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		key := func(key string) string { return fmt.Sprintf(`{"key":%q}`, key) }
		for id, meta := range map[string]string{"mine": key("c-7"), "longer": key("c-70"), "shorter": key("c-"),
			"c-7": `{"h:key":"c-7"}`, "number": `{"key":7}`, "damaged": `{"key":"c-7"`} {
			r.Enqueue(lua.Item{ID: id, When: lua.At(at(1)), Payload: []byte("c-7"), Meta: meta})
		}
		retry := lua.Member{Kind: lua.MemberRetry, ID: "again", Group: "g", Of: "1-1"}.String()
		r.Do("HSET", r.Keys.Meta, retry, `{"for":"g","attempt":"2","key":"c-7"}`)
		r.Do("ZADD", r.Keys.Due, fmt.Sprint(at(2).UnixMilli()), retry)
		r.entry("held", "", at(3), "key", "c-7")
		r.Take("g", "worker", 1)
		r.entry("new", "", at(3), "key", "c-7")
		r.entry("foreign", "c-7", at(3), "h:key", "c-7")
		r.letter("failed", "", "g", "max_attempts", "c-7", at(4), "key", "c-7")
		r.letter("other", "", "g", "max_attempts", "c-7", at(4), "key", "c-8")
		for i := range 50 { // so that a search by text scans the hash of payloads, and one by key that of metas
			r.schedule(fmt.Sprint("plain-", i), "x", at(9), nil)
		}
		r.Do("HSET", r.Keys.Payload, "orphan", "c-7")
		hits, _ := r.search(Filter{Key: "c-7"})
		redistest.Want(t, "with the key", names(hits),
			"dead failed g, pending held g, ready new, retrying again g, scheduled mine")
		redistest.Want(t, "key of a hit", hits[0].Key, "c-7")
		hits, _ = r.search(Filter{Key: "c-7", Text: "c-7"})
		redistest.Want(t, "with the key and the text", names(hits), "scheduled mine")
		hits, p := r.search(Filter{Text: "c-7", States: []lookup.State{lookup.StateScheduled}})
		redistest.Want(t, "with the text", names(hits), "scheduled c-7, scheduled damaged, scheduled longer, "+
			"scheduled mine, scheduled number, scheduled shorter")
		redistest.Want(t, "members with a payload", p.Total, int64(57))
	})
}

// Whoever types a whole ID into a search for the beginning of an ID gets that message first, before the queues are
// scanned, and once.
func TestTheExactIDIsFoundFirst(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.grow(3)
		for i := range 300 {
			part := r.Part(i % 3)
			part.Enqueue(lua.Item{ID: fmt.Sprint("order-42", i), When: lua.At(at(i))})
		}
		r.Part(2).Enqueue(lua.Item{ID: "order-42", When: lua.At(at(1))})
		hits, _ := r.search(Filter{Prefix: "order-42"})
		redistest.Want(t, "hits", len(hits), 301)
		redistest.Want(t, "the first one", hits[0].ID, "order-42")
		redistest.Want(t, "its partition", hits[0].Partition, 2)
		hits, _ = r.search(Filter{Prefix: "order-42", Until: at(1)})
		redistest.Want(t, "due before", names(hits), "scheduled order-420")
		hits, _ = r.search(Filter{Prefix: "order-42", States: []lookup.State{lookup.StateDead}})
		redistest.Want(t, "dead", len(hits), 0)
	})
}
