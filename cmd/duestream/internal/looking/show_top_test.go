package looking

import (
	"context"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/live"
)

// ShowTop shows frames on the terminal of a, as top does.
func ShowTop(ctx context.Context, a *cli.App, look func(context.Context) (live.Look, error), first live.Look) error {
	return topLive(ctx, a, topOptions{interval: live.MinInterval, sort: "name"}, look, first)
}
