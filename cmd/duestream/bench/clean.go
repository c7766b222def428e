package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

const (
	removeTimeout = time.Minute
	removeCount   = 50   // queues per request
	scanCount     = 1000 // keys that the server scans per request
)

// Claim is a claimed prefix for measurements.
type Claim struct {
	redis   *bridge.Redis
	prefix  string
	existed map[string]bool // shared keys that existed before Take
}

// ErrOccupied: the prefix has keys already.
var ErrOccupied = errors.New("holds keys already")

// Take claims a prefix before scenarios run under it. It scans the keys of every server, in bounded steps, and fails
// with ErrOccupied at the first key of the prefix. With force it does not scan. progress gets the number of keys
// scanned, and the number of all keys.
func Take(
	ctx context.Context, r *bridge.Redis, prefix string, force bool, progress func(keys, total int),
) (*Claim, error) {
	if err := lua.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	if !force {
		key, err := findKey(ctx, r.Client, prefix+":*", progress)
		if err != nil {
			return nil, err
		}
		if key != "" {
			return nil, fmt.Errorf("prefix %q %w, like %.100q", prefix, ErrOccupied, key)
		}
	}
	c := &Claim{redis: r, prefix: prefix, existed: map[string]bool{}}
	for _, key := range c.sharedKeys() {
		n, err := r.Client.Do(ctx, r.Client.B().Exists().Key(key).Build()).AsInt64()
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", key, lua.Classify("EXISTS", err))
		}
		c.existed[key] = n == 1
	}
	return c, nil
}

// sharedKeys returns the keys that belong to no queue, and that bridges and clients write by themselves.
func (c *Claim) sharedKeys() []string {
	g := lua.NewGlobals(c.prefix)
	return []string{g.Queues, g.Bridges, g.Wake}
}

// Release deletes the shared keys that did not exist before Take. Scenarios delete their queues themselves. It works
// also after ctx has ended.
func (c *Claim) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	for _, key := range c.sharedKeys() {
		if c.existed[key] {
			continue
		}
		if err := c.redis.Client.Do(ctx, c.redis.Client.B().Unlink().Key(key).Build()).Error(); err != nil {
			return fmt.Errorf("remove %s: %w", key, lua.Classify("UNLINK", err))
		}
	}
	return nil
}

// findKey returns a key that matches the pattern, or "".
func findKey(ctx context.Context, c rueidis.Client, pattern string, progress func(keys, total int)) (string, error) {
	nodes, total, scanned := c.Nodes(), 0, 0
	for _, node := range nodes {
		n, _ := node.Do(ctx, node.B().Dbsize().Build()).AsInt64()
		total += int(n)
	}
	for _, node := range nodes {
		for cursor := uint64(0); ; {
			page, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(pattern).Count(scanCount).Build()).AsScanEntry()
			if err != nil {
				return "", fmt.Errorf("look for keys: %w", lua.Classify("SCAN", err))
			}
			if len(page.Elements) > 0 {
				return page.Elements[0], nil
			}
			scanned += scanCount
			progress(min(scanned, total), total)
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	return "", nil
}

// Remove deletes the keys of queues and their entries in the registry, 50 queues per request. The server frees large
// keys in the background.
func Remove(ctx context.Context, r *bridge.Redis, prefix string, queues ...string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	c, registry := r.Client, lua.NewGlobals(prefix).Queues
	for names := range slices.Chunk(queues, removeCount) {
		cmds := rueidis.Commands{c.B().Hdel().Key(registry).Field(names...).Build()}
		for _, queue := range names {
			k := lua.NewKeys(prefix, queue)
			for _, key := range k.All() {
				cmds = append(cmds, c.B().Unlink().Key(key).Build())
			}
		}
		if err := firstError("UNLINK", c.DoMulti(ctx, cmds...)); err != nil {
			return fmt.Errorf("remove queue %s, whose keys may be left: %w", names[0], err)
		}
	}
	return nil
}
