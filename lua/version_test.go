package lua

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
)

// keyed returns a message with an ordering key.
func keyed(id, key string, when When) Item {
	return Item{ID: id, When: when, Payload: []byte("p"),
		Meta: EncodeMeta(nil, 0, time.Time{}, FieldValue{Field: FieldKey, Value: key})}
}

func (b *testQueue) versions(ids ...string) []Version {
	b.Helper()
	versions, err := Versions(b.ctx, b.c, b.k, ids)
	if err != nil {
		b.Fatal(err)
	}
	return versions
}

func (b *testQueue) cancelVersions(ids []string, versions ...Version) []bool {
	b.Helper()
	done, err := CancelVersions(b.ctx, b.c, b.k, ids, versions, Durability{})
	if err != nil {
		b.Fatal(err)
	}
	return done
}

// CancelVersions does not cancel a message that was replaced, moved, or written anew meanwhile: it stays, with all its
// data.
func TestCancelTakesAwayOneVersionAlone(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		hour := When(fmt.Sprint(b.now() + 3_600_000))
		meta := EncodeMeta(map[string]string{"h": "1"}, 0, time.Time{})
		old := Item{ID: "m", When: hour, Payload: []byte("old"), Meta: Marked(meta), Dedup: Window(time.Hour)}
		with := func(change func(*Item)) Item {
			item := old
			item.Dedup = Replace
			change(&item)
			return item
		}
		for _, c := range []struct {
			what string
			next Item
			same bool
		}{
			{"the same", with(func(*Item) {}), true},
			{"another payload of that length", with(func(i *Item) { i.Payload = []byte("new") }), true},
			{"another due time", with(func(i *Item) { i.When = When(fmt.Sprint(b.now() + 3_500_000)) }),
				false},
			{"a longer payload", with(func(i *Item) { i.Payload = []byte("old+") }), false},
			{"another meta", with(func(i *Item) { i.Meta = EncodeMeta(map[string]string{"h": "2"}, 0, time.Time{}) }), false},
			{"no meta", with(func(i *Item) { i.Meta = "" }), false},
			{"a meta that says the same", with(func(i *Item) { i.Meta = Marked(meta) }), false},
		} {
			b.do("DEL", b.k.Due, b.k.Payload, b.k.Meta, b.k.Seen)
			b.enqueue(old, Item{ID: "other", When: hour, Payload: []byte("p")})
			seen := b.versions("m", "none", "other")
			redistest.Want(b, c.what+": version of nothing", seen[1], Version(""))
			b.enqueue(c.next)
			before := fmt.Sprint(b.dump())
			wantList(b, c.what, b.cancelVersions([]string{"m", "none"}, seen[0], seen[0]), c.same, false)
			redistest.Want(b, c.what+": changed nothing", fmt.Sprint(b.dump()) == before, !c.same)
			// "" cancels any version of m, and seen[2] is the current version of the other message.
			wantList(b, c.what+": then", b.cancelVersions([]string{"m", "other"}, "", seen[2]), !c.same, true)
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
			redistest.Want(b, c.what+": windows", b.count("ZCARD", b.k.Seen), 0)
		}
	})
}

// A message that waits for its key keeps its version, and a call that does not cancel it leaves its place in line.
func TestAVersionWaitsForItsKey(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		at := When(fmt.Sprint(b.now() - 1000))
		b.enqueue(keyed("first", "k", at))
		b.enqueue(keyed("m", "k", at))
		seen := b.versions("m")
		b.drain(10)
		line := func() string { return strings.Join(b.texts("ZRANGE", b.k.Turns, "0", "-1"), " ") }
		if !strings.Contains(line(), "wait") {
			b.Fatalf("it does not wait: %q", line())
		}
		redistest.Want(b, "version while it waits", b.versions("m")[0], seen[0])
		before := line()
		wantList(b, "another version", b.cancelVersions([]string{"m"}, seen[0]+"x"), false)
		redistest.Want(b, "line", line(), before)
		wantList(b, "its version", b.cancelVersions([]string{"m"}, seen[0]), true)
		redistest.Want(b, "it is still in line", strings.Contains(line(), "wait"), false)
	})
}

// Many messages of any size are asked for in several calls, and each has its own answer.
func TestVersionsOfManyMessagesTakeSeveralCalls(t *testing.T) {
	t.Parallel()
	b := newTestQueue(t, redistest.Shared(t))
	var ids []string
	var items []Item
	for i := range 60 {
		ids = append(ids, fmt.Sprint("m", i, pad(i%3*500)))
		item := Item{ID: ids[i], When: After(time.Hour), Payload: []byte(pad(i % 2 << 20)),
			Meta: EncodeMeta(map[string]string{"h": pad(i % 5 * 20_000)}, 0, time.Time{})}
		if i%7 != 3 {
			items = append(items, item)
		}
	}
	b.enqueue(items...)
	seen := b.versions(ids...)
	for i, id := range ids {
		redistest.Want(t, fmt.Sprint("version of ", i), seen[i], b.versions(id)[0])
	}
	given, want := slices.Clone(seen), make([]bool, len(ids))
	for i := range ids {
		switch {
		case i%4 == 1:
			given[i] = seen[(i+1)%len(ids)]
		case i%4 == 2:
			given[i] = ""
		}
		want[i] = seen[i] != "" && (given[i] == "" || given[i] == seen[i])
	}
	wantList(t, "cancelled", b.cancelVersions(ids, given...), want...)
	for i, is := range b.versions(ids...) {
		redistest.Want(t, fmt.Sprint(i, " is gone"), is == "", want[i] || seen[i] == "")
	}
}

// The mark does not change the meaning of a meta, and no two are equal.
func TestVersionMarkDoesNotChangeTheMeta(t *testing.T) {
	t.Parallel()
	b := newTestQueue(t, redistest.Shared(t))
	for _, meta := range []string{"", EncodeMeta(map[string]string{"a": "b\n \t"}, 3, time.Time{})} {
		one, other := Marked(meta), Marked(meta)
		if one == other || len(one) > max(2, len(meta))+64 {
			t.Errorf("marks %q and %q", one, other)
		}
		var text, marked map[string]string
		if meta != "" {
			_ = json.Unmarshal([]byte(meta), &text)
		}
		if err := json.Unmarshal([]byte(one), &marked); err != nil || fmt.Sprint(marked) != fmt.Sprint(text) {
			t.Errorf("%q says %v (%v), want %v", one, marked, err, text)
		}
		b.do("DEL", b.k.Stream)
		b.enqueue(Item{ID: "m", When: After(0), Meta: meta})
		b.enqueue(Item{ID: "m", When: After(time.Hour), Meta: one})
		b.makeDueAll()
		b.drain(10)
		entries := b.raw(b.k.Stream)
		if len(entries) != 2 || len(entries[0].FieldValues) != len(entries[1].FieldValues) {
			t.Errorf("entries without and with a mark: %v", entries)
		}
	}
}

// The functions library of the release before takes a version for an unknown ID. It cancels the message whatever its
// version is, as it does for a client of its own release.
func TestAnOlderCancelTakesAVersionForAnUnknownID(t *testing.T) {
	t.Parallel()
	b := newTestQueue(t, redistest.Shared(t))
	b.enqueue(Item{ID: "m", When: After(time.Hour), Payload: []byte("old")})
	seen := b.versions("m")
	b.enqueue(Item{ID: "m", When: After(2 * time.Hour), Payload: []byte("new"), Dedup: Replace})
	old := rueidis.NewLuaScript(before.Scripts(t, before.Release)["cancel"])
	reply, err := old.Exec(b.ctx, b.c, []string{b.k.Due, b.k.Payload, b.k.Meta, b.k.Seen, b.k.Policy, b.k.History},
		[]string{"m", string(seen[0]), "client"}).AsIntSlice()
	redistest.Want(t, "reply", fmt.Sprint(reply, err), "[1 0] <nil>")
}
