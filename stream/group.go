package stream

import (
	"context"
	"log/slog"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// heal creates the worker's group again if it was lost, and logs that.
func (p *partitionWorker) heal(ctx context.Context) error {
	created, err := lua.EnsureGroup(ctx, p.cfg.Client, p.keys, p.cfg.Group)
	if err != nil {
		return err
	}
	if created {
		p.start = view.EntryID{} // it reads from the beginning, and no consumer holds entries
		p.log.Warn("consumer group was lost: created again at 0", slog.String("consumer", p.cfg.Consumer))
	}
	p.registerAgain() // the loss may also have removed the registration
	return nil
}
