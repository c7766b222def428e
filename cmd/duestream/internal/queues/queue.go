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

// checkGroupThere returns ErrNoGroup if the queue has no such group, unless --create is given.
func checkGroupThere(ctx context.Context, op *admin.Admin, cmd *cobra.Command, queue, group string) error {
	if group == "" {
		return nil
	}
	if create, err := cmd.Flags().GetBool("create"); err == nil && create {
		return nil
	}
	return op.CheckGroup(ctx, queue, group)
}

// isKnown reports whether the bridges know a queue. A queue may have settings before its first message.
func isKnown(ctx context.Context, a *cli.App, op *admin.Admin, queue string) (bool, error) {
	known, err := op.Queues(ctx)
	return slices.Contains(known, queue), err
}

// noteUnknown warns after a change of settings that no bridge knows the queue. With --json it prints nothing: the
// object has a field for it.
func noteUnknown(a *cli.App, queue string, known bool) {
	if !known && !a.JSON {
		a.Note("duestream: no bridge knows a queue %s yet: is the name right? It counts from the first message on", queue)
	}
}
