package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/stream/sizes"
)

const (
	// Scores that are probably meant as seconds: they are in the years 2001 to 5138. As milliseconds they are in 1970
	// to 1973.
	fromSeconds, toSeconds = "1e9", "1e11"
	year2286, neverFrom    = "1e13", "1e15"

	overdueSlack = 10 * time.Second // a bridge checks each queue every 5 s, or 100 queues a second if there are many
	suspectsMost = 10_000           // how many suspects of one key are checked again
	metasChunk   = 20               // how many metas one call reads, because each may be large
)

// schedule checks due times.
func (l *look) schedule(p place) {
	due := p.keys.Due
	l.probeEachTwice(scores(seconds, p, due, fromSeconds, "("+toSeconds, "due time", "between 10^9 and 10^11", nil),
		// Scores from ParkedFrom to ParkedTo belong to messages that wait for their ordering key. ParkedTo begins with
		// "(", because the range excludes it.
		scores(never, p, due, neverFrom, "("+lua.ParkedFrom, "due time", "from 10^15 on", nil),
		scores(never, p, due, lua.ParkedTo[1:], "+inf", "due time", "from 8·10^15 on", nil),
		scores(farAhead, p, due, "("+year2286, "("+neverFrom, "due time", "after 10^13", nil))
	l.overdue(p)
	l.places(p)
	l.keysServed(p)
}

// places checks the waiting lines of ordering keys. Each place in a line must belong to a message that waits, with the
// same due time.
func (l *look) places(p place) {
	var empty defects
	way := &progress{look: l, step: "keys of messages of " + p.name(), key: p.keys.Turns,
		one: "note", many: "notes", about: "about ",
		all: l.number(l.c.B().Zcard().Key(p.keys.Turns).Build())}
	l.scan(func(cursor uint64) rueidis.Completed {
		return l.c.B().Zscan().Key(p.keys.Turns).Cursor(cursor).Count(pageItems).Build()
	}, func(elements []string) bool {
		var notes []string
		for i := 0; i+1 < len(elements); i += 2 {
			notes = append(notes, elements[i])
		}
		empty.add(l.emptyOf(p, notes)...)
		return way.more(len(notes))
	})
	l.confirm(emptyPlaces, p, p.keys.Turns, "", &empty, "place that nobody is in", "places that nobody is in",
		func(l *look, places []string) (left, texts []string) {
			scores := l.list(l.c.B().Zmscore().Key(p.keys.Turns).Member(places...).Build())
			for i, member := range places {
				if i < len(scores) && !scores[i].IsNil() {
					left = append(left, member)
				}
			}
			left = l.emptyOf(p, left)
			for _, member := range left {
				texts = append(texts, shown(member))
			}
			return left, texts
		})
}

// emptyOf returns those of the given members of a turns key in which no message waits.
func (l *look) emptyOf(p place, candidates []string) (empty []string) {
	var places, members []string
	var due []float64
	for _, candidate := range candidates {
		if member, at, ok := lua.ParsePlace(candidate); ok {
			places, members, due = append(places, candidate), append(members, member), append(due, at)
		}
	}
	if len(members) == 0 {
		return nil
	}
	for i, one := range l.list(l.c.B().Zmscore().Key(p.keys.Due).Member(members...).Build()) {
		score, err := one.AsFloat64()
		if at, waits := lua.DueScore(score); err != nil || !waits || at != due[i] {
			empty = append(empty, places[i])
		}
	}
	return empty
}

// keysServed checks for messages that wait for their ordering key while no live bridge has a protocol level that serves
// keys. If no bridge is alive at all, noBridge reports it.
func (l *look) keysServed(p place) {
	l.probeEachTwice(func(l *look) *Finding {
		n := l.number(l.c.B().Zcount().Key(p.keys.Due).Min(lua.ParkedFrom).Max(lua.ParkedTo).Build())
		if n == 0 {
			return nil
		}
		live := l.live()
		if len(live) == 0 || slices.ContainsFunc(live, func(b view.Heartbeat) bool { return b.Identity.Level >= lua.LevelKeys }) {
			return nil
		}
		return l.counted(keysUnserved, p, p.keys.Due, "", n, "message waits for its key", "messages wait for their key")
	})
}

// recurrences checks for recurrences that no bridge plans.
func (l *look) recurrences(p place) {
	if l.number(l.c.B().Hlen().Key(p.keys.Recurring).Build()) == 0 {
		return
	}
	l.probeEachTwice(func(l *look) *Finding {
		var some []string
		for _, state := range ask(l, func(ctx context.Context) ([]planner.State, error) {
			return planner.New(l.c, l.Prefix, "", nil).List(ctx, p.queue)
		}) {
			if !state.Unplanned.IsZero() {
				some = append(some, fmt.Sprintf("%s: not since %s", shown(state.Spec.Name), state.Unplanned.Format(time.RFC3339)))
			}
		}
		return l.counted(notPlanned, p, p.keys.Planned, "", int64(len(some)), "recurrence is not planned",
			"recurrences are not planned", some...)
	})
}

// overdue checks the head of the schedule. If the head changes between two checks, a bridge drains the queue, and the
// messages are only late.
func (l *look) overdue(p place) {
	firstHead := "" // the head of the schedule at the first check
	slack := overdueAfter(l.partitions())
	l.probeEachTwice(func(l *look) *Finding {
		now := l.serverTime()
		n, some := l.between(p.keys.Due, "-inf", "("+fromSeconds)
		others, list := l.between(p.keys.Due, toSeconds, ms(now.Add(-slack)))
		some = append(some, list...)
		if len(some) == 0 || firstHead != "" && some[0] != firstHead {
			return nil
		}
		firstHead = some[0]
		c, found := overdue, plural(n+others, "message is", "messages are")+" overdue"
		if l.text(l.c.B().Hget().Key(p.keys.Policy).Field(policy.SettingHeld).Build()) == "1" {
			c, found = heldOverdue, found+", and held"
		} else if sizes.FlowOf(l.fields(p.keys.Policy)).Limited() {
			c = limited
		}
		return l.finding(c, p, p.keys.Due, "", n+others, found, some...)
	})
}

// bodies checks the members of the schedule, their metas and their payloads.
func (l *look) bodies(p place) {
	l.members(p)
	l.metas(p)
	l.orphans(p)
}

// defects are members with a suspected defect: the first suspectsMost of them, and the number of all.
type defects struct {
	members []string
	count   int64
}

// add counts members, and keeps them while there are at most suspectsMost.
func (d *defects) add(members ...string) {
	for _, member := range members {
		d.count++
		if len(d.members) < suspectsMost {
			d.members = append(d.members, member)
		}
	}
}

// keep replaces the members by those that are left, and returns the new count.
func (d *defects) keep(left []string) int64 {
	d.members, d.count = left, d.count-int64(len(d.members)-len(left))
	if len(left) == 0 {
		d.count = 0
	}
	return d.count
}

// confirm records members as suspects and checks them again. still returns the members that are still wrong, with a
// text for each. one and many are the noun for the members in the finding.
func (l *look) confirm(c *Check, p place, key, group string, d *defects, one, many string,
	still func(l *look, members []string) (left, texts []string)) {
	if d.count == 0 {
		return
	}
	l.probeEachTwice(func(l *look) *Finding {
		var left, texts []string
		for some := range slices.Chunk(d.members, pageItems) {
			some, wrong := still(l, some)
			left, texts = append(left, some...), append(texts, wrong...)
		}
		return l.counted(c, p, key, group, d.keep(left), one, many, texts...)
	})
}

// members checks the members that are not plain message IDs: retries, and malformed ones.
func (l *look) members(p place) {
	var bodiless, bad defects
	retries := map[string]*defects{} // by group
	all := l.number(l.c.B().Zcard().Key(p.keys.Due).Build())
	way := &progress{look: l, step: "schedule of " + p.name(), key: p.keys.Due, all: all, one: "member", many: "members",
		about: "about "}
	l.scan(func(cursor uint64) rueidis.Completed {
		return l.c.B().Zscan().Key(p.keys.Due).Cursor(cursor).Count(pageItems).Build()
	}, func(elements []string) bool {
		var odd []string
		for i := 0; i+1 < len(elements); i += 2 {
			if !isPlain(elements[i]) {
				odd = append(odd, elements[i])
			}
		}
		for some := range slices.Chunk(odd, metasChunk) {
			metas := l.metasOf(p, some)
			for i, member := range some {
				switch meta, isRetry := metas[i], strings.Contains(member, lua.Separator); {
				case meta == nil && isRetry:
					bodiless.add(member)
				case malformed(member, meta) != "":
					if meta == nil { // if the member has a meta, metas reports it
						bad.add(member)
					}
				case isRetry:
					if group := metaField(*meta, lua.FieldFor); group != "" {
						if retries[group] == nil {
							retries[group] = &defects{}
						}
						retries[group].add(member)
					}
				}
			}
		}
		return way.more(len(elements) / 2)
	})
	// Members of retries are unique. So a retry that was seen without a meta, and is still scheduled, has lost its
	// meta.
	stillWithout := func(l *look, members []string) (left, texts []string) {
		metas, there := l.metasOf(p, members), l.scheduled(p, members)
		for i, member := range members {
			if metas[i] == nil && there[i] {
				left = append(left, member)
			}
		}
		return left, left
	}
	l.confirm(lostMeta, p, p.keys.Meta, "", &bodiless, "retry without meta", "retries without meta", stillWithout)
	l.confirm(badMeta, p, p.keys.Due, "", &bad, "member that is no message ID", "members that are no message ID", stillWithout)
	l.lostGroups(p, retries)
}

// lostGroups checks for retries of groups that do not exist.
func (l *look) lostGroups(p place, retries map[string]*defects) {
	for _, group := range slices.Sorted(maps.Keys(retries)) {
		l.probeEachTwice(func(l *look) *Finding {
			if _, there := l.stream(p.keys.Stream).Group(group); there {
				return nil
			}
			var left []string
			for some := range slices.Chunk(retries[group].members, pageItems) {
				there := l.scheduled(p, some)
				for i, member := range some {
					if there[i] {
						left = append(left, member)
					}
				}
			}
			return l.listed(lostGroup, p, p.keys.Stream, group, left, "retry for "+shown(group), "retries for "+shown(group))
		})
	}
}

// metasOf returns the meta of each member, or nil for a member without a meta.
func (l *look) metasOf(p place, members []string) []*string {
	metas := make([]*string, len(members))
	for i, one := range l.list(l.c.B().Hmget().Key(p.keys.Meta).Field(members...).Build()) {
		if text, err := one.ToString(); err == nil {
			metas[i] = &text
		}
	}
	return metas
}

// scheduled reports for each member whether it is in the schedule.
func (l *look) scheduled(p place, members []string) []bool {
	there := make([]bool, len(members))
	for i, score := range l.list(l.c.B().Zmscore().Key(p.keys.Due).Member(members...).Build()) {
		there[i] = !score.IsNil()
	}
	return there
}

// metas checks for metas from which no entry can be made.
func (l *look) metas(p place) {
	n := l.number(l.c.B().Hlen().Key(p.keys.Meta).Build())
	if n == 0 {
		return
	}
	var bad defects
	page := l.pageOf(p.keys.Meta, n)
	way := &progress{look: l, step: "meta of " + p.name(), key: p.keys.Meta, all: n,
		one: "field", many: "fields", about: "about "}
	l.scan(func(cursor uint64) rueidis.Completed {
		return l.c.B().Hscan().Key(p.keys.Meta).Cursor(cursor).Count(page).Build()
	}, func(elements []string) bool {
		for i := 0; i+1 < len(elements); i += 2 {
			if malformed(elements[i], &elements[i+1]) != "" {
				bad.add(elements[i])
			}
		}
		return way.more(len(elements) / 2)
	})
	l.confirm(badMeta, p, p.keys.Meta, "", &bad, "message is malformed", "messages are malformed",
		func(l *look, members []string) (left, texts []string) {
			for some := range slices.Chunk(members, metasChunk) {
				metas, there := l.metasOf(p, some), l.scheduled(p, some) // orphans reports a meta without a member
				for i, member := range some {
					if metas[i] == nil || !there[i] {
						continue
					}
					if wrong := malformed(member, metas[i]); wrong != "" {
						left, texts = append(left, member), append(texts, shown(member)+": "+wrong)
					}
				}
			}
			return left, texts
		})
}
