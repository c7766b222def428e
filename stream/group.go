package stream

import (
	"context"
	"log/slog"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// heal recreates the worker's group after it was lost, and says so.
func (p *partitionWorker) heal(ctx context.Context) error {
	created, err := lua.EnsureGroup(ctx, p.cfg.Client, p.keys, p.cfg.Group)
	if err != nil {
		return err
	}
	if created {
		p.start = view.EntryID{} // it reads from the beginning, and nobody holds anything of it
		p.log.Warn("consumer group was lost: created again at 0", slog.String("consumer", p.cfg.Consumer))
	}
	p.registerAgain() // whatever removed the group may have removed the registry, too
	return nil
}
