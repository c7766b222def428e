package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
)

const (
	walkCount  = 1000 // keys that a server scans in one request
	quickPages = 10   // scan requests to each server with Config.Quick
)

// kinds are the keys of a partition, each with the end of its name and its type, in the order of lua.Keys.All.
var kinds = []struct{ name, want string }{
	{"due", "zset"}, {"payload", "hash"}, {"meta", "hash"}, {"stream", "stream"}, {"dead", "stream"}, {"wake", "stream"},
	{"policy", "hash"}, {"seen", "zset"}, {"calm", "hash"}, {"recurring", "hash"}, {"planned", "hash"},
	{"history", "stream"}, {"rate", "string"}, {"turns", "zset"}, {"leases", "zset"},
	{"push", "hash"}, {"changes", "stream"},
	{"progress", "hash"},
}

// holding are the keys whose existence means that there is a queue. The others hold settings and tokens.
var holding = map[string]bool{"due": true, "payload": true, "meta": true, "stream": true, "dead": true, "seen": true,
	"recurring": true}

func (e *examination) place(queue string, partition int) place {
	return place{queue, partition, lua.NewKeys(e.Prefix, lua.PartitionName(queue, partition))}
}

// shared checks the keys that all queues share, and reads the registry.
func (l *look) shared() {
	g := l.globals
	l.types(place{}, []string{g.Queues, g.Defaults, g.Bridges, g.Wake, g.Tokens},
		[]string{"hash", "hash", "zset", "stream", "hash"})
	l.tokens(place{keys: lua.Keys{Wake: g.Wake}})
	l.ids(place{}, aheadOfTime, g.Wake)
	l.settingsOf(place{}, g.Defaults, true)
	l.registry = map[string]lua.Counts{}
	l.scan(func(cursor uint64) rueidis.Completed {
		return l.c.B().Hscan().Key(g.Queues).Cursor(cursor).Count(pageItems).Build()
	}, func(elements []string) bool {
		for i := 0; i+1 < len(elements); i += 2 {
			queue, counts := elements[i], elements[i+1]
			if queue == lua.RegistryDeleted || strings.HasPrefix(queue, lua.DeletedCounts("")) {
				continue
			}
			validName := lua.CheckQueue(queue) == nil
			if validName {
				l.registry[queue] = lua.ParseCounts(counts)
			}
			asked := len(l.Queues) == 0 || slices.Contains(l.Queues, queue)
			if asked && !(validName && countsAreSound(counts)) {
				l.badEntry(queue, validName)
			}
		}
		return l.err == nil
	})
	if errors.Is(l.err, lua.ErrWrongType) {
		l.err = nil
		l.leftOut("the registry: %s holds something else", g.Queues)
	}
}

// countsAreSound reports whether a value of the registry is a valid list of partition counts.
func countsAreSound(text string) bool {
	for one := range strings.SplitSeq(text, ",") {
		if n, err := strconv.Atoi(one); err != nil || lua.CheckPartitions(n) != nil {
			return false
		}
	}
	return true
}

// badEntry checks again an entry of the registry that was wrong. validName reports whether its queue's name is valid.
func (l *look) badEntry(queue string, validName bool) {
	l.probeEachTwice(func(l *look) *Finding {
		var there int64
		var counts string
		l.read(view.Number(l.c.B().Hexists().Key(l.globals.Queues).Field(queue).Build(), &there),
			view.Into(l.c.B().Hget().Key(l.globals.Queues).Field(queue).Build(), &counts, rueidis.RedisResult.ToString))
		if there == 0 || validName && countsAreSound(counts) {
			return nil // the entry was removed or corrected
		}
		p := place{}
		if validName {
			p.queue = queue
		}
		f := l.finding(badRegistry, p, l.globals.Queues, "", 1, fmt.Sprintf("%s has the value %s", shown(queue),
			shown(counts)))
		if validName {
			f.mend = func(ctx context.Context) (string, error) {
				_, err := lua.RegisterCounts(ctx, l.c, l.globals, map[string]lua.Counts{queue: {1}})
				return "wrote the partition counts of " + queue + " anew", err
			}
		}
		return f
	})
}

// walk scans all keys of all servers, for unregistered queues and for keys of other programs.
func (l *look) walk() {
	if len(l.Queues) > 0 {
		return
	}
	l.walked = true
	all, seen := 0, 0
	for _, node := range l.masters {
		n, _ := node.Do(l.ctx, node.B().Dbsize().Build()).AsInt64()
		all += int(n)
	}
	foreign, some := int64(0), []string{}
	for _, address := range slices.Sorted(maps.Keys(l.masters)) {
		l.scanKeys(l.masters[address], func(keys []string) {
			for _, key := range keys {
				if !l.noteKey(key) {
					foreign++
					if len(some) < examples {
						some = append(some, key)
					}
				}
			}
			seen += walkCount
			l.Progress("keys", min(seen, all), all)
		})
		if l.denied("keys that nobody registered") {
			return
		}
	}
	if foreign == 0 || l.err != nil {
		return
	}
	found := plural(foreign, "key that is none of duestream's", "keys that are none of duestream's")
	if i := strings.LastIndex(some[0], ":{"); i > len(l.Prefix) && strings.Contains(some[0], "}:") {
		found += fmt.Sprintf("; the first may be of the prefix %s", shown(some[0][:i]))
	}
	l.add(l.serverFinding(foreignKey, foreign, found, some...))
}

// scanKeys scans the keys of a server that begin with the prefix. With Config.Quick it scans only some of them.
func (l *look) scanKeys(node rueidis.Client, take func(keys []string)) {
	for cursor, pages := uint64(0), 0; ; pages++ {
		if l.Quick && pages == quickPages {
			l.leftOut("queues that nobody registered, and keys that are nobody's: "+
				"looked at %d keys of each server (without --quick: all)", quickPages*walkCount)
			return
		}
		page := ask(l, func(ctx context.Context) (rueidis.ScanEntry, error) {
			page, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(l.Prefix+":*").Count(walkCount).Build()).AsScanEntry()
			return page, lua.Classify("SCAN", err)
		})
		if l.err != nil {
			return
		}
		take(page.Elements)
		if cursor = page.Cursor; cursor == 0 {
			return
		}
	}
}

// noteKey records the partition that a key belongs to. It returns false if the key is none of duestream's.
func (e *examination) noteKey(key string) bool {
	g := e.globals
	if key == g.Queues || key == g.Defaults || key == g.Bridges || key == g.Wake || key == g.Tokens ||
		strings.HasPrefix(key, g.Bucket("")) {
		return true
	}
	rest, ok := strings.CutPrefix(key, e.Prefix+":{")
	name, kind, cut := strings.Cut(rest, "}:")
	queue, partition, named := lua.SplitPartition(name)
	known := slices.ContainsFunc(kinds, func(k struct{ name, want string }) bool { return k.name == kind })
	expires := slices.ContainsFunc([]string{"result:", "rate:", "once:"}, func(start string) bool {
		return strings.HasPrefix(kind, start)
	})
	if ok && cut && named && expires {
		return true // it needs no registered queue
	}
	if !ok || !cut || !named || !known {
		return false
	}
	if holding[kind] {
		e.notePartition(queue, partition)
	}
	return true
}

// notePartition records that a partition has keys.
func (e *examination) notePartition(queue string, partition int) {
	if e.found[queue] == nil {
		e.found[queue] = map[int]bool{}
	}
	e.found[queue][partition] = true
}

// partitions returns the number of partitions in the registry. Bridges serve partitions in turn, so the more partitions
// there are, the longer each one waits.
func (e *examination) partitions() (n int) {
	for _, counts := range e.registry {
		n += counts.Latest()
	}
	return n
}

// queues examines every queue.
func (l *look) queues() {
	names := slices.Clone(l.Queues)
	if len(names) == 0 {
		names = slices.Concat(slices.Collect(maps.Keys(l.registry)), slices.Collect(maps.Keys(l.found)))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for i, queue := range names {
		l.Progress("queues", i, len(names))
		if !l.walked {
			l.seek(queue)
		}
		if l.err != nil {
			return
		}
		if l.registry[queue] == nil && len(l.found[queue]) == 0 {
			l.onlySettings(queue)
			continue
		}
		if l.queue(queue); l.err != nil {
			l.err = fmt.Errorf("queue %s: %w", queue, l.err)
			return
		}
	}
	l.report.Queues = len(names)
}

// onlySettings examines a queue that is not registered and holds nothing. If it has settings, it was prepared for use.
// Otherwise there is no such queue.
func (l *look) onlySettings(queue string) {
	at := l.place(queue, 0)
	n := l.number(l.c.B().Exists().Key(at.keys.Policy).Build())
	if n == 0 {
		l.fail(fmt.Errorf("queue %s: %w", queue, ErrNoQueue))
		return
	}
	l.leftOut("messages of %s: it has settings, and nothing else; its first message registers it", queue)
	l.partition(at)
}

// seek finds the partitions of a queue that have keys, without a scan of all keys.
func (l *look) seek(queue string) {
	keys := make([]int64, lua.MaxPartitions)
	var questions []view.Question
	for i := range keys {
		k := l.place(queue, i).keys
		questions = append(questions,
			view.Number(l.c.B().Exists().Key(k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Seen, k.Recurring).Build(), &keys[i]))
	}
	for some := range slices.Chunk(questions, pageItems) {
		l.read(some...)
	}
	for i, n := range keys {
		if n > 0 {
			l.notePartition(queue, i)
		}
	}
}

// queue examines one queue, in all partitions that exist.
func (l *look) queue(queue string) {
	count := l.registry[queue].Latest()
	foundUpTo := 0 // one more than the last partition that has keys
	for partition := range l.found[queue] {
		foundUpTo = max(foundUpTo, partition+1)
	}
	if l.registry[queue] == nil {
		// Partitions beyond this count may have keys, although the queue was never grown to them.
		grown, err := scheduler.GrownTo(l.ctx, l.c, l.Prefix, queue)
		l.fail(err)
		l.unregistered(queue, grown)
		count = grown
	}
	for partition := count; partition < foundUpTo; partition++ {
		if l.found[queue][partition] {
			l.checkUncounted(l.place(queue, partition))
		}
	}
	if count > 1 {
		l.compare(queue, count)
	}
	for partition := range count {
		l.partition(l.place(queue, partition))
	}
	l.report.Partitions += count
}

// grow returns a repair that registers partitions and completes their groups and settings. If the queue has a larger
// count by the time of the repair, it keeps that count.
func (e *examination) grow(queue string, partitions int) mend {
	return func(ctx context.Context) (string, error) {
		counts, err := stream.Partitions(ctx, e.c, e.Prefix, queue)
		if err == nil {
			counts, err = stream.Grow(ctx, e.c, e.Prefix, queue, max(partitions, counts.Latest()), nil)
		}
		return fmt.Sprintf("%s is registered with %s, all with the same groups and settings", queue,
			plural(int64(counts.Latest()), "partition", "partitions")), err
	}
}

// unregistered reports a queue that has keys in the given number of partitions and is not in the registry.
func (l *look) unregistered(queue string, partitions int) {
	l.probeEachTwice(func(l *look) *Finding {
		if l.number(l.c.B().Hexists().Key(l.globals.Queues).Field(queue).Build()) == 1 {
			return nil
		}
		return l.finding(unregistered, l.place(queue, partitions-1), "", "", int64(partitions),
			"it has "+plural(int64(partitions), "partition", "partitions")).mendedBy(l.grow(queue, partitions))
	})
}
