package stream

import (
	"context"
	"log/slog"

	"github.com/duestream/duestream/lua"
)

// heal recreates the worker's group after it was lost, and says so.
func (w *lane) heal(ctx context.Context) error {
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
