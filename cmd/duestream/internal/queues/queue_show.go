package queues

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// queuePolicy is the JSON of a queue's policy.
type queuePolicy struct {
	Queue             string  `json:"queue"`
	Group             string  `json:"group,omitempty"`
	VisibilityTimeout int64   `json:"visibility_timeout_ms"`
	MaxAttempts       int     `json:"max_attempts"`
	RetryMin          int64   `json:"retry_min_ms"`
	RetryMax          int64   `json:"retry_max_ms"`
	RetryDelays       []int64 `json:"retry_delays_ms,omitempty"`
	RetryFor          int64   `json:"retry_for_ms,omitempty"`
	MaxSnoozes        int     `json:"max_snoozes,omitempty"`
	MaxCrashes        int     `json:"max_crashes,omitempty"`
	HandlerTimeout    int64   `json:"handler_timeout_ms,omitempty"`
	TriedFor          int64   `json:"tried_for_ms"` // about how long a message is tried until it becomes a dead letter
	Held              bool    `json:"held"`
	HeldWorkers       bool    `json:"held_workers,omitempty"`
	Rate              string  `json:"rate,omitempty"`
	Burst             int     `json:"burst,omitempty"` // the burst in force, also if it is the default
	FreeRetries       bool    `json:"free_retries,omitempty"`
	ReadyLimit        int     `json:"ready_limit,omitempty"`
	History           int     `json:"history"`
	HistoryAge        int64   `json:"history_ms"`
	KeyFailure        string  `json:"key_failure,omitempty"`
	Partitions        int     `json:"partitions"`
	Known             bool    `json:"known"` // to the bridges

	policy bridge.Policy
}

func readPolicy(ctx context.Context, a *cli.App, op *admin.Admin, queue, group string) (queuePolicy, error) {
	p, warning, err := op.ReadPolicy(ctx, queue, group)
	if err != nil {
		return queuePolicy{}, err
	}
	if warning != nil {
		a.Note("duestream: %s: settings that do not count: %s", queue, warning.Error())
	}
	counts, err := op.Partitions(ctx, queue)
	return queuePolicy{
		queue, group, p.VisibilityTimeout.Milliseconds(), p.MaxAttempts, p.RetryMin.Milliseconds(), p.RetryMax.Milliseconds(),
		millisOf(p.RetryDelays), p.RetryFor.Milliseconds(), p.MaxSnoozes, p.MaxCrashes, p.HandlerTimeout.Milliseconds(),
		p.TriedFor().Milliseconds(), p.Held, p.HeldWorkers, string(p.Rate), burstOf(p), p.FreeRetries, p.ReadyLimit, p.History,
		p.HistoryAge.Milliseconds(),
		string(p.KeyFailure), counts.Latest(), true, p,
	}, err
}

func printPolicy(ctx context.Context, a *cli.App, op *admin.Admin, queue, group string) error {
	q, err := readPolicy(ctx, a, op, queue, group)
	if err == nil {
		q.Known, err = isKnown(ctx, a, op, queue)
	}
	if err != nil {
		return err
	}
	noteUnknown(a, queue, q.Known)
	return a.Print(q, func() {
		p := q.policy
		rows := [][]string{
			{"visibility_timeout", human.Exact(p.VisibilityTimeout)}, {"max_attempts", strconv.Itoa(p.MaxAttempts)},
			{"retry_min", human.Exact(p.RetryMin)}, {"retry_max", human.Exact(p.RetryMax)},
		}
		if p.RetryDelays != "" { // settings that nobody set are not shown
			rows = append(rows, []string{"retry_delays",
				flags.ShowDelays(p.RetryDelays) + " (retry_min and retry_max do not count)"})
		}
		if p.RetryFor > 0 {
			rows = append(rows, []string{"retry_for", human.Exact(p.RetryFor)})
		}
		if p.MaxSnoozes > 0 {
			rows = append(rows, []string{"max_snoozes", strconv.Itoa(p.MaxSnoozes)})
		}
		if p.MaxCrashes > 0 {
			rows = append(rows, []string{"max_crashes", strconv.Itoa(p.MaxCrashes)})
		}
		if p.HandlerTimeout > 0 {
			rows = append(rows, []string{"handler_timeout", human.Exact(p.HandlerTimeout)})
		}
		rows = append(rows, flowRows(p, q.Partitions)...)
		if p.KeyFailure != "" {
			rows = append(rows, []string{"key_failure", string(p.KeyFailure)})
		}
		term.Table(a.Out, append(rows, [][]string{
			{"held", heldText(p.Held)}, {"history", historyText(p)}, {"partitions", strconv.Itoa(q.Partitions)},
			{"tried for", "about " + human.Short(p.TriedFor()) + ", without the time of the attempts; then a message that always fails is a dead letter"},
		}...))
	})
}

// burstOf returns the burst in force, or 0 without a rate.
func burstOf(p bridge.Policy) int {
	if p.Rate == "" {
		return 0
	}
	return cmp.Or(p.Burst, p.Rate.DefaultBurst())
}

// flowRows returns table rows for the limits on release and delivery.
func flowRows(p bridge.Policy, partitions int) (rows [][]string) {
	each := ""
	if partitions > 1 {
		each = " (in each partition)"
	}
	if p.Rate != "" {
		rows = append(rows, []string{"rate", string(p.Rate) + each}, []string{"burst", strconv.Itoa(burstOf(p)) + each})
		if p.FreeRetries {
			rows = append(rows, []string{"free_retries", "true (the rate does not count for retries)"})
		}
	}
	if p.ReadyLimit > 0 {
		rows = append(rows, []string{"ready_limit", strconv.Itoa(p.ReadyLimit) + each})
	}
	if p.HeldWorkers {
		rows = append(rows, []string{"held_workers", "true (paused)"})
	}
	return rows
}

func millisOf(list bridge.Delays) (all []int64) {
	for _, d := range list.List() {
		all = append(all, d.Milliseconds())
	}
	return all
}

// listPolicies prints the policy of every queue.
func listPolicies(ctx context.Context, a *cli.App, op *admin.Admin, group string) error {
	names, err := op.Queues(ctx)
	if err != nil {
		return err
	}
	list := a.List("QUEUE", "VISIBILITY", "MAX ATTEMPTS", "RETRY MIN", "RETRY MAX", "TRIED FOR", "PAUSED", "PARTITIONS")
	for _, name := range names {
		q, err := readPolicy(ctx, a, op, name, group)
		if err != nil {
			return err
		}
		p := q.policy
		retryMin, retryMax := human.Short(p.RetryMin), human.Short(p.RetryMax)
		if list := p.RetryDelays.List(); list != nil {
			retryMin, retryMax = human.Short(slices.Min(list)), human.Short(slices.Max(list))
		}
		list.Add(q, q.Queue, human.Short(p.VisibilityTimeout), strconv.Itoa(p.MaxAttempts),
			retryMin, retryMax,
			human.Short(p.TriedFor()), strconv.FormatBool(p.Held), strconv.Itoa(q.Partitions))
	}
	return list.End("no queues")
}

// historyText formats the history as queue set takes it.
func historyText(p bridge.Policy) string {
	if p.History == 0 {
		return "off"
	}
	return strconv.Itoa(p.History) + "/" + human.Exact(p.HistoryAge)
}

// heldText formats the setting held with the word that all commands use: paused.
func heldText(held bool) string {
	if held {
		return "true (paused)"
	}
	return "false"
}

func queueShow(a *cli.App) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use:   "show [<queue>]",
		Short: "Show the policy in force, and the number of partitions",
		Long: `Shows the policy in force, and the number of partitions; without a queue, those of all queues that the bridges know.
Each setting comes from the first that has it: the group, the queue, the defaults (written by the bridges from their
environment), the program.`,
		Example: "  duestream queue show\n  duestream queue show emails --group mailer",
	}
	cli.GroupFlag(cmd, &group, "show what holds for this group")
	return a.WithKnownQueues(cmd, cli.GroupCheck(&group), func(ctx context.Context, op *admin.Admin, args []string) error {
		if len(args) == 0 {
			return listPolicies(ctx, a, op, group)
		}
		if err := checkGroupThere(ctx, op, cmd, args[0], group); err != nil {
			return err
		}
		return printPolicy(ctx, a, op, args[0], group)
	})
}
