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
	interval time.Duration // between looks
	sort     string
	once     bool
}

// Top returns the command top.
func Top(a *cli.App) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [<queue>...]",
		Short: "Watch queues, groups, rates and lateness, live",
		Long: `Shows queues, groups and their rates, until q or Ctrl-C. Without arguments it shows all
queues that the bridges know. If the output is not a terminal, or with --once, it prints
one frame, from two looks that are one interval apart.

  SCHED    messages that wait for their time, retries included
  OVERDUE  scheduled messages that are already due
  READY    messages that at least one group has not read
  IN/S     messages that were scheduled, per second
  OUT/S    messages that became ready, per second
  DONE/S   queue: messages that every group has finished, per second;
           group: deliveries that ended, per second
  BEHIND   how late the oldest overdue message is
  LATE     how late the newest entries became ready
  DEAD     dead letters
  LAG      messages that the group has not read
  PENDING  messages that workers of the group hold
  HELD     how long the oldest message of PENDING has been with its worker
  WORKERS  workers that were active within the last minute / all workers
  RETRY    retries for the group among the 100 messages that are due next

A number with ~ is an estimate. After a number with + there may be more. - means not
known. The line with ! names the worst problem, and the next step.

Keys: q quits, s sorts by name, lag, rate or lateness, p pauses (no requests are sent
then), arrows, j, k, space and b scroll, + and - change the interval.

A look sends about ten commands per queue (per partition, if it has several) and two
per group, in a few pipelines. With more than 512 partitions the queues take turns.`,
		Example: `  duestream top
  duestream top emails thumbnails --interval 5s
  duestream top --sort lateness --once
  duestream top --json | jq '.queues[] | {queue, overdue}'`,
	}
	f := cmd.Flags()
	flags.DurationVar(f, &o.interval, "interval", time.Second, "time between looks")
	f.StringVar(&o.sort, "sort", "name", "order of the queues: name, lag, rate or lateness")
	f.BoolVar(&o.once, "once", false, "print one frame, and end")
	cli.OfferValues(cmd, "sort", live.Sorts...)
	return a.WithKnownQueues(cmd, func([]string) (err error) {
		if o.interval < live.MinInterval || o.interval > live.MaxInterval {
			err = usage.Errorf("interval %s: must be between %s and %s", o.interval, human.Short(live.MinInterval),
				human.Short(live.MaxInterval))
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

// topLooker returns the function that reads everything a frame shows. The function must not be called concurrently.
func topLooker(a *cli.App, op *admin.Admin, queues []string) func(context.Context) (live.Look, error) {
	w, adviser := op.Watcher(queues...), op.Adviser()
	return func(ctx context.Context) (l live.Look, err error) {
		if l.Queues, err = w.Look(ctx); err != nil {
			return l, err
		}
		ctx, cancel := context.WithTimeout(ctx, live.AnswerTimeout)
		defer cancel()
		if l.Server, err = op.ServerLoad(ctx); err != nil {
			return l, err
		}
		// The look does not fail without heartbeats: on a cluster, their key may be on the only server that is down.
		l.Bridges, err = op.Bridges(ctx)
		l.BridgesFailed = err != nil
		l.Advice = adviser.Advise(ctx, admin.Seen{Samples: l.Queues, Bridges: l.Bridges, BridgesFailed: l.BridgesFailed,
			Server: l.Server})
		return l, nil
	}
}

func newTopState(a *cli.App, o topOptions) *live.State {
	return live.NewState(cli.HostOf(a.RedisURL), a.Prefix, o.interval, o.sort)
}

// topLive shows frames on the terminal.
func topLive(ctx context.Context, a *cli.App, o topOptions, look func(context.Context) (live.Look, error),
	first live.Look) error {
	out, _ := term.FileOf(a.Out)
	return newTopState(a, o).Show(ctx, a.In, out, a.Paint(a.Out), look, first)
}

// topLines prints one frame after a second look, or with --json a line per look until ctx ends.
func topLines(ctx context.Context, a *cli.App, o topOptions, look func(context.Context) (live.Look, error),
	first live.Look) error {
	state := newTopState(a, o)
	state.Take(first)
	everyLook := a.JSON && !o.once
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for {
		if everyLook {
			if err := a.PrintLine(state.JSON()); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			if everyLook {
				return nil
			}
			return ctx.Err()
		case <-ticker.C:
		}
		l, err := look(ctx)
		state.Now = time.Now()
		switch {
		case ctx.Err() != nil:
		case err == nil:
			state.Take(l)
		case everyLook:
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
