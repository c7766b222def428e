package stream

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// EnsureGroup creates a consumer group at the beginning of a queue's stream unless it exists: every message that became ready
// before and is still there will be delivered to it. One round trip; passes on a full server.
func EnsureGroup(ctx context.Context, c rueidis.Client, prefix, queue, group string) (created bool, err error) {
	if err := lua.CheckQueue(queue); err != nil {
		return false, err
	}
	if err := lua.CheckGroup(group); err != nil {
		return false, err
	}
	created, err = lua.EnsureGroup(ctx, c, lua.NewKeys(prefix, queue), group)
	if err != nil {
		return false, fmt.Errorf("stream: create group %s/%s: %w", queue, group, err)
	}
	return created, nil
}

// heal recreates the worker's group after it was lost, and says so.
func (w *Worker) heal(ctx context.Context) error {
	created, err := lua.EnsureGroup(ctx, w.cfg.Client, w.keys, w.cfg.Group)
	if err != nil {
		return err
	}
	if created {
		w.log.Warn("consumer group was lost: created again at 0", slog.String("consumer", w.cfg.Consumer))
	}
	w.registerAgain() // what took the group may have taken the registry
	return nil
}
