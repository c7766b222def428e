package doctor

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

const (
	// Scores of which people thought as seconds: 2001 to the year 5138. As milliseconds they are of 1970 to 1973.
	fromSeconds, toSeconds = "1e9", "1e11"
	year2286, neverFrom    = "1e13", "1e15"

	overdueSlack = 10 * time.Second // a bridge looks at every queue every 5 s, or at 100 a second
	suspectsMost = 10_000           // of one hash, or one set, that are looked at again
)

// schedule looks at due times.
func (e *examination) schedule(ctx context.Context, p place) error {
	due := p.keys.Due
	for _, one := range []struct {
		check           *Check
		from, to, found string
	}{
		{seconds, fromSeconds, "(" + toSeconds, "between 10^9 and 10^11"},
		{never, neverFrom, "+inf", "from 10^15 on"},
		{farAhead, "(" + year2286, "(" + neverFrom, "after 10^13"},
	} {
		if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
			n, some, err := e.between(ctx, due, one.from, one.to)
			if err != nil || n == 0 {
				return nil, err
			}
			return e.finding(one.check, p, due, "", n, plural(n, "due time ", "due times ")+one.found, some...), nil
		}); err != nil {
			return err
		}
	}
	return e.overdue(ctx, p)
}

// overdue looks at the head of the schedule. What is late while the head moves on is only late.
func (e *examination) overdue(ctx context.Context, p place) error {
	first := ""
	slack := overdueSlack + time.Duration(e.partitions()/100)*time.Second
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		now, err := view.ServerTime(ctx, e.c)
		if err != nil {
			return nil, err
		}
		var head string
		var count int64
		var some []string
		for _, r := range [][2]string{{"-inf", "(" + fromSeconds}, {toSeconds, ms(now.Add(-slack))}} {
			n, list, err := e.between(ctx, p.keys.Due, r[0], r[1])
			if err != nil {
				return nil, err
			}
			count += n
			some = append(some, list...)
		}
		if len(some) > 0 {
			head = some[0]
		}
		if head == "" || first != "" && head != first {
			return nil, nil
		}
		first = head
		replies, err := e.do(ctx, e.c.B().Hget().Key(p.keys.Policy).Field(stream.SettingHeld).Build())
		if err != nil {
			return nil, err
		}
		if held, _ := replies[0].ToString(); held == "1" {
			return e.finding(heldOverdue, p, p.keys.Due, "", count,
				plural(count, "message is", "messages are")+" overdue, and held", some...), nil
		}
		return e.finding(overdue, p, p.keys.Due, "", count, plural(count, "message is", "messages are")+" overdue", some...), nil
	})
}

// bodies looks at members and what belongs to them.
func (e *examination) bodies(ctx context.Context, p place) error {
	if err := e.members(ctx, p); err != nil {
		return err
	}
	if err := e.metas(ctx, p); err != nil {
		return err
	}
	return e.orphans(ctx, p)
}

// defects are members of which something is wrong, that have to be looked at again.
type defects struct {
	members []string
	count   int64
}

func (d *defects) add(member string) {
	if d.count++; len(d.members) < suspectsMost {
		d.members = append(d.members, member)
	}
}

// confirm suspects members, and looks again at those. still returns which of them are as they were, each with what is wrong.
func (e *examination) confirm(ctx context.Context, c *Check, p place, key string, d *defects, found func(n int64) string,
	still func(ctx context.Context, members []string) (left, texts []string, err error), group ...string) error {
	if d.count == 0 {
		return nil
	}
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		var left, texts []string
		for some := range slices.Chunk(d.members, pageItems) {
			l, t, err := still(ctx, some)
			if err != nil {
				return nil, err
			}
			left, texts = append(left, l...), append(texts, t...)
		}
		gone := len(d.members) - len(left)
		d.members, d.count = left, d.count-int64(gone)
		if len(left) == 0 {
			return nil, nil
		}
		return e.finding(c, p, key, strings.Join(group, ""), d.count, found(d.count), texts...), nil
	})
}

// members looks at the members that are no plain message ID: retries, and what is malformed.
func (e *examination) members(ctx context.Context, p place) error {
	var bodiless, bad defects
	retries := map[string]*defects{} // by group
	looked, all := int64(0), int64(0)
	var err error
	if all, err = e.number(ctx, e.c.B().Zcard().Key(p.keys.Due).Build()); err != nil {
		return err
	}
	err = e.scan(ctx, func(cursor uint64) rueidis.Completed {
		return e.c.B().Zscan().Key(p.keys.Due).Cursor(cursor).Count(pageItems).Build()
	}, func(elements []string) (bool, error) {
		var odd []string
		for i := 0; i+1 < len(elements); i += 2 {
			if !isPlain(elements[i]) {
				odd = append(odd, elements[i])
			}
		}
		for some := range slices.Chunk(odd, 20) { // each may have a large meta
			metas, err := e.metasOf(ctx, p, some)
			if err != nil {
				return false, err
			}
			for i, member := range some {
				switch meta, isRetry := metas[i], strings.Contains(member, lua.Separator); {
				case meta == nil && isRetry:
					bodiless.add(member)
				case malformed(member, meta) != "":
					if meta == nil { // else the look at the metas finds it
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
		looked += int64(len(elements) / 2)
		e.Progress("schedule of "+lua.PartitionName(p.queue, p.partition), int(min(looked, all)), int(all))
		if e.Quick && looked >= quickItems && looked < all {
			e.leftOut("%s: looked at about %d of %s (without --quick: all)", p.keys.Due, looked, plural(all, "member", "members"))
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	// A retry's name is never used again: still there after it was seen without meta, it was without it.
	stillWithout := func(ctx context.Context, members []string) (left, texts []string, err error) {
		metas, err := e.metasOf(ctx, p, members)
		if err != nil {
			return nil, nil, err
		}
		there, err := e.scheduled(ctx, p, members)
		for i, member := range members {
			if metas[i] == nil && there[i] {
				left, texts = append(left, member), append(texts, member)
			}
		}
		return left, texts, err
	}
	if err := e.confirm(ctx, lostMeta, p, p.keys.Meta, &bodiless,
		func(n int64) string { return plural(n, "retry", "retries") + " without meta" }, stillWithout); err != nil {
		return err
	}
	if err := e.confirm(ctx, badMeta, p, p.keys.Due, &bad,
		func(n int64) string {
			return plural(n, "member that is", "members that are") +
				" no message ID"
		}, stillWithout); err != nil {
		return err
	}
	return e.lostGroups(ctx, p, retries)
}

// lostGroups looks for retries of groups that do not exist.
func (e *examination) lostGroups(ctx context.Context, p place, retries map[string]*defects) error {
	for _, group := range slices.Sorted(maps.Keys(retries)) {
		if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
			entries, err := view.ReadStream(ctx, e.c, p.keys.Stream)
			if _, there := entries.Group(group); err != nil || there {
				return nil, err
			}
			var left []string
			for some := range slices.Chunk(retries[group].members, pageItems) {
				there, err := e.scheduled(ctx, p, some)
				if err != nil {
					return nil, err
				}
				for i, member := range some {
					if there[i] {
						left = append(left, member)
					}
				}
			}
			if len(left) == 0 {
				return nil, nil
			}
			n := int64(len(left))
			return e.finding(lostGroup, p, p.keys.Stream, group, n, plural(n, "retry", "retries")+" for "+shown(group),
				left...), nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// metasOf returns the metas of members; nil where there is none.
func (e *examination) metasOf(ctx context.Context, p place, members []string) ([]*string, error) {
	replies, err := e.do(ctx, e.c.B().Hmget().Key(p.keys.Meta).Field(members...).Build())
	if err != nil {
		return nil, err
	}
	list, err := replies[0].ToArray()
	metas := make([]*string, len(members))
	for i := range list {
		if text, err := list[i].ToString(); err == nil {
			metas[i] = &text
		}
	}
	return metas, err
}

// scheduled says which members are in the schedule.
func (e *examination) scheduled(ctx context.Context, p place, members []string) ([]bool, error) {
	replies, err := e.do(ctx, e.c.B().Zmscore().Key(p.keys.Due).Member(members...).Build())
	if err != nil {
		return nil, err
	}
	list, err := replies[0].ToArray()
	there := make([]bool, len(members))
	for i := range list {
		there[i] = !list[i].IsNil()
	}
	return there, err
}

// metas looks for metas that no entry can be made of.
func (e *examination) metas(ctx context.Context, p place) error {
	n, err := e.number(ctx, e.c.B().Hlen().Key(p.keys.Meta).Build())
	if err != nil || n == 0 {
		return err
	}
	var bad defects
	looked, page := int64(0), e.pageOf(ctx, p.keys.Meta, n)
	err = e.scan(ctx, func(cursor uint64) rueidis.Completed {
		return e.c.B().Hscan().Key(p.keys.Meta).Cursor(cursor).Count(page).Build()
	}, func(elements []string) (bool, error) {
		for i := 0; i+1 < len(elements); i += 2 {
			if malformed(elements[i], &elements[i+1]) != "" {
				bad.add(elements[i])
			}
		}
		looked += int64(len(elements) / 2)
		e.Progress("meta of "+lua.PartitionName(p.queue, p.partition), int(min(looked, n)), int(n))
		if e.Quick && looked >= quickItems && looked < n {
			e.leftOut("%s: looked at about %d of %s (without --quick: all)", p.keys.Meta, looked, plural(n, "field", "fields"))
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	return e.confirm(ctx, badMeta, p, p.keys.Meta, &bad,
		func(n int64) string { return plural(n, "message is", "messages are") + " malformed" },
		func(ctx context.Context, members []string) (left, texts []string, err error) {
			for some := range slices.Chunk(members, 20) {
				metas, err := e.metasOf(ctx, p, some)
				if err != nil {
					return nil, nil, err
				}
				there, err := e.scheduled(ctx, p, some) // else it is a body without member
				if err != nil {
					return nil, nil, err
				}
				for i, member := range some {
					if metas[i] == nil || !there[i] {
						continue
					}
					if wrong := malformed(member, metas[i]); wrong != "" {
						left, texts = append(left, member), append(texts, shown(member)+": "+wrong)
					}
				}
			}
			return left, texts, nil
		})
}
