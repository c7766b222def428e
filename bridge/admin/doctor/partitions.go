package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
)

func (e *examination) beyond(ctx context.Context, p place) error {
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		counts, err := lua.ReadCounts(ctx, e.c, e.globals, p.queue)
		if err != nil || counts.Latest() > p.partition {
			return nil, err
		}
		replies, err := e.do(ctx, e.c.B().Zcard().Key(p.keys.Due).Build(), e.c.B().Xlen().Key(p.keys.Stream).Build(),
			e.c.B().Xlen().Key(p.keys.Dead).Build())
		if err != nil {
			return nil, err
		}
		var n [3]int64
		for i := range n {
			n[i], _ = replies[i].AsInt64()
		}
		if n[0]+n[1]+n[2] == 0 {
			return nil, nil
		}
		f := e.finding(beyond, p, p.keys.Due, "", n[0]+n[1]+n[2],
			fmt.Sprintf("partition %d holds %d scheduled, %s and %s; the registry knows of %s",
				p.partition, n[0], plural(n[1], "entry", "entries"), plural(n[2], "dead letter",
					"dead letters"), plural(int64(counts.Latest()), "partition", "partitions")))
		f.mend = e.grow(p.queue, p.partition+1)
		if n[1]+n[2] == 0 {
			f.mend = e.gather(p)
		}
		return f, nil
	})
}

// gather is the repair of a partition that holds nothing but scheduled messages: a count would be for ever.
func (e *examination) gather(p place) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		err := scheduler.Gather(ctx, e.c, e.Prefix, p.queue, p.partition)
		return "its messages are in the partitions that they belong to", err
	}
}

// compare looks for partitions that are not served as the others are.
func (e *examination) compare(ctx context.Context, queue string, partitions int) error {
	if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		groups := make([][]string, partitions)
		all := map[string]bool{}
		for i := range groups {
			entries, err := view.ReadStream(ctx, e.c, e.place(queue, i).keys.Stream)
			if err != nil {
				return nil, err
			}
			for _, name := range entries.Names() {
				groups[i] = append(groups[i], name)
				all[name] = true
			}
		}
		var missing []string
		for _, g := range slices.Sorted(maps.Keys(all)) {
			for i := range groups {
				if !slices.Contains(groups[i], g) {
					missing = append(missing, fmt.Sprintf("%s in partition %d", shown(g), i))
				}
			}
		}
		if len(missing) == 0 {
			return nil, nil
		}
		f := e.finding(partitionGroup, place{queue: queue}, "", "", int64(len(missing)),
			strings.Join(missing[:min(examples, len(missing))], ", ")+": no such group")
		f.mend = e.grow(queue, partitions)
		return f, nil
	}); err != nil {
		return err
	}
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		var first map[string]string
		var differ []string
		for i := range partitions {
			p := e.place(queue, i)
			replies, err := e.do(ctx, e.c.B().Hgetall().Key(p.keys.Policy).Build())
			if err != nil {
				return nil, err
			}
			fields, err := replies[0].AsStrMap()
			if err != nil {
				return nil, err
			}
			if i == 0 {
				first = fields
			} else if !maps.Equal(first, fields) {
				differ = append(differ, p.keys.Policy)
			}
		}
		if len(differ) == 0 {
			return nil, nil
		}
		f := e.finding(partitionPolicy, place{queue: queue}, differ[0], "", int64(len(differ)),
			plural(int64(len(differ)), "partition has", "partitions have")+" other settings than partition 0", differ...)
		f.mend = e.grow(queue, partitions)
		return f, nil
	})
}
