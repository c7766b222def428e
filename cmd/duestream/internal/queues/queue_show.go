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
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/internal/written"
)

// queuePolicy is a queue, or a group of it, with its policy.
type queuePolicy struct {
	queue, group string
	policy       bridge.Policy
	partitions   int
	known        bool // the bridges know the queue
}

// MarshalJSON returns one object with the settings, and facts about the queue.
func (q queuePolicy) MarshalJSON() ([]byte, error) {
	object := view.Object{{Name: "queue", Value: q.queue}}
	if q.group != "" {
		object = append(object, view.Member{Name: "group", Value: q.group})
	}
	for _, s := range policy.Settings() {
		name, value := s.Name, s.Get(q.policy)
		switch name {
		case policy.SettingVisibility:
			name = "visibility_timeout_ms"
		case policy.SettingBurst:
			value = burstOf(q.policy)
		}
		if !s.IsOff(value) {
			object = append(object, view.Member{Name: name, Value: settings.JSON(s, value)})
		}
	}
	tried := q.policy.TriedFor().Milliseconds() // about how long a message is tried until it becomes a dead letter
	return append(object, view.Member{Name: "tried_for_ms", Value: tried},
		view.Member{Name: "partitions", Value: q.partitions}, view.Member{Name: "known", Value: q.known}).MarshalJSON()
}

func readPolicy(ctx context.Context, a *cli.App, op *admin.Admin, queue, group string) (queuePolicy, error) {
	p, warning, err := op.ReadPolicy(ctx, queue, group)
	if err != nil {
		return queuePolicy{}, err
	}
	if warning != nil {
		a.Note("duestream: %s: settings that are ignored: %s", queue, warning.Error())
	}
	counts, err := op.Partitions(ctx, queue)
	return queuePolicy{queue: queue, group: group, policy: p, partitions: counts.Latest(), known: true}, err
}

func printPolicy(ctx context.Context, a *cli.App, op *admin.Admin, queue, group string) error {
	q, err := readPolicy(ctx, a, op, queue, group)
	if err == nil {
		q.known, err = isKnown(ctx, op, queue)
	}
	if err != nil {
		return err
	}
	noteUnknown(a, queue, q.known)
	return a.Print(q, func() {
		tried := "about " + human.Short(q.policy.TriedFor()) +
			", without the time of the attempts; then a message that always fails is a dead letter"
		term.Table(a.Out, append(q.rows(), []string{"partitions", strconv.Itoa(q.partitions)}, []string{"tried for", tried}))
	})
}

// rows returns a table row for each setting, except optional settings that are not set.
func (q queuePolicy) rows() (rows [][]string) {
	inEach := ""
	if q.partitions > 1 {
		inEach = " (in each partition)"
	}
	notes := map[string]string{
		policy.SettingRetryDelays: " (retry_min and retry_max do not count)",
		policy.SettingRate:        inEach, policy.SettingBurst: inEach, policy.SettingReadyLimit: inEach,
		policy.SettingFreeRetries: " (the rate does not count for retries)", policy.SettingHeldWorkers: " (paused)",
	}
	if q.policy.Held {
		notes[policy.SettingHeld] = " (paused)"
	}
	for _, s := range policy.Settings() {
		value := s.Get(q.policy)
		shown := written.Setting(s, value)
		switch s.Name {
		case policy.SettingBurst:
			value = burstOf(q.policy)
			shown = written.Setting(s, value)
		case policy.SettingFreeRetries:
			if q.policy.Rate == "" {
				continue
			}
		case policy.SettingHistory:
			shown = historyText(q.policy)
		case policy.SettingHistoryAge: // shown with history
			continue
		}
		if !s.IsOff(value) {
			rows = append(rows, []string{s.Word, shown + notes[s.Name]})
		}
	}
	return rows
}

// burstOf returns the burst in force, or 0 without a rate.
func burstOf(p bridge.Policy) policy.Value {
	if p.Rate == "" {
		return policy.Value{}
	}
	return policy.Value{Number: int64(cmp.Or(p.Burst, p.Rate.DefaultBurst()))}
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
		list.Add(q, q.queue, human.Short(p.VisibilityTimeout), strconv.Itoa(p.MaxAttempts),
			retryMin, retryMax, human.Short(p.TriedFor()), strconv.FormatBool(p.Held), strconv.Itoa(q.partitions))
	}
	return list.Finish("no queues")
}

// historyText formats the history as queue set takes it.
func historyText(p bridge.Policy) string {
	if p.History == 0 {
		return "off"
	}
	return strconv.Itoa(p.History) + "/" + written.Duration(p.HistoryAge)
}

func queueShow(a *cli.App) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use:   "show [<queue>]",
		Short: "Show the policy in force, and the number of partitions",
		Long: `Shows the policy in force, and the number of partitions. Without a queue, it shows all
queues that the bridges know. The value of a setting comes from the first of these that
has one: the group, the queue, the defaults (written by the bridges from their
environment), the program.`,
		Example: "  duestream queue show\n  duestream queue show emails --group mailer",
	}
	cli.GroupFlag(cmd, &group, "show the policy of this group")
	return a.WithKnownQueues(cmd, cli.GroupCheck(&group), func(ctx context.Context, op *admin.Admin, args []string) error {
		if len(args) == 0 {
			return listPolicies(ctx, a, op, group)
		}
		if err := checkGroupExists(ctx, op, cmd, args[0], group); err != nil {
			return err
		}
		return printPolicy(ctx, a, op, args[0], group)
	})
}
