package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const scanCount = 1000

// Queues returns the registered queues of a prefix, sorted, without illegal names. It reads the hash <prefix>:queues;
// one round trip, O(n). Give ctx a deadline: while the server is away, the client library repeats the read for as long
// as ctx lasts.
func Queues(ctx context.Context, client rueidis.Client, prefix string) ([]string, error) {
	names, err := client.Do(ctx, client.B().Hkeys().Key(lua.NewGlobals(prefix).Queues).Build()).AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("read the registry: %w", lua.Classify("hkeys", err))
	}
	names = slices.DeleteFunc(names, func(name string) bool { return lua.CheckQueue(name) != nil })
	slices.Sort(names)
	return names, nil
}

// discoverer finds the schedules of unregistered queues: it scans all keys of all nodes in bounded steps.
type discoverer struct {
	client rueidis.Client
	prefix string
	node   string // the node being scanned
	cursor uint64
}

// Step scans about a thousand keys and returns the partitions whose schedule is among them. On a cluster it scans
// replicas as well.
func (d *discoverer) Step(ctx context.Context) ([]string, error) {
	nodes := d.client.Nodes()
	node, ok := nodes[d.node]
	if !ok || d.cursor == 0 {
		d.node, d.cursor = nextName(slices.Sorted(maps.Keys(nodes)), d.node), 0
		node = nodes[d.node]
	}
	if node == nil {
		return nil, fmt.Errorf("look for queues: %w: no node is known", lua.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	scan, err := node.Do(ctx, node.B().Scan().Cursor(d.cursor).Match(lua.NewKeys(d.prefix,
		"*").Due).Count(scanCount).Type("zset").Build()).AsScanEntry()
	if err != nil {
		d.cursor = 0 // continue with the next node: this one may be away for long
		return nil, fmt.Errorf("look for queues: %w", lua.Classify("scan", err))
	}
	d.cursor = scan.Cursor
	var found []string
	for _, key := range scan.Elements {
		if queue, partition, ok := lua.QueueOf(d.prefix, key); ok {
			found = append(found, lua.PartitionName(queue, partition))
		}
	}
	return found, nil
}

// nextName returns the name after the given one in a sorted list, and the first after the last.
func nextName(names []string, name string) string {
	if len(names) == 0 {
		return ""
	}
	i, found := slices.BinarySearch(names, name)
	if found {
		i++
	}
	return names[i%len(names)]
}

// ErrNoQueue: the queue is not registered and has no keys.
var ErrNoQueue = errors.New("no such queue")

// CheckKnown returns ErrNoQueue if a queue is not registered and has no keys: most likely its name is misspelt. One
// HEXISTS; for an unregistered queue also one EXISTS.
func CheckKnown(ctx context.Context, client rueidis.Client, prefix, queue string) error {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return err
	}
	known, err := client.Do(ctx, client.B().Hexists().Key(lua.NewGlobals(prefix).Queues).Field(queue).Build()).AsBool()
	if err != nil {
		return fmt.Errorf("read the registry: %w", lua.Classify("HEXISTS", err))
	}
	if known {
		return nil
	}
	k := lua.NewKeys(prefix, queue)
	keys := []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Policy, k.Seen, k.Recurring}
	n, err := client.Do(ctx, client.B().Exists().Key(keys...).Build()).AsInt64()
	if err != nil {
		return fmt.Errorf("look for keys of %s: %w", queue, lua.Classify("EXISTS", err))
	}
	if n == 0 {
		return fmt.Errorf("queue %s: %w", queue, ErrNoQueue)
	}
	return nil
}
