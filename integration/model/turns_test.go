package model

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/duestream/duestream/lua"
)

var keys = []string{"k1", "k1", "k 2/ü"}

// skipKeys sets what happens to a key while a retry waits.
func (r *run) skipKeys(policy string) {
	r.plain("key_failure "+policy, [][]string{{"HSET", r.k.Policy, "key_failure", policy}},
		func(q *Queue) { q.Skip = policy == "skip" })
}

// toldKey returns the key that a worker reports for an entry. It is mostly the right one.
func (r *run) toldKey(entry string) string {
	if e := r.q.entry(entry); e != nil && e.key() != "" && !seldom(r, "no key") {
		return e.key()
	}
	if seldom(r, "any key") {
		return pick(r, "key", keys...)
	}
	return ""
}

func (r *run) passTurns() {
	r.unless(len(r.q.Turns)+len(r.q.Scheduled) == 0)
	r.passTurnsUpTo(pick(r, "limit", 100, 1, 2))
}

func (r *run) passTurnsUpTo(limit int) lua.TurnsPassed {
	from := r.turns
	r.turns = step(r, fmt.Sprintf("pass turns from %q, %d, %d", from.Cursor, from.Rank, limit),
		func(ctx context.Context) (lua.TurnsPassed, error) {
			return lua.PassTurns(ctx, r.c, r.k, from, limit)
		}, func(q *Queue, _ lua.TurnsPassed) lua.TurnsPassed { return q.PassTurns(from, limit) })
	return r.turns
}

// loseTurns deletes all or some of the notes about keys, as a user might.
func (r *run) loseTurns() {
	r.unless(len(r.q.Turns) == 0 || !seldom(r, "lose turns"))
	notes := slices.Sorted(maps.Keys(r.q.Turns))
	if pick(r, "some", true, false) {
		notes = notes[pick(r, "from", indices(notes)...):]
	}
	r.plain(fmt.Sprintf("ZREM of %d turns", len(notes)), [][]string{append([]string{"ZREM", r.k.Turns}, notes...)},
		func(q *Queue) {
			for _, note := range notes {
				delete(q.Turns, note)
			}
		})
	r.lostTurn = true
}

// oneAtATime checks that at most one message of each key is in flight: in an entry that some group is not done with,
// or in a retry that keeps the key. Like the ledger, it does not look at the notes about keys.
func (r *run) oneAtATime() {
	if r.lostTurn {
		return
	}
	flying := map[string]map[string]bool{}
	add := func(key, serial string) {
		if key == "" || serial == "" {
			return
		}
		if flying[key] == nil {
			flying[key] = map[string]bool{}
		}
		flying[key][serial] = true
	}
	q := r.seen.Queue
	for _, e := range q.Stream {
		serial := serialOf(e.Fields[lua.FieldPayload])
		r.keyOf[e.ID] = e.key()
		for name, g := range q.Groups {
			if g.needs(e.ID) && meant(e.Fields[lua.FieldFor], name) {
				add(e.key(), serial)
			}
		}
		if len(q.Groups) == 0 {
			add(e.key(), serial)
		}
	}
	for _, g := range q.Groups { // also entries whose body is lost
		for entry := range g.Pending {
			add(r.keyOf[entry], r.book.serials[entry])
		}
	}
	for member, m := range q.Scheduled {
		if lua.ParseMember(member).Kind == lua.MemberRetry && !r.q.Skip {
			add(m.key(), serialOf(m.Payload))
		}
	}
	for key, serials := range flying {
		if len(serials) > 1 {
			r.refuse("in flight at once with the key %q: %v", key, slices.Sorted(maps.Keys(serials)))
		}
	}
}

// inOrder checks that no message that waits in line was due before one with the same key that became ready.
func (r *run) inOrder(newest string) {
	for _, e := range r.seen.Stream {
		key, due := e.key(), 0
		due, _ = strconv.Atoi(e.Fields[lua.FieldDue])
		if key == "" || !less(newest, e.ID) || e.Fields[lua.FieldFor] != "" {
			continue
		}
		for note := range r.seen.Turns {
			of, at, member, waits := parseWait(note)
			if m, there := r.seen.Scheduled[member]; waits && of == key && there && m.Due == parked+at && at < float64(due) {
				r.refuse("%q was due before %q, which went on with the key %q", member, e.Fields[lua.FieldID], key)
			}
		}
	}
}

// deliverAll makes everything that is due ready, delivers it, and acknowledges it with plain XACK, one message of a
// key after the other.
func (r *run) deliverAll() {
	for round := 0; ; round++ {
		r.turns = lua.TurnsPassed{}
		for t := r.passTurnsUpTo(3); t.Cursor != "" || t.Rank > 0; t = r.passTurnsUpTo(3) {
		}
		for r.drainUpTo(3, plenty).Wait >= 0 {
		}
		r.audit()
		for _, group := range slices.Sorted(maps.Keys(r.q.Groups)) {
			r.deliver(group, consumers[0], 1000)
			for _, id := range r.pending(group) { // so that trim or the sweep of keys has to free all of it
				r.xack(group, []lua.Held{{Entry: id}})
			}
		}
		switch {
		case len(r.q.Scheduled)+len(r.q.Turns) == 0:
			return
		case round > 200:
			r.refuse("these wait for ever: %v", strings.Join(r.q.lines(0), "\n"))
		}
	}
}
