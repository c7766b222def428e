package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// ErrKeyed: a queue was to get more partitions, and holds messages with a key. Most keys would belong to another partition,
// so new messages of a key would be delivered beside those that the queue holds now.
var ErrKeyed = errors.New("the queue holds messages with a key")

// keyedPage is how many metas are read at a time.
const keyedPage = 500

// CheckKeys returns ErrKeyed when a queue holds messages with a key: scheduled, ready, in flight or waiting for a retry. What is
// scheduled while it looks may be missed. It reads the meta of all that is scheduled, until it finds a key.
func CheckKeys(ctx context.Context, c rueidis.Client, prefix, queue string) error {
	counts, err := Partitions(ctx, c, prefix, queue)
	if err != nil {
		return err
	}
	for i, name := range counts.Names(queue) {
		keys := lua.NewKeys(prefix, name)
		var turns int64
		if err := view.Ask(ctx, c, view.Number(c.B().Exists().Key(keys.Turns).Build(), &turns)); err != nil {
			return err
		}
		if turns > 0 {
			return fmt.Errorf("%s: %w: in partition %d some are in flight, or wait for one of their key", queue, ErrKeyed, i)
		}
		key, err := scheduledKey(ctx, c, keys)
		if err != nil {
			return err
		}
		if key != "" {
			return fmt.Errorf("%s: %w: key %q is scheduled in partition %d", queue, ErrKeyed, key, i)
		}
	}
	return nil
}

// scheduledKey returns a key of the messages that are scheduled in a partition, or "".
func scheduledKey(ctx context.Context, c rueidis.Client, k lua.Keys) (string, error) {
	for cursor := uint64(0); ; {
		var page rueidis.ScanEntry
		scan := c.B().Hscan().Key(k.Meta).Cursor(cursor).Count(keyedPage).Build()
		if err := view.AskLong(ctx, c, view.Scan(scan, &page)); err != nil {
			return "", err
		}
		for i := 0; i+1 < len(page.Elements); i += 2 {
			if e, readable := lua.DecodeMeta(page.Elements[i], page.Elements[i+1]); readable {
				if key := e.Extra[lua.FieldKey]; key != "" {
					return key, nil
				}
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return "", nil
		}
	}
}
