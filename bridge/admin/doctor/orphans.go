package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/keeper"
)

// orphans looks for bodies without a member.
func (e *examination) orphans(ctx context.Context, p place) error {
	hashes := []string{p.keys.Payload, p.keys.Meta}
	found := make([]defects, len(hashes))
	for h, hash := range hashes {
		n, err := e.number(ctx, e.c.B().Hlen().Key(hash).Build())
		if err != nil {
			return err
		}
		looked := int64(0)
		for cursor := "0"; n > 0; {
			orphans, fields, next, err := e.scanOrphans(ctx, p, hash, cursor)
			if err != nil {
				if e.denied(err, "bodies without a member") {
					return nil
				}
				return err
			}
			for _, field := range orphans {
				found[h].add(field)
			}
			looked += int64(fields)
			e.Progress("bodies of "+lua.PartitionName(p.queue, p.partition), int(min(looked, n)), int(n))
			if cursor = next; cursor == "0" {
				break
			}
			if e.Quick && looked >= quickItems {
				e.leftOut("%s: looked at about %d of %s (without --quick: all)", hash, looked, plural(n, "field", "fields"))
				break
			}
		}
	}
	if found[0].count+found[1].count == 0 {
		return nil
	}
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		count, some := int64(0), []string(nil)
		for h, hash := range hashes {
			var left []string
			for chunk := range slices.Chunk(found[h].members, scriptItems) {
				still, err := e.stillOrphans(ctx, p, hash, chunk)
				if err != nil {
					return nil, err
				}
				left = append(left, still...)
			}
			found[h].count -= int64(len(found[h].members) - len(left))
			found[h].members = left
			if len(left) > 0 {
				count += found[h].count
			}
			for _, field := range left[:min(examples, len(left))] {
				some = append(some, shown(field)+" in "+hash)
			}
		}
		if count == 0 {
			return nil, nil
		}
		f := e.finding(orphan, p, p.keys.Payload, "", count, plural(count, "field", "fields")+" without a scheduled message",
			some...)
		f.mend = func(ctx context.Context) (string, error) {
			n, err := keeper.DeleteOrphans(ctx, e.c, p.keys, found[0].members, found[1].members, e.OrphanAge,
				func(d time.Duration) error {
					return e.wait(ctx, "waiting whether bodies get a member yet", d)
				})
			did := fmt.Sprintf("deleted %s of %s without a member", plural(int64(n), "body", "bodies"),
				lua.PartitionName(p.queue, p.partition))
			if rest := count - int64(len(found[0].members)+len(found[1].members)); rest > 0 {
				did += fmt.Sprintf("; about %d more are left for another run", rest)
			}
			return did, err
		}
		return f, nil
	})
}

func (e *examination) scanOrphans(ctx context.Context, p place, hash, cursor string) (orphans []string, looked int, next string,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return lua.ScanOrphans(ctx, e.c, p.keys.Due, hash, cursor, scriptItems)
}

func (e *examination) stillOrphans(ctx context.Context, p place, hash string, fields []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return lua.StillOrphans(ctx, e.c, p.keys.Due, hash, fields)
}
