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

// A glance must tell the figures of all partitions. The error of a partition must not hide the others.
func TestGlanceTellsTheFiguresOfPartitions(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		idle, busy, odd := b.queue("idle"), b.queue("busy"), b.queue("odd")
		odd.do("SET", odd.k.Dead, "not this")
		busy.groups("g", "h")
		busy.do("HSET", busy.k.Policy, "held", "1")
		busy.do("HSET", busy.k.Calm, HeldField("g"), "70")
		busy.do("ZADD", busy.k.Due, "5.5", "late", "4000000000000", "later",
			"4000000000001", Member{Kind: MemberRetry, ID: "m", Group: "g", Of: "1-1"}.String())
		busy.do("HSET", busy.k.Meta, "later", "{}")
		busy.do("XADD", busy.k.Stream, "7-1", "id", "a", "payload", strings.Repeat("x", 100), "due_ms", "6")
		busy.do("XADD", busy.k.Stream, "8-1", "payload", strings.Repeat("x", 50))
		busy.do("XADD", busy.k.Dead, "9-1", "id", "old")
		busy.read("g", "c", 1)
		at := []GlanceAt{{Keys: idle.k, Newest: 100}, {Keys: odd.k}, {Keys: busy.k, Newest: 100}}
		glances, err := Glance(b.ctx, b.c, at, 10, time.Hour)
		if err != nil || len(glances) != len(at) {
			b.Fatalf("%+v, %v", glances, err)
		}
		figures := func(g Glanced) string {
			settings, _ := g.Settings.AsStrMap()
			sizes := fmt.Sprint(g.Scheduled, g.Overdue, g.Metas, g.Entries, g.Dead)
			return fmt.Sprint(sizes, " ", g.First, settings, g.Letter, len(g.Retries))
		}
		redistest.Want(b, "idle", figures(glances[0]), "0 0 0 0 0 map[]0")
		redistest.Want(b, "busy", figures(glances[2]), "3 1 1 2 1 5.5map[held:1]1")
		if !errors.Is(glances[1].Err, ErrWrongType) || !strings.Contains(glances[1].Err.Error(), odd.k.Dead) {
			b.Errorf("odd: %v", glances[1].Err)
		}
		g := glances[2]
		if age := time.Since(g.At); age < -time.Hour || age > time.Hour {
			b.Errorf("the time is %s", g.At)
		}
		groups, err := g.Groups.ToArray()
		if err != nil || len(groups) != 2 || len(g.Details) != 2 {
			b.Fatalf("%v, %+v, %v", groups, g.Details, err)
		}
		var details []string // sorted, because the in-process server lists groups in no order
		for _, one := range g.Details {
			oldest, _ := one.Oldest.ToArray()
			consumers, _ := one.Consumers.ToArray()
			details = append(details, fmt.Sprint(one.Name, " ", len(oldest) == 1, one.Notes.Usual, len(consumers) == 1))
		}
		slices.Sort(details)
		redistest.Want(b, "details", strings.Join(details, ", "), "g true 70ms true, h false -1ns false")
		if len(g.Newest) != 2 {
			b.Fatalf("%+v", g.Newest)
		}
		first, second := g.Newest[0], g.Newest[1]
		redistest.Want(b, "newest", fmt.Sprint(first.ID, " ", first.Due.IsZero(), first.Size), "8-1 true 57")
		redistest.Want(b, "the entry before", fmt.Sprint(second.ID, " ", second.Due.UnixMilli(), second.Size), "7-1 6 117")
		// A caller that knows of no letter gets the newest if it is fresh.
		at[2].Newest = 0
		for _, one := range []struct {
			known int64
			fresh time.Duration
			want  string
		}{{-1, 1e6 * time.Hour, ""}, {1, 1e6 * time.Hour, ""}, {0, 1e6 * time.Hour, "9-1"}, {0, time.Hour, ""}} {
			at[2].Letters = one.known
			again, err := Glance(b.ctx, b.c, at[2:], 1, one.fresh)
			if err != nil || again[0].Err != nil {
				b.Fatal(err, again)
			}
			redistest.Want(b, "letter", again[0].Letter, one.want)
			redistest.Want(b, "newest, and groups", fmt.Sprint(len(again[0].Newest), len(again[0].Details)), "0 1")
		}
	})
}

// A large entry, or a large member of the schedule, must not hide that a message is being given up: the letter is read,
// or the reply says that there was no room for it.
func TestGlanceTellsOfALetterBesideLargeMessages(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		large := strings.Repeat("x", 1<<20)
		reply := b.do("XADD", b.k.Dead, "*", "id", "dead")
		entry, err := reply.ToString()
		if err != nil {
			b.Fatal(err)
		}
		glance := func() string {
			list, err := Glance(b.ctx, b.c, []GlanceAt{{Keys: b.k, Newest: 100}}, 10, time.Hour)
			if err != nil || len(list) != 1 || list[0].Err != nil {
				b.Fatalf("%+v, %v", list, err)
			}
			return fmt.Sprint(list[0].Letter, " ", list[0].NoRoom)
		}
		b.do("XADD", b.k.Stream, "*", "id", "ready", "payload", large)
		redistest.Want(b, "beside a large entry", glance(), entry+" false")
		b.do("ZADD", b.k.Due, "1", large)
		redistest.Want(b, "beside a large member", glance(), " true")
	})
}

// A glance that read much stops before the next partition, so that no call is long. Further calls must reach all
// partitions.
func TestGlanceStopsAtItsBudget(t *testing.T) {
	onServers(t, func(b *testQueue) {
		var left []GlanceAt
		for i := range 5 {
			q := b.queue(fmt.Sprint("q", i))
			q.build([]string{"XADD", q.k.Stream, "5-1", "id", "m", "payload", pad(700 << 10)})
			left = append(left, GlanceAt{Keys: q.k, Newest: 4096})
		}
		var seen []int
		for len(left) > 0 {
			glances, err := Glance(b.ctx, b.c, left, 10, time.Hour)
			if err != nil {
				b.Fatal(err)
			}
			for _, g := range glances {
				redistest.Want(b, "entries", fmt.Sprint(g.Err, g.Entries, len(g.Newest)), "<nil> 1 1")
			}
			seen = append(seen, len(glances))
			left = left[len(glances):]
		}
		redistest.Want(b, "partitions of each call", fmt.Sprint(seen), "[2 2 1]")
	})
}
