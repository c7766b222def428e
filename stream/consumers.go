package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"

	"github.com/duestream/duestream/lua"
)

const dropBatch = 500

// Consumer is a member of a group, as the server sees it.
type Consumer struct {
	Name    string `json:"name"`
	Pending int64  `json:"pending"`
	Idle    Millis `json:"idle_ms"` // since it last read something; before Redis 7.2, a live consumer without work is idle, too
}

// Consumers lists the consumers of a group, each once: with what it holds in all partitions, and since when it read nothing from any.
// The reclaimer's own is left out. A group that does not exist has none. One round trip per partition.
func Consumers(ctx context.Context, c rueidis.Client, prefix, queue, group string) ([]Consumer, error) {
	counts, err := Partitions(ctx, c, prefix, queue)
	if err != nil {
		return nil, err
	}
	names := counts.Names(queue)
	lists := make([][]Consumer, len(names))
	err = eachPartition(names, func(i int, name string) (err error) {
		lists[i], err = readConsumers(ctx, c, lua.NewKeys(prefix, name).Stream, group)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("stream: consumers of %s/%s: %w", queue, group, err)
	}
	var kept []Consumer
	at := map[string]int{}
	for _, one := range slices.Concat(lists...) {
		i, known := at[one.Name]
		switch {
		case one.Name == lua.ReclaimConsumer:
		case known:
			kept[i].Pending += one.Pending
			kept[i].Idle = min(kept[i].Idle, one.Idle)
		default:
			at[one.Name] = len(kept)
			kept = append(kept, one)
		}
	}
	return kept, nil
}

func readConsumers(ctx context.Context, c rueidis.Client, stream, group string) ([]Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := rueidiscompat.NewAdapter(c).XInfoConsumers(ctx, stream, group).Result()
	if err != nil {
		if err = lua.Classify("XINFO CONSUMERS", err); errors.Is(err, lua.ErrNoGroup) || strings.Contains(err.Error(), "no such key") {
			return nil, nil
		}
		return nil, err
	}
	consumers := make([]Consumer, len(list))
	for i, one := range list {
		consumers[i] = Consumer{one.Name, one.Pending, Millis(one.Idle)}
	}
	return consumers, nil
}

// DropIdleConsumers deletes consumers, of all groups of a partition, that hold nothing and have read nothing for longer than idle, and
// says how many. One that comes back is created again by its next read. One round trip per group, and one per 500 deleted.
func DropIdleConsumers(ctx context.Context, c rueidis.Client, prefix, queue string, idle time.Duration) (int, error) {
	keys := lua.NewKeys(prefix, queue)
	stream, err := readStream(ctx, c, keys.Stream)
	if err != nil {
		return 0, fmt.Errorf("stream: drop consumers of %s: %w", queue, err)
	}
	dropped := 0
	for _, g := range stream.groups {
		n, err := dropIdle(ctx, c, keys, g.name, idle)
		dropped += n
		if err != nil && !errors.Is(err, lua.ErrNoGroup) {
			return dropped, fmt.Errorf("stream: drop consumers of %s/%s: %w", queue, g.name, err)
		}
	}
	return dropped, nil
}

func dropIdle(ctx context.Context, c rueidis.Client, keys lua.Keys, group string, idle time.Duration) (dropped int, err error) {
	all, err := readConsumers(ctx, c, keys.Stream, group)
	if err != nil {
		return 0, err
	}
	var gone []string
	for _, one := range all {
		// The reclaimer's is in use only inside a script.
		if one.Pending == 0 && (time.Duration(one.Idle) > idle || one.Name == lua.ReclaimConsumer) {
			gone = append(gone, one.Name)
		}
	}
	for len(gone) > 0 {
		batch := gone[:min(dropBatch, len(gone))]
		gone = gone[len(batch):]
		n, err := lua.DropConsumers(ctx, c, keys, group, batch)
		dropped += n
		if err != nil {
			return dropped, err
		}
	}
	return dropped, nil
}
