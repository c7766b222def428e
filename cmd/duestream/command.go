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

// This file holds what all commands do alike. A command's usage names its arguments, like <queue> [<letter>...]: how many there
// may be, what each must look like and what a shell offers for it follow from that.

// usageArgs are the arguments of a command, as its usage names them.
type usageArgs struct {
	kinds    []string // "<queue>", in order
	least    int      // so many must be given
	repeated bool     // the last one may be given again
	command  bool     // behind -- stands the command line of another program
}

func usageArgsOf(cmd *cobra.Command) (u usageArgs) {
	words := strings.Fields(cmd.Use)[1:]
	u.command = slices.Contains(words, "--")
	for _, word := range words {
		if strings.HasPrefix(word, "-") || strings.HasPrefix(word, "(") { // from here on it is about flags
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

// kind returns what the argument at an index is, or "".
func (u usageArgs) kind(i int) string {
	if u.repeated {
		i = min(i, len(u.kinds)-1)
	}
	if i >= len(u.kinds) {
		return ""
	}
	return u.kinds[i]
}

// number refuses too few or too many arguments.
func (u usageArgs) number() cobra.PositionalArgs {
	if u.repeated {
		return numberOfArgs(u.least, math.MaxInt)
	}
	return numberOfArgs(u.least, len(u.kinds))
}

// numberOfArgs is [cobra.RangeArgs] in the words of the command's usage.
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

// check refuses names that are not allowed.
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

// group has others below it, and prints its help.
func group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.RunE = cobra.NoArgs, help
	cmd.AddCommand(below...)
	return cmd
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// checks refuses what can be refused before Redis is touched, besides names that are not allowed; nil refuses nothing.
type checks func(args []string) error

// does gives a command its work. From then on an error is no longer one of arguments and flags.
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

// operation is work on the handle of operators.
type operation func(ctx context.Context, op *admin.Admin, args []string) error

// operates gives a command an operation as its work, and --json.
func (a *app) operates(cmd *cobra.Command, check checks, work operation) *cobra.Command {
	a.jsonFlag(cmd)
	return a.does(cmd, check, func(ctx context.Context, args []string) error {
		return a.operate(ctx, func(op *admin.Admin) error { return work(ctx, op, args) })
	})
}

// operate connects for work on the handle of operators.
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

// looks is operates on queues that must be there: of one that nobody knows the command would say that it is empty.
func (a *app) looks(cmd *cobra.Command, check checks, work operation) *cobra.Command {
	names := usageArgsOf(cmd)
	return a.operates(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := checkKnown(ctx, op, names.queues(args)...); err != nil {
			return err
		}
		return work(ctx, op, args)
	})
}

func checkKnown(ctx context.Context, op *admin.Admin, queues ...string) error {
	for _, queue := range queues {
		if err := op.CheckKnown(ctx, queue); err != nil {
			return err
		}
	}
	return nil
}

// configures is operates on queues that must be there, unless --create is given: then they are registered, so that settings are
// there before the first message.
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

// writes gives a command its work with a client, --json and --durability.
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

// operator returns the handle of operators.
func (a *app) operator(r *bridge.Redis) *admin.Admin {
	op := admin.New(r, a.prefix)
	if a.allowOldBridges {
		return op.AllowOldBridges()
	}
	return op
}

// produce connects for work with a client, beside the handle of operators.
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
