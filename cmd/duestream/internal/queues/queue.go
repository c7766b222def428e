// Package queues has the commands that configure, pause, export, import and delete queues.
package queues

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

// Queue returns the command queue.
func Queue(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "queue", Short: "Show or change how a queue is served",
		Example: "  duestream queue show emails\n  duestream queue set emails held=true\n  duestream queue partitions emails 8",
	}, queueShow(a), queueSet(a), queuePartitions(a), queueDelete(a), queueRollback(a))
}

// checkGroupExists returns ErrNoGroup if the queue does not have the group, unless --create is given.
func checkGroupExists(ctx context.Context, op *admin.Admin, cmd *cobra.Command, queue, group string) error {
	if group == "" {
		return nil
	}
	if create, err := cmd.Flags().GetBool("create"); err == nil && create {
		return nil
	}
	return op.CheckGroup(ctx, queue, group)
}

// isKnown reports whether a queue is registered. Its first message registers it; settings alone do not.
func isKnown(ctx context.Context, op *admin.Admin, queue string) (bool, error) {
	known, err := op.Queues(ctx)
	return slices.Contains(known, queue), err
}

// noteUnknown warns after a change of settings that no bridge knows the queue. With --json it prints nothing, because
// the JSON has the field known.
func noteUnknown(a *cli.App, queue string, known bool) {
	if !known && !a.JSON {
		a.Note("duestream: no bridge knows a queue %s yet: is the name right? Its settings count from the first message on",
			queue)
	}
}
