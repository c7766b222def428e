package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
)

const (
	walkCount  = 1000 // keys that a server looks at in one request
	quickPages = 10   // of these, per server, when it is to be quick
)

// kinds are the keys of a partition: the end of the name, and the type.
var kinds = []struct{ name, want string }{
	{"due", "zset"}, {"payload", "hash"}, {"meta", "hash"}, {"stream", "stream"}, {"dead", "stream"}, {"wake",
		"stream"}, {"policy", "hash"}, {"seen", "zset"}, {"calm", "hash"},
}

// holding are those whose being there makes a queue: the others are settings and tokens.
var holding = map[string]bool{"due": true, "payload": true, "meta": true, "stream": true, "dead": true, "seen": true}

func keysOf(k lua.Keys) []string {
	return []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Wake, k.Policy, k.Seen, k.Calm}
}

func (e *examination) place(queue string, partition int) place {
	return place{queue, partition, lua.NewKeys(e.Prefix, lua.PartitionName(queue, partition))}
}

// shared looks at the keys that belong to no queue, and reads the registry.
func (e *examination) shared(ctx context.Context) error {
	g := e.globals
	keys, want := []string{g.Queues, g.Defaults, g.Bridges, g.Wake}, []string{"hash", "hash", "zset", "stream"}
	if err := e.types(ctx, place{}, keys, want); err != nil {
		return err
	}
	if err := e.tokens(ctx, place{keys: lua.Keys{Wake: g.Wake}}); err != nil {
		return err
	}
	if err := e.ids(ctx, place{}, g.Wake); err != nil {
		return err
	}
	if err := e.settingsOf(ctx, place{}, g.Defaults, true); err != nil {
		return err
	}
	e.registry = map[string]lua.Counts{}
	err := e.scan(ctx, func(cursor uint64) rueidis.Completed {
		return e.c.B().Hscan().Key(g.Queues).Cursor(cursor).Count(pageItems).Build()
	}, func(elements []string) (bool, error) {
		for i := 0; i+1 < len(elements); i += 2 {
			queue, counts := elements[i], elements[i+1]
			if queue == lua.RegistryDeleted {
				continue
			}
			named := lua.CheckQueue(queue) == nil
			if named {
				e.registry[queue] = lua.ParseCounts(counts)
			}
			if len(e.Queues) > 0 && !slices.Contains(e.Queues, queue) || named && countsAreSound(counts) {
				continue
			}
			if err := e.badEntry(ctx, queue, named); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if isType(err) {
		e.leftOut("the registry: %s holds something else", g.Queues)
		return nil
	}
	return err
}

// countsAreSound says whether all of a registry's value counts.
func countsAreSound(text string) bool {
	for one := range strings.SplitSeq(text, ",") {
		if n, err := strconv.Atoi(one); err != nil || lua.CheckPartitions(n) != nil {
			return false
		}
	}
	return true
}

func (e *examination) badEntry(ctx context.Context, queue string, named bool) error {
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		replies, err := e.do(ctx, e.c.B().Hget().Key(e.globals.Queues).Field(queue).Build())
		if err != nil {
			return nil, err
		}
		counts, err := replies[0].ToString()
		if err != nil || named && countsAreSound(counts) {
			return nil, nil // gone, or mended
		}
		p := place{}
		if named {
			p.queue = queue
		}
		f := e.finding(badRegistry, p, e.globals.Queues, "", 1, fmt.Sprintf("%s has the value %s", shown(queue), shown(counts)))
		if f.Repair = ""; named {
			f.Repair = badRegistry.Mends
			f.mend = func(ctx context.Context) (string, error) {
				_, err := lua.RegisterCounts(ctx, e.c, e.globals, map[string]lua.Counts{queue: {1}})
				return "wrote the partition counts of " + queue + " anew", err
			}
		}
		return f, nil
	})
}

// walk goes through all keys of all servers for queues that nobody registered, and for keys that are nobody's.
func (e *examination) walk(ctx context.Context) error {
	if len(e.Queues) > 0 {
		return nil
	}
	e.walked = true
	foreign, some := int64(0), []string{}
	all, seen := 0, 0
	for _, node := range e.masters {
		n, _ := node.Do(ctx, node.B().Dbsize().Build()).AsInt64()
		all += int(n)
	}
	for _, address := range slices.Sorted(maps.Keys(e.masters)) {
		node := e.masters[address]
		for cursor, pages := uint64(0), 0; ; pages++ {
			if e.Quick && pages == quickPages {
				e.leftOut("queues that nobody registered, and keys that are nobody's: "+
					"looked at %d keys of each server (without --quick: all)", quickPages*walkCount)
				break
			}
			call, cancel := context.WithTimeout(ctx, callTimeout)
			page, err := node.Do(call, node.B().Scan().Cursor(cursor).Match(e.Prefix+":*").Count(walkCount).Build()).AsScanEntry()
			cancel()
			if err = lua.Classify("SCAN", err); err != nil {
				if e.denied(err, "keys that nobody registered") {
					return nil
				}
				return err
			}
			for _, key := range page.Elements {
				if !e.sort(key) {
					if foreign++; len(some) < examples {
						some = append(some, key)
					}
				}
			}
			seen += walkCount
			e.Progress("keys", min(seen, all), all)
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	if foreign > 0 {
		found := plural(foreign, "key that is none of duestream's", "keys that are none of duestream's")
		if i := strings.LastIndex(some[0], ":{"); i > len(e.Prefix) && strings.Contains(some[0], "}:") {
			found += fmt.Sprintf("; the first may be of the prefix %s", shown(some[0][:i]))
		}
		e.report.Findings = append(e.report.Findings, *e.finding(foreignKey, place{}, "", "", foreign, found, some...))
	}
	return nil
}

// sort notes whose key it is; false: nobody's.
func (e *examination) sort(key string) bool {
	g := e.globals
	if key == g.Queues || key == g.Defaults || key == g.Bridges || key == g.Wake {
		return true
	}
	rest, ok := strings.CutPrefix(key, e.Prefix+":{")
	name, kind, cut := strings.Cut(rest, "}:")
	queue, partition, named := lua.SplitPartition(name)
	known := slices.ContainsFunc(kinds, func(k struct{ name, want string }) bool { return k.name == kind })
	if !ok || !cut || !named || !known {
		return false
	}
	if holding[kind] {
		if e.found[queue] == nil {
			e.found[queue] = map[int]bool{}
		}
		e.found[queue][partition] = true
	}
	return true
}

// partitions is how many there are by the registry: what bridges do in turn takes the longer the more there are.
func (e *examination) partitions() (n int) {
	for _, counts := range e.registry {
		n += counts.Latest()
	}
	return n
}

// queues looks at every queue.
func (e *examination) queues(ctx context.Context) error {
	names := slices.Clone(e.Queues)
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(e.registry))
		for queue := range e.found {
			if e.registry[queue] == nil {
				names = append(names, queue)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for i, queue := range names {
		e.Progress("queues", i, len(names))
		if !e.walked {
			if err := e.seek(ctx, queue); err != nil {
				return err
			}
		}
		if e.registry[queue] == nil && len(e.found[queue]) == 0 {
			if err := e.onlySettings(ctx, queue); err != nil {
				return err
			}
			continue
		}
		if err := e.queue(ctx, queue); err != nil {
			return fmt.Errorf("queue %s: %w", queue, err)
		}
	}
	e.report.Queues = len(names)
	return nil
}

// onlySettings is about a queue that nobody registered, and that holds nothing: when it has settings somebody is about to use it,
// else there is none.
func (e *examination) onlySettings(ctx context.Context, queue string) error {
	at := e.place(queue, 0)
	n, err := e.number(ctx, e.c.B().Exists().Key(at.keys.Policy).Build())
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("queue %s: %w", queue, ErrNoQueue)
	}
	e.leftOut("messages of %s: it has settings, and nothing else; its first message registers it", queue)
	return e.partition(ctx, at)
}

// seek finds the partitions of a queue that have keys, without a walk through all keys.
func (e *examination) seek(ctx context.Context, queue string) error {
	var cmds []rueidis.Completed
	var at []int
	for i := range lua.MaxPartitions {
		k := e.place(queue, i).keys
		for _, key := range []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Seen} {
			cmds, at = append(cmds, e.c.B().Exists().Key(key).Build()), append(at, i)
		}
	}
	for first := 0; first < len(cmds); first += pageItems {
		last := min(first+pageItems, len(cmds))
		replies, err := e.do(ctx, cmds[first:last]...)
		if err != nil {
			return err
		}
		for i, reply := range replies {
			if n, _ := reply.AsInt64(); n > 0 {
				if e.found[queue] == nil {
					e.found[queue] = map[int]bool{}
				}
				e.found[queue][at[first+i]] = true
			}
		}
	}
	return nil
}

// queue looks at one queue, in all partitions that there are.
func (e *examination) queue(ctx context.Context, queue string) error {
	counts, most := e.registry[queue].Latest(), 0
	for partition := range e.found[queue] {
		most = max(most, partition+1)
	}
	if e.registry[queue] == nil {
		grown, err := scheduler.GrownTo(ctx, e.c, e.Prefix, queue) // what else has keys, somebody made up
		if err != nil {
			return err
		}
		if err := e.unregistered(ctx, queue, grown); err != nil {
			return err
		}
		counts = grown
	}
	for partition := counts; partition < most; partition++ {
		if e.found[queue][partition] {
			if err := e.beyond(ctx, e.place(queue, partition)); err != nil {
				return err
			}
		}
	}
	if counts > 1 {
		if err := e.compare(ctx, queue, counts); err != nil {
			return err
		}
	}
	for partition := range counts {
		if err := e.partition(ctx, e.place(queue, partition)); err != nil {
			return err
		}
	}
	e.report.Partitions += counts
	return nil
}

// grow is the repair of whatever partitions lack. By now there may be more of them.
func (e *examination) grow(queue string, partitions int) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		counts, err := stream.Partitions(ctx, e.c, e.Prefix, queue)
		if err == nil {
			counts, err = stream.Grow(ctx, e.c, e.Prefix, queue, max(partitions, counts.Latest()), nil)
		}
		return fmt.Sprintf("%s is registered with %s, all with the same groups and settings", queue,
			plural(int64(counts.Latest()), "partition", "partitions")), err
	}
}

func (e *examination) unregistered(ctx context.Context, queue string, partitions int) error {
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		n, err := e.number(ctx, e.c.B().Hexists().Key(e.globals.Queues).Field(queue).Build())
		if err != nil || n == 1 {
			return nil, err
		}
		f := e.finding(unregistered, e.place(queue, partitions-1), "", "", int64(partitions),
			"it has "+plural(int64(partitions), "partition", "partitions"))
		f.mend = e.grow(queue, partitions)
		return f, nil
	})
}
