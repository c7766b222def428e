package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
)

const watchEvery = 2 * time.Second

func (a *app) stats() *cobra.Command {
	var watch, partitions bool
	cmd := &cobra.Command{
		Use:   "stats [<queue>...]",
		Short: "Count what queues hold, per group",
		Long: `Counts what queues hold; without arguments of all queues that the bridges know.

  SCHEDULED  waiting for their time, retries included     OVERDUE  of them, past it
  READY      not given to some group yet                  LAG      not given to this group yet
  PENDING    held by a worker                             RETRYING scheduled again for this group

~ before a number: it is an estimate. With --json and --watch, one line per look.`,
		RunE: a.do(func(ctx context.Context, args []string) error {
			for _, queue := range args {
				if err := bridge.CheckQueue(queue); err != nil {
					return err
				}
			}
			r, err := a.connect(ctx)
			if err != nil {
				return err
			}
			defer r.Close()
			if watch {
				return a.watchStats(ctx, r, args, partitions)
			}
			all, err := a.readStats(ctx, r, args, partitions)
			if err != nil {
				return err
			}
			return a.print(all, func() { a.printStats(all) })
		}),
	}
	cmd.ValidArgsFunction = a.completeQueues
	cmd.Flags().BoolVar(&partitions, "partitions", false, "also what each partition holds")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "look again every 2 s, until Ctrl-C")
	a.jsonFlag(cmd)
	return cmd
}

// readStats returns the stats of queues; those of partitions only when they are asked for.
func (a *app) readStats(ctx context.Context, r *bridge.Redis, queues []string, partitions bool) ([]bridge.QueueStats, error) {
	if len(queues) == 0 {
		var err error
		if queues, err = bridge.Queues(ctx, r, a.prefix); err != nil {
			return nil, err
		}
	}
	all := make([]bridge.QueueStats, 0, len(queues))
	for _, queue := range queues {
		s, err := bridge.Stats(ctx, r, a.prefix, queue)
		if err != nil {
			return nil, err
		}
		if !partitions {
			s.ByPartition = nil
		}
		all = append(all, s)
	}
	return all, nil
}

// watchStats looks again and again until ctx ends; that is a clean end.
func (a *app) watchStats(ctx context.Context, r *bridge.Redis, queues []string, partitions bool) error {
	again := time.NewTicker(watchEvery)
	defer again.Stop()
	for {
		all, err := a.readStats(ctx, r, queues, partitions)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case a.json:
			err = a.printLine(all)
		default:
			if isTerminal(a.out) {
				fmt.Fprint(a.out, "\x1b[H\x1b[2J")
			}
			fmt.Fprintln(a.out, time.Now().Format(time.DateTime))
			a.printStats(all)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

func (a *app) printStats(all []bridge.QueueStats) {
	if len(all) == 0 {
		fmt.Fprintln(a.out, "no queues")
		return
	}
	now := time.Now()
	rows := [][]string{{"QUEUE / GROUP", "SCHEDULED", "OVERDUE", "NEXT DUE", "READY", "LAG", "PENDING", "OLDEST", "RETRYING", "DEAD", "MEMORY"}}
	for _, s := range all {
		next := "-"
		if !s.NextDue.IsZero() {
			next = relative(s.NextDue, now)
		}
		name := s.Queue
		if s.Held {
			name += " (held)"
		}
		if s.Partitions > 1 {
			name += fmt.Sprintf(" (%d partitions)", s.Partitions)
		}
		rows = append(rows, []string{
			name, number(s.Scheduled, false), number(s.Overdue, false), next, number(s.Ready, s.ReadyApprox), "", "", "", "",
			number(s.Dead, false), memory(s.Memory),
		})
		for _, g := range s.Groups {
			oldest := "-"
			if g.OldestPending != nil {
				oldest = short(max(0, now.Sub(g.OldestPending.Since)))
			}
			rows = append(rows, []string{
				"  " + oneLine(g.Name, 40), "", "", "", "", number(g.Lag, g.LagApprox), number(g.Pending, false), oldest,
				number(g.Retrying, g.RetryingApprox), number(g.Dead, g.DeadApprox), "",
			})
		}
		for _, p := range s.ByPartition {
			used := map[string]int64(nil)
			if p.Memory != nil {
				used = map[string]int64{"all": *p.Memory}
			}
			rows = append(rows, []string{
				"  partition " + strconv.Itoa(p.Partition), number(p.Scheduled, false), number(p.Overdue, false), "", number(p.Ready, p.ReadyApprox), "",
				number(p.Pending, false), "", "", number(p.Dead, false), memory(used),
			})
		}
	}
	table(a.out, rows)
	for _, s := range all {
		for _, w := range s.Warnings {
			fmt.Fprintf(a.out, "! %s: %s\n", s.Queue, withoutPackages(w))
		}
	}
}

func number(n int64, approx bool) string {
	if approx {
		return "~" + thousands(n)
	}
	return thousands(n)
}

// memory is the sum over the keys of a queue.
func memory(keys map[string]int64) string {
	if keys == nil {
		return "-"
	}
	var sum int64
	for _, n := range keys {
		sum += n
	}
	switch {
	case sum < 10<<10:
		return strconv.FormatInt(sum, 10) + " B"
	case sum < 10<<20:
		return strconv.FormatInt(sum>>10, 10) + " KiB"
	}
	return thousands(sum>>20) + " MiB"
}
