package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

// Group makes cmd a command with subcommands. Without a subcommand, cmd prints its help.
func Group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.RunE = cobra.NoArgs, Help
	cmd.AddCommand(subcommands...)
	return cmd
}

// Help prints the help of a command.
func Help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// Checks refuses wrong arguments and flags before Redis is touched. WithRun itself refuses invalid names of queues,
// groups, messages, letters, tokens and recurrences. A nil Checks refuses nothing.
type Checks func(args []string) error

// WithRun sets the function that a command runs. Before the function, it checks the arguments. From these checks on,
// an error is no longer about the syntax of the command line.
func (a *App) WithRun(
	cmd *cobra.Command, check Checks, work func(ctx context.Context, args []string) error,
) *cobra.Command {
	names := usageArgsOf(cmd)
	if cmd.Args == nil {
		cmd.Args = names.number()
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.Started = true
		err := names.check(args)
		if check != nil {
			err = errors.Join(err, check(args))
		}
		if err != nil {
			return err
		}
		return work(cmd.Context(), args)
	}
	return cmd
}

// operation is the function of a command that uses the operator's handle.
type operation func(ctx context.Context, op *admin.Admin, args []string) error

// WithAdmin makes a command run an operation, and gives it --json.
func (a *App) WithAdmin(cmd *cobra.Command, check Checks, work operation) *cobra.Command {
	a.JSONFlag(cmd)
	return a.WithRun(cmd, check, func(ctx context.Context, args []string) error {
		return a.UseAdmin(ctx, func(op *admin.Admin) error { return work(ctx, op, args) })
	})
}

// UseAdmin connects, and runs work with the operator's handle.
func (a *App) UseAdmin(ctx context.Context, work func(*admin.Admin) error) error {
	return a.use(ctx, func(_ *bridge.Redis, op *admin.Admin) error { return work(op) })
}

// use is like UseAdmin, but also passes the connection to work.
func (a *App) use(ctx context.Context, work func(*bridge.Redis, *admin.Admin) error) error {
	r, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	op, err := a.admin(r)
	if err != nil {
		return err
	}
	a.useServerClock(ctx, op)
	return work(r, op)
}

// WithKnownQueues is like WithAdmin, but first checks that each argument called <queue> in the usage is a queue that
// exists. Without the check, an unknown queue would look like an empty one.
func (a *App) WithKnownQueues(cmd *cobra.Command, check Checks, work operation) *cobra.Command {
	names := usageArgsOf(cmd)
	return a.WithAdmin(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := CheckKnown(ctx, op, names.queues(args)...); err != nil {
			return err
		}
		return work(ctx, op, args)
	})
}

// CheckKnown returns admin.ErrNoQueue for the first queue that does not exist.
func CheckKnown(ctx context.Context, op *admin.Admin, queues ...string) error {
	for _, queue := range queues {
		if err := op.CheckKnown(ctx, queue); err != nil {
			return err
		}
	}
	return nil
}

// WithQueues is like WithAdmin for queues that must exist. With --create it registers an unknown queue, so that
// settings can be made before the first message.
func (a *App) WithQueues(cmd *cobra.Command, check Checks, work operation) *cobra.Command {
	names := usageArgsOf(cmd)
	create := cmd.Flags().Bool("create", false, "allow a queue, or a group, that does not exist yet")
	return a.WithAdmin(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		for _, queue := range names.queues(args) {
			if err := knownOrCreated(ctx, op, queue, *create); err != nil {
				return err
			}
		}
		return work(ctx, op, args)
	})
}

func knownOrCreated(ctx context.Context, op *admin.Admin, queue string, create bool) error {
	if create {
		return op.Register(ctx, queue)
	}
	return op.CheckKnown(ctx, queue)
}

// WithClient makes a command run with a client, and gives it --json and --durability. If no message is scheduled, the
// error may be that the queue does not exist.
func (a *App) WithClient(
	cmd *cobra.Command, check Checks, work func(ctx context.Context, c *bridge.Client, args []string) error,
) *cobra.Command {
	names := usageArgsOf(cmd)
	a.JSONFlag(cmd)
	a.DurabilityFlag(cmd)
	return a.WithRun(cmd, check, func(ctx context.Context, args []string) error {
		return a.UseClient(ctx, func(c *bridge.Client, op *admin.Admin) error {
			err := work(ctx, c, args)
			if errors.Is(err, bridge.ErrNotScheduled) {
				if unknown := CheckKnown(ctx, op, names.queues(args)...); errors.Is(unknown, admin.ErrNoQueue) {
					return unknown
				}
			}
			return err
		})
	})
}

// admin returns the operator's handle.
func (a *App) admin(r *bridge.Redis) (*admin.Admin, error) {
	op, err := admin.New(r, a.Prefix)
	if err == nil && a.AllowOldBridges {
		op = op.AllowOldBridges()
	}
	return op, err
}

// UseClient connects, and runs work with a client and the operator's handle.
func (a *App) UseClient(ctx context.Context, work func(*bridge.Client, *admin.Admin) error) error {
	return a.use(ctx, func(r *bridge.Redis, op *admin.Admin) error {
		c, err := bridge.NewClient(bridge.ClientConfig{
			Redis: r, Prefix: a.Prefix, Durability: a.durability.D, Name: op.Name(), AllowOldBridges: a.AllowOldBridges,
		})
		if err != nil {
			return err
		}
		defer c.Close()
		return work(c, op)
	})
}
