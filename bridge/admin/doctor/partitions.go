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
	"github.com/duestream/duestream/stream"
)

// checkUncounted checks a partition that the registry does not count.
func (l *look) checkUncounted(p place) {
	l.probeEachTwice(func(l *look) *Finding {
		counts := ask(l, func(ctx context.Context) (lua.Counts, error) { return lua.ReadCounts(ctx, l.c, l.globals, p.queue) })
		if counts.Latest() > p.partition {
			return nil
		}
		var scheduled, entries, letters int64
		l.read(view.Number(l.c.B().Zcard().Key(p.keys.Due).Build(), &scheduled),
			view.Number(l.c.B().Xlen().Key(p.keys.Stream).Build(), &entries),
			view.Number(l.c.B().Xlen().Key(p.keys.Dead).Build(), &letters))
		all := scheduled + entries + letters
		if all == 0 {
			return nil
		}
		repair := l.include(p)
		if entries+letters == 0 {
			repair = l.gather(p)
		}
		return l.finding(uncountedPartition, p, p.keys.Due, "", all, fmt.Sprintf(
			"partition %d holds %d scheduled, %s and %s; the registry knows of %s", p.partition, scheduled,
			plural(entries, "entry", "entries"), plural(letters, "dead letter", "dead letters"),
			plural(int64(counts.Latest()), "partition", "partitions"))).mendedBy(repair)
	})
}

// include returns a repair for an uncounted partition that holds entries or dead letters: the queue grows to include
// it. Like every growth, the repair is refused with ErrKeyed if the queue holds messages with an ordering key.
func (e *examination) include(p place) mend {
	return func(ctx context.Context) (string, error) {
		counts, err := stream.Partitions(ctx, e.c, e.Prefix, p.queue)
		if err == nil && counts.Latest() <= p.partition {
			err = stream.CheckKeys(ctx, e.c, e.Prefix, p.queue)
		}
		if err != nil {
			return "", fmt.Errorf("grow to %d partitions: %w", p.partition+1, err)
		}
		return e.grow(p.queue, p.partition+1)(ctx)
	}
}

// gather returns a repair for an uncounted partition that holds only scheduled messages: it moves them to the
// partitions where they belong. Registering the partition instead could not be undone.
func (e *examination) gather(p place) mend {
	return func(ctx context.Context) (string, error) {
		err := scheduler.Gather(ctx, e.c, e.Prefix, p.queue, p.partition)
		return "its messages are in the partitions that they belong to", err
	}
}

// compare checks that all partitions have the same groups and settings.
func (l *look) compare(queue string, partitions int) {
	l.probeEachTwice(func(l *look) *Finding {
		groups := make([][]string, partitions)
		all := map[string]bool{}
		for i := range groups {
			groups[i] = l.stream(l.place(queue, i).keys.Stream).Names()
			for _, name := range groups[i] {
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
			return nil
		}
		return l.finding(partitionGroup, place{queue: queue}, "", "", int64(len(missing)),
			strings.Join(missing[:min(examples, len(missing))], ", ")+": no such group").mendedBy(l.grow(queue, partitions))
	}, func(l *look) *Finding {
		settings := l.fields(l.place(queue, 0).keys.Policy)
		var differ []string
		for i := 1; i < partitions; i++ {
			if key := l.place(queue, i).keys.Policy; !maps.Equal(settings, l.fields(key)) {
				differ = append(differ, key)
			}
		}
		firstKey := ""
		if len(differ) > 0 {
			firstKey = differ[0]
		}
		return l.listed(partitionPolicy, place{queue: queue}, firstKey, "", differ,
			"partition has other settings than partition 0", "partitions have other settings than partition 0").
			mendedBy(l.grow(queue, partitions))
	})
}
