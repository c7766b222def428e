package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// ErrKeyed: a queue that shall get more partitions holds messages with an ordering key. Most keys would move to another
// partition, so new messages of a key could be delivered at the same time as those that the queue holds now.
var ErrKeyed = errors.New("the queue holds messages with a key")

// keyedPage is how many metas one step reads.
const keyedPage = 500

// CheckKeys returns ErrKeyed if a queue holds messages with an ordering key: scheduled, ready, in flight or waiting for
// a retry. It may miss messages that are scheduled meanwhile. It reads the meta of scheduled messages until it finds a
// key.
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
			return fmt.Errorf("%s: %w: in partition %d some are in flight, or wait for one of their key",
				queue, ErrKeyed, i)
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

// scheduledKey returns the ordering key of some scheduled message in a partition, or "" if no message has a key.
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
