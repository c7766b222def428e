package flags

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
)

// When holds the flags --in and --at.
type When struct {
	In time.Duration
	At time.Time
}

// Flags adds --in and --at to a command.
func (w *When) Flags(cmd *cobra.Command) {
	DelayVar(cmd.Flags(), &w.In, "in", "deliver after this time, by the clock of Redis: 500ms, 15m, 7d")
	InstantVar(cmd.Flags(), &w.At, "at", "deliver at this time: RFC 3339")
	cmd.MarkFlagsMutuallyExclusive("in", "at")
}

// Option returns the chosen time as an option. Without a flag the time is now.
func (w *When) Option() bridge.Option {
	if !w.At.IsZero() {
		return bridge.At(w.At)
	}
	return bridge.In(w.In)
}
