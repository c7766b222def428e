package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/keeper"
)

// orphans checks for bodies (payloads and metas) without a member.
func (l *look) orphans(p place) {
	hashes := []string{p.keys.Payload, p.keys.Meta}
	found := make([]defects, len(hashes))
	for h, hash := range hashes {
		n := l.number(l.c.B().Hlen().Key(hash).Build())
		way := &progress{look: l, step: "bodies of " + p.name(), key: hash, all: n,
			one: "field", many: "fields", about: "about "}
		for cursor := "0"; n > 0; {
			page := l.scanOrphans(p, hash, cursor)
			if l.denied("bodies without a member") {
				return
			}
			found[h].add(page.orphans...)
			if cursor = page.next; !way.more(page.looked) || cursor == "0" {
				break
			}
		}
	}
	if found[0].count+found[1].count == 0 {
		return
	}
	l.probeEachTwice(func(l *look) *Finding {
		count, some := int64(0), []string(nil)
		for h, hash := range hashes {
			var left []string
			for chunk := range slices.Chunk(found[h].members, scriptItems) {
				left = append(left, l.stillOrphans(p, hash, chunk)...)
			}
			count += found[h].keep(left)
			for _, field := range left[:min(examples, len(left))] {
				some = append(some, shown(field)+" in "+hash)
			}
		}
		return l.counted(orphan, p, p.keys.Payload, "", count, "field without a scheduled message",
			"fields without a scheduled message", some...).mendedBy(l.deleteOrphans(p, count, found[0].members, found[1].members))
	})
}

// deleteOrphans returns a repair that deletes bodies without a member: the payloads and metas that the doctor has
// checked twice. count is the number of all bodies without a member.
func (e *examination) deleteOrphans(p place, count int64, payloads, metas []string) mend {
	return func(ctx context.Context) (string, error) {
		n, err := keeper.DeleteOrphans(ctx, e.c, p.keys, payloads, metas, e.OrphanAge, func(d time.Duration) error {
			return e.wait(ctx, "waiting whether bodies get a member yet", d)
		})
		did := fmt.Sprintf("deleted %s of %s without a member", plural(int64(n), "body", "bodies"), p.name())
		if rest := count - int64(len(payloads)+len(metas)); rest > 0 {
			did += fmt.Sprintf("; about %d more are left for another run", rest)
		}
		return did, err
	}
}

// orphansPage is the result of one step of a scan through a hash.
type orphansPage struct {
	orphans []string // fields without a member
	looked  int
	next    string // cursor
}

// scanOrphans makes one step of a scan through a hash.
func (l *look) scanOrphans(p place, hash, cursor string) orphansPage {
	return ask(l, func(ctx context.Context) (page orphansPage, err error) {
		page.orphans, page.looked, page.next, err = lua.ScanOrphans(ctx, l.c, p.keys.Due, hash, cursor, scriptItems)
		return page, err
	})
}

// stillOrphans returns those of the fields that are still in the hash and have no member.
func (l *look) stillOrphans(p place, hash string, fields []string) []string {
	return ask(l, func(ctx context.Context) ([]string, error) {
		return lua.StillOrphans(ctx, l.c, p.keys.Due, hash, fields)
	})
}
