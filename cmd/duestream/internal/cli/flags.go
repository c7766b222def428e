package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// JSONFlag adds --json to a command.
func (a *App) JSONFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.JSON, "json", false, "print JSON, for programs")
}

// OldBridgesFlag adds --allow-old-bridges to a command that may write data which older bridges cannot handle.
func (a *App) OldBridgesFlag(cmd *cobra.Command) {
	flags.SwitchVar(cmd.Flags(), &a.oldBridges, "allow-old-bridges",
		"go on even if a running bridge is too old for what this command writes; default $DUESTREAM_ALLOW_OLD_BRIDGES")
}

// DurabilityFlag adds --durability to a command that writes.
func (a *App) DurabilityFlag(cmd *cobra.Command) {
	cmd.Flags().Var(&a.durability, "durability",
		"wait until the write is on disk (fsynced; Redis 7.2), on n replicas (replicated=n), "+
			"or both (fsynced,replicated=n)")
	OfferValues(cmd, "durability", "accepted", "fsynced", "replicated=1")
}

// QueuesFlag adds the flag --queue, which may be repeated, and returns the check of its values.
func QueuesFlag(a *App, cmd *cobra.Command, queues *[]string, usage string) (check func([]string) error) {
	cmd.Flags().StringArrayVarP(queues, "queue", "q", nil, usage)
	_ = cmd.RegisterFlagCompletionFunc("queue", CompleteQueues(a))
	return func([]string) error {
		var errs []error
		for _, queue := range *queues {
			errs = append(errs, admin.CheckQueue(queue))
		}
		return errors.Join(errs...)
	}
}

// RawFlag adds --raw to a command that shows a message. The command must have --json already.
func RawFlag(cmd *cobra.Command, raw *bool) *cobra.Command {
	cmd.Flags().BoolVar(raw, "raw", false, "print the payload as it is, and nothing else")
	cmd.MarkFlagsMutuallyExclusive("raw", "json")
	return cmd
}

// ColorFlag adds --color to the root command.
func ColorFlag(a *App, root *cobra.Command) {
	a.Color = "auto"
	root.PersistentFlags().Var(&a.Color, "color",
		"auto, always or never; auto: on a terminal, unless NO_COLOR is set or TERM is dumb")
	OfferValues(root, "color", term.ColorModes...)
}

// GroupFlag adds --group to a command.
func GroupFlag(cmd *cobra.Command, group *string, help string) {
	cmd.Flags().StringVarP(group, "group", "g", "", help)
}
