package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// usageArgs are the arguments that a command's usage line names, like <queue> [<letter>...]. The names decide how many
// arguments there may be, how each is checked, and what a shell offers for it.
type usageArgs struct {
	kinds    []string // "<queue>", in order
	least    int      // number of arguments that must be given
	repeated bool     // the last argument may be repeated
	command  bool     // the command line of another program follows --
}

func usageArgsOf(cmd *cobra.Command) (u usageArgs) {
	words := strings.Fields(cmd.Use)[1:]
	u.command = slices.Contains(words, "--")
	for _, word := range words {
		if strings.HasPrefix(word, "-") || strings.HasPrefix(word, "(") { // the rest is about flags
			break
		}
		if kind := strings.Trim(word, "[]."); strings.HasPrefix(kind, "<") {
			u.kinds, u.repeated = append(u.kinds, kind), strings.Contains(word, "...")
			if !strings.HasPrefix(word, "[") {
				u.least++
			}
		}
	}
	return u
}

// kind returns the name in the usage of the argument at an index, or "" if there is none.
func (u usageArgs) kind(i int) string {
	if u.repeated {
		i = min(i, len(u.kinds)-1)
	}
	if i >= len(u.kinds) {
		return ""
	}
	return u.kinds[i]
}

// number returns a check that refuses too few or too many arguments.
func (u usageArgs) number() cobra.PositionalArgs {
	if u.repeated {
		return numberOfArgs(u.least, math.MaxInt)
	}
	return numberOfArgs(u.least, len(u.kinds))
}

// numberOfArgs is like [cobra.RangeArgs], but its error quotes the usage of the command.
func numberOfArgs(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		_, takes, any := strings.Cut(cmd.Use, " ")
		if !any {
			takes = "no arguments"
		}
		return fmt.Errorf("%s takes %s, and was given %s", cmd.CommandPath(), takes, human.Counted(len(args), "argument"))
	}
}

// check refuses arguments that are not valid names of their kind.
func (u usageArgs) check(args []string) error {
	var errs []error
	for i, arg := range args {
		if check := argKinds[u.kind(i)].check; check != nil {
			errs = append(errs, check(arg))
		}
	}
	return errors.Join(errs...)
}

// queues returns the arguments that are names of queues.
func (u usageArgs) queues(args []string) (queues []string) {
	for i, arg := range args {
		if u.kind(i) == "<queue>" {
			queues = append(queues, arg)
		}
	}
	return queues
}

// group makes cmd a command with subcommands. Run alone, it prints its help.
func group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.RunE = cobra.NoArgs, help
	cmd.AddCommand(below...)
	return cmd
}

// help prints the help of a command.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// checks refuses wrong arguments and flags before Redis is touched. Names of arguments are checked already. nil
// refuses nothing.
type checks func(args []string) error

// does sets the function that a command runs. Once it runs, an error is no longer about the syntax of the command
// line.
func (a *app) does(cmd *cobra.Command, check checks, work func(ctx context.Context, args []string) error) *cobra.Command {
	names := usageArgsOf(cmd)
	if cmd.Args == nil {
		cmd.Args = names.number()
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.started = true
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

// operation is the work of a command that needs the operator's handle.
type operation func(ctx context.Context, op *admin.Admin, args []string) error

// operates makes a command run an operation, and gives it --json.
func (a *app) operates(cmd *cobra.Command, check checks, work operation) *cobra.Command {
	a.jsonFlag(cmd)
	return a.does(cmd, check, func(ctx context.Context, args []string) error {
		return a.operate(ctx, func(op *admin.Admin) error { return work(ctx, op, args) })
	})
}

// operate connects, and runs work with the operator's handle.
func (a *app) operate(ctx context.Context, work func(*admin.Admin) error) error {
	r, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	op := a.operator(r)
	a.follow(ctx, op)
	return work(op)
}

// looks is like WithAdmin for queues that must exist. Without the check, an unknown queue would look like an empty one.
func (a *app) looks(cmd *cobra.Command, check checks, work operation) *cobra.Command {
	names := usageArgsOf(cmd)
	return a.operates(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := checkKnown(ctx, op, names.queues(args)...); err != nil {
			return err
		}
		return work(ctx, op, args)
	})
}

// checkKnown returns admin.ErrNoQueue for the first queue that does not exist.
func checkKnown(ctx context.Context, op *admin.Admin, queues ...string) error {
	for _, queue := range queues {
		if err := op.CheckKnown(ctx, queue); err != nil {
			return err
		}
	}
	return nil
}

// configures is like WithAdmin for queues that must exist. With --create it registers an unknown queue, so that
// settings can be made before the first message.
func (a *app) configures(cmd *cobra.Command, check checks, work operation) *cobra.Command {
	names := usageArgsOf(cmd)
	create := cmd.Flags().Bool("create", false, "allow a queue, or a group, that does not exist yet")
	return a.operates(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
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

// writes makes a command run with a client, and gives it --json and --durability.
func (a *app) writes(
	cmd *cobra.Command, check checks, work func(ctx context.Context, c *bridge.Client, args []string) error,
) *cobra.Command {
	names := usageArgsOf(cmd)
	a.jsonFlag(cmd)
	a.durabilityFlag(cmd)
	return a.does(cmd, check, func(ctx context.Context, args []string) error {
		return a.produce(ctx, func(c *bridge.Client, op *admin.Admin) error {
			err := work(ctx, c, args)
			if errors.Is(err, bridge.ErrNotScheduled) {
				if unknown := checkKnown(ctx, op, names.queues(args)...); errors.Is(unknown, admin.ErrNoQueue) {
					return unknown
				}
			}
			return err
		})
	})
}

// operator returns the operator's handle.
func (a *app) operator(r *bridge.Redis) *admin.Admin {
	op := admin.New(r, a.prefix)
	if a.allowOldBridges {
		return op.AllowOldBridges()
	}
	return op
}

// produce connects, and runs work with a client and the operator's handle.
func (a *app) produce(ctx context.Context, work func(*bridge.Client, *admin.Admin) error) error {
	r, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	op := a.operator(r)
	a.follow(ctx, op)
	c, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: a.prefix, Durability: a.durability.D, Name: op.Name(),
		AllowOldBridges: a.allowOldBridges})
	if err != nil {
		return err
	}
	defer c.Close()
	return work(c, op)
}
