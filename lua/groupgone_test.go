package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A retry was added to the stream whether or not its group still existed. The other groups skipped it, and then it was
// freed: the message was lost.
func TestWhatIsForAGroupThatIsGoneBecomesADeadLetter(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, left := range []string{"another group", "no group", "no stream"} {
			b := b.queue(strings.ReplaceAll(left, " ", "-"))
			b.groups("old", "new")
			b.enqueue(Item{ID: "m", When: After(0), Payload: []byte("body"), Meta: EncodeMeta(map[string]string{"k": "v"}, 5,
				time.Time{})})
			b.read("new", "c", 1)
			b.fail("old", b.read("old", "c", 1)[0].EntryID, ActionRetry, "", "boom")
			b.do("HSET", b.k.Meta, "short", `{"id":"short","for":"old","attempt":"3","error":"e"}`, "kept",
				`{"for":"new","id":"kept"}`)
			b.do("ZADD", b.k.Due, "5", "short", "6", "kept", "7", "plain")
			b.makeDue()
			switch left {
			case "another group":
				b.do("XGROUP", "DESTROY", b.k.Stream, "old")
			case "no group":
				b.do("XGROUP", "DESTROY", b.k.Stream, "old")
				b.do("XGROUP", "DESTROY", b.k.Stream, "new")
			case "no stream":
				b.do("DEL", b.k.Stream)
			}
			dies := map[bool]int{true: 2, false: 3}[left == "another group"]
			d := b.drain(10)
			redistest.Want(b, "moved, buried, refusal", fmt.Sprint(d.Moved, d.Dead, d.Refusal), fmt.Sprint(4-dies, dies, ""))
			var got []string
			for _, l := range b.entries(b.k.Dead) {
				got = append(got, fmt.Sprint(l.ID, " ", l.Reason, " ", l.Group, " ", l.Attempt, " ", l.Error, " ",
					string(l.Payload), l.Headers, l.For, l.Dead.IsZero()))
			}
			slices.Sort(got)
			wantList(b, "dead letters with "+left, got, append([]string{"kept group_gone new 1  map[]false"}[:dies-2],
				"m group_gone old 2 boom bodymap[k:v]false", "short group_gone old 3 e map[]false")...)
		}
	})
}

// The groups are read once per call, and only if a message is for a single group. A server that refuses to list them
// stops the batch, and nothing is dead-lettered or added twice.
func TestDrainAsksForGroupsOnce(t *testing.T) {
	everywhere(t, func(b *rig) {
		if b.inProcess() {
			return // no statistics of commands, and no users
		}
		b.groups("g")
		asked := func() int {
			for line := range strings.SplitSeq(b.text("INFO", "commandstats"), "\r\n") {
				if calls, ok := strings.CutPrefix(line, "cmdstat_xinfo|groups:calls="); ok {
					n := 0
					fmt.Sscanf(calls, "%d", &n)
					return n
				}
			}
			return 0
		}
		before := asked()
		b.do("ZADD", b.k.Due, "1", "plain", "2", "other")
		redistest.Want(b, "moved", b.drain(10).Moved, 2)
		redistest.Want(b, "asked for plain messages", asked()-before, 0)
		for i := range 5 {
			b.do("HSET", b.k.Meta, fmt.Sprint("r", i), `{"id":"r","for":"g","attempt":"3","error":"e"}`, fmt.Sprint("gone", i),
				`{"for":"gone"}`)
			b.do("ZADD", b.k.Due, "1", fmt.Sprint("r", i), "2", fmt.Sprint("gone", i))
		}
		d := b.drain(10)
		redistest.Want(b, "moved, buried", fmt.Sprint(d.Moved, d.Dead), "5 5")
		redistest.Want(b, "asked for ten that are for one group", asked()-before, 1)
	})
}

// A message that a producer schedules for one group passes through drain, too.
func TestWhatIsForAGroupIsNeverAddedAtOnce(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		wantList(b, "verdicts", b.enqueue(Item{ID: "m", When: After(0), Meta: `{"for":"gone"}`},
			Item{ID: "n", When: After(0), Meta: `{"for":"g"}`},
			Item{ID: "o", When: After(0), Meta: `{"for":""}`}), Scheduled, Scheduled, Ready)
		d := b.drain(10)
		redistest.Want(b, "moved, buried", fmt.Sprint(d.Moved, d.Dead), "1 1")
	})
}

// A dead letter redriven for a missing group was deleted, scheduled, skipped by all other groups, and freed.
func TestRedriveRefusesAGroupThatIsGone(t *testing.T) {
	everywhere(t, func(b *rig) {
		letter := b.bury("old", "m", "")
		b.groups("new")
		b.read("new", "c", 10)
		b.do("XGROUP", "DESTROY", b.k.Stream, "old")
		before := b.dump()
		again := Redrive{Letter: letter.EntryID, When: After(0)}
		for _, to := range []string{"", "old", "neither", "\xff", "new "} {
			again.To = to
			wantList(b, "to "+to, b.redrive(again), RedriveGroupGone)
		}
		for key, now := range b.dump() {
			redistest.Want(b, key, now, before[key])
		}
		again.To = "new"
		wantList(b, "to new", b.redrive(again), RedriveScheduled)
		redistest.Want(b, "drained", b.drain(1).Moved, 1)
		e := b.read("new", "c", 1)[0]
		redistest.Want(b, "delivered", e.ID+" "+string(e.Payload)+" "+e.For, "m payload of m new")
	})
}

// A letter that no group was given is redriven for all groups, or for the one that is named.
func TestRedriveOfALetterForAllToOneGroup(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("a", "b")
		letter := b.text("XADD", b.k.Dead, "*", "id", "m", "payload", "p", "reason", ReasonExpired)
		wantList(b, "outcome", b.redrive(Redrive{Letter: letter, When: After(0), To: "b"}), RedriveScheduled)
		b.drain(1)
		redistest.Want(b, "for", b.read("b", "c", 1)[0].For, "b")
	})
}

// An unreadable meta is in the letter as text. A redrive left it behind silently: headers and limits were gone.
func TestRedriveOfUnreadableMetaNeedsFields(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		b.do("HSET", b.k.Meta, "m", `{"h:tenant":"acme","max_attempts":5}`)
		b.do("ZADD", b.k.Due, "1", "m", "2", "")
		redistest.Want(b, "buried", b.drain(2).Dead, 2)
		raw := b.text("XADD", b.k.Dead, "*", "id", "n", "payload", "", "reason", ReasonMalformed, "raw", "id\nn\na\nb")
		letters := b.entries(b.k.Dead)
		before, edited := b.dump(), []byte("p")
		for _, again := range []Redrive{{Letter: letters[0].EntryID}, {Letter: letters[0].EntryID, Payload: &edited},
			{Letter: raw}} {
			again.When = After(0)
			wantList(b, "outcome", b.redrive(again), RedriveUnreadable)
		}
		for key, now := range b.dump() {
			redistest.Want(b, key, now, before[key])
		}
		wantList(b, "without any meta", b.redrive(Redrive{Letter: letters[1].EntryID, When: After(0)}), RedriveScheduled)
		wantList(b, "with fields", b.redrive(Redrive{Letter: letters[0].EntryID, When: After(0), Fields: `{"h:tenant":"acme"}`},
			Redrive{Letter: raw, When: After(0), Fields: `{}`}),
			RedriveScheduled, RedriveScheduled)
		redistest.Want(b, "drained", b.drain(10).Moved, 3)
	})
}

// Fields called meta and raw are a letter's own only if it is malformed. Those of a message were dropped.
func TestRedriveKeepsFieldsCalledMetaAndRaw(t *testing.T) {
	everywhere(t, func(b *rig) {
		letter := b.bury("g", "m", `{"meta":"of the message","raw":"too"}`)
		wantList(b, "outcome", b.redrive(Redrive{Letter: letter.EntryID, When: After(0)}), RedriveScheduled)
		b.drain(1)
		e := b.read("g", "c", 1)[0]
		redistest.Want(b, "fields", e.Extra["meta"]+" "+e.Extra["raw"], "of the message too")
	})
}

// A letter with more fields than an entry can carry was redriven, died at once, and from then on had all of them as
// text.
func TestRedriveRefusesWhatCannotBeDelivered(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		add := []string{"XADD", b.k.Dead, "*", "id", "m", "payload", "p", "group", "g"}
		for i := range 9 {
			add = append(add, fmt.Sprint("x", i), strings.Repeat("x", 60_000))
		}
		letter := b.text(add...)
		wantList(b, "outcome", b.redrive(Redrive{Letter: letter, When: After(0)}), RedriveUnreadable)
		redistest.Want(b, "letters", b.count("XLEN", b.k.Dead), 1)
	})
}

// An empty group would mean every group, and meta cannot hold a name that is not UTF-8: nothing is retried, released,
// dead-lettered or reclaimed for such a group.
func TestExitsRefuseGroupsThatNoMessageCanBeFor(t *testing.T) {
	everywhere(t, func(b *rig) {
		for i, group := range []string{"", "\xff", "a\nb", "a\x00", "a" + Separator + "b", strings.Repeat("x", MaxGroupBytes+1)} {
			b := b.queue(fmt.Sprint("q", i))
			b.enqueue(Item{ID: "m", When: After(0)})
			b.do("XGROUP", "CREATE", b.k.Stream, group, "0")
			e := b.read(group, "c", 1)[0]
			before := b.dump()
			for _, action := range []Action{ActionRetry, ActionDead, ActionRelease} {
				if out, err := Retry(b.ctx, b.c, b.k, group, Attempts{Max: 3, Delays: []time.Duration{time.Second}},
					[]Failure{{Held: Held{Entry: e.EntryID}, Action: action, Delay: -1}}); err == nil ||
					!strings.Contains(err.Error(), "group is empty") {
					b.Errorf("%q: %v, %v", group, out, err)
				}
			}
			if _, err := Reclaim(b.ctx, b.c, b.k,
				ReclaimArgs{Group: group, Attempts: Attempts{Max: 3, Delays: []time.Duration{time.Second}}, Limit: 10,
					MaxBytes: 1000}); err == nil || !strings.Contains(err.Error(), "group is empty") {
				b.Errorf("reclaim of %q: %v", group, err)
			}
			for key, now := range b.dump() {
				redistest.Want(b, fmt.Sprintf("%s after %q", key, group), now, before[key])
			}
		}
	})
}
