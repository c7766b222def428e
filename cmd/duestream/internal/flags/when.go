package flags

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
)

// When holds the flags --in and --at.
type When struct {
	In Delay
	At Instant
}

// Flags adds them to a command. what is the verb of their help texts.
func (w *When) Flags(cmd *cobra.Command, what string) {
	DelayVar(cmd.Flags(), &w.In, "in", what+" so long after now, by the clock of Redis: 500ms, 15m, 7d")
	InstantVar(cmd.Flags(), &w.At, "at", what+" at this time: RFC 3339")
	cmd.MarkFlagsMutuallyExclusive("in", "at")
}

// Option returns the chosen time; now when there is none.
func (w *When) Option() bridge.Option {
	if !w.At.T.IsZero() {
		return bridge.At(w.At.T)
	}
	return bridge.In(w.In.D)
}
