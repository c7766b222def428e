package looking

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/live"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

type topOptions struct {
	every time.Duration
	sort  string
	once  bool
}

// Top returns the command top.
func Top(a *cli.App) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [<queue>...]",
		Short: "Watch queues, groups, rates and lateness, live",
		Long: `Shows queues and their groups, and what goes on in them, until q or Ctrl-C; without
arguments of all queues that the bridges know. Where the output is not a terminal, or
with --once, prints one frame, which takes two looks an interval apart.

  SCHED    waiting for their time, retries included   OVERDUE  of them, past it
  READY    not given to some group yet                DEAD     dead letters
  IN/S     became scheduled per second                OUT/S    became ready
  DONE/S   of a queue: every group was done with them; of a group: deliveries that ended
  BEHIND   how late the oldest overdue message is     LATE     by how much the newest
                                                               entries were late
  LAG      not given to the group yet                 PENDING  held by its workers
  HELD     for how long the oldest of these has       RETRY    of the 100 messages that
           been with its worker                                are due next
  WORKERS  that asked for something within a minute, / all of them

~ before a number: it is an estimate. + behind it: there may be more. -: not known.
The line with ! names the worst problem, and the next step.

Keys: q quits, s sorts by name, lag, rate or lateness, p pauses (and then nothing is
asked), arrows, j, k, space and b scroll, + and - change the interval.

A look sends about ten commands per queue (per partition, if it has several) and two
per group, in a few pipelines. Of more than 512 partitions the queues take turns.`,
		Example: `  duestream top
  duestream top emails thumbnails --interval 5s
  duestream top --sort lateness --once
  duestream top --json | jq '.queues[] | {queue, overdue}'`,
	}
	f := cmd.Flags()
	flags.DurationVar(f, &o.every, "interval", time.Second, "time between looks")
	f.StringVar(&o.sort, "sort", "name", "order of the queues: name, lag, rate or lateness")
	f.BoolVar(&o.once, "once", false, "print one frame, and end")
	cli.OfferValues(cmd, "sort", live.Sorts...)
	return a.WithKnownQueues(cmd, func([]string) (err error) {
		if o.every < live.MinInterval || o.every > live.MaxInterval {
			least, most := human.Short(live.MinInterval), human.Short(live.MaxInterval)
			err = usage.Errorf("interval %s: must be between %s and %s", o.every, least, most)
		}
		if !slices.Contains(live.Sorts, o.sort) {
			err = errors.Join(err, usage.Errorf("sort %q: must be one of %s", o.sort, strings.Join(live.Sorts, ", ")))
		}
		return err
	}, func(ctx context.Context, op *admin.Admin, queues []string) error {
		return runTop(ctx, a, op, o, queues)
	})
}

func runTop(ctx context.Context, a *cli.App, op *admin.Admin, o topOptions, queues []string) error {
	look := topLooker(a, op, queues)
	first, err := look(ctx)
	if err != nil {
		return err
	}
	if !o.once && !a.JSON && term.IsTerminal(a.Out) && os.Getenv("TERM") != "dumb" {
		return topLive(ctx, a, o, look, first)
	}
	return topLines(ctx, a, o, look, first)
}

// topLooker returns the function that looks. It must not be called concurrently.
func topLooker(a *cli.App, op *admin.Admin, queues []string) func(context.Context) (live.Look, error) {
	w := op.Watcher(queues...)
	return func(ctx context.Context) (l live.Look, err error) {
		if l.Queues, err = w.Look(ctx); err != nil {
			return l, err
		}
		ctx, cancel := context.WithTimeout(ctx, live.NoAnswer)
		defer cancel()
		if l.Server, err = op.ServerLoad(ctx); err != nil {
			return l, err
		}
		// Not an error of the look: on a cluster, the heartbeats' key may be on the only server that is down.
		l.Bridges, err = op.Bridges(ctx)
		l.BridgesFailed = err != nil
		l.Advice = op.Advise(admin.Seen{Samples: l.Queues, Bridges: l.Bridges, BridgesFailed: l.BridgesFailed, Server: l.Server})
		return l, nil
	}
}

func newTopState(a *cli.App, o topOptions) *live.State {
	return live.NewState(cli.HostOf(a.RedisURL), a.Prefix, o.every, o.sort)
}

// topLive shows frames on the terminal.
func topLive(ctx context.Context, a *cli.App, o topOptions, look func(context.Context) (live.Look, error),
	first live.Look) error {
	out, _ := term.FileOf(a.Out)
	return newTopState(a, o).Show(ctx, a.In, out, a.Paint(a.Out), look, first)
}

// topLines prints one frame, or with --json a line per look.
func topLines(ctx context.Context, a *cli.App, o topOptions, look func(context.Context) (live.Look, error),
	l live.Look) error {
	state := newTopState(a, o)
	state.Take(l)
	again := time.NewTicker(o.every)
	defer again.Stop()
	for {
		if a.JSON && !o.once {
			if err := a.PrintLine(state.JSON()); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			if a.JSON && !o.once {
				return nil
			}
			return ctx.Err()
		case <-again.C:
		}
		l, err := look(ctx)
		state.Now = time.Now()
		switch {
		case ctx.Err() != nil:
		case err == nil:
			state.Take(l)
		case a.JSON && !o.once:
			state.Lost(state.Now, err)
		default:
			return err
		}
		switch {
		case a.JSON && o.once:
			return a.PrintLine(state.JSON())
		case !a.JSON && ctx.Err() == nil:
			lines, _ := state.Frame(0, 0, a.Paint(a.Out))
			_, err := fmt.Fprintln(a.Out, strings.Join(lines, "\n"))
			return err
		}
	}
}
