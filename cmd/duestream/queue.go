package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
)

func (a *app) queue() *cobra.Command {
	return group(&cobra.Command{
		Use: "queue", Short: "Show or change how a queue is served",
		Example: "  duestream queue show emails\n  duestream queue set emails held=true\n  duestream queue partitions emails 8",
	}, a.queueShow(), a.queueSet(), a.queuePartitions(), a.queueDelete(), a.queueRollback())
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
func (a *app) isKnown(ctx context.Context, op *admin.Admin, queue string) (bool, error) {
	known, err := op.Queues(ctx)
	return slices.Contains(known, queue), err
}

// noteUnknown warns after a change of settings that no bridge knows the queue. With --json it prints nothing: the
// object has a field for it.
func (a *app) noteUnknown(queue string, known bool) {
	if !known && !a.json {
		a.note("duestream: no bridge knows a queue %s yet: is the name right? It counts from the first message on", queue)
	}
}

// groupFlag adds --group to a command. what is the help text.
func groupFlag(cmd *cobra.Command, group *string, what string) {
	cmd.Flags().StringVarP(group, "group", "g", "", what)
}

// checkGroup refuses a text that is not a valid name of a group. "" stands for no group, and is valid.
func checkGroup(group string) error {
	if group == "" {
		return nil
	}
	return admin.CheckGroup(group)
}

// groupCheck returns CheckGroup as the check of a command.
func groupCheck(group *string) checks { return func([]string) error { return checkGroup(*group) } }
