package queues

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/written"
)

func queueSet(a *cli.App) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use:   "set <queue> <setting>=<value>...",
		Short: "Change the policy of a queue, or of one of its groups",
		Long: `Changes settings in Redis. Bridges and workers apply them within seconds. An empty value
removes a setting. Without a setting of its own, a group has the setting of its queue,
and a queue has the default of all queues, or the built-in value.

` + settingsHelp() + `
history=50000/24h sets both settings of the history, and history=off ends it and deletes it:
see duestream story. In a queue with partitions, rate, burst, ready_limit and history count
in each partition by itself.`,
		Example: `  duestream queue set emails max_attempts=5 retry_max=10m
  duestream queue set emails --group mailer visibility_timeout=
  duestream queue set callbacks retry_delays=1m,3m,5m,7m,9m max_attempts=6 retry_for=24h
  duestream queue set emails rate=500/s burst=50 ready_limit=10000
  duestream queue set invoices --create max_attempts=5`,
	}
	cli.GroupFlag(cmd, &group, "change the settings of this group")
	a.OldBridgesFlag(cmd)
	var update admin.PolicyUpdate
	return a.WithQueues(cmd, func(args []string) (err error) {
		if update, err = parsePolicy(args[1:]); err != nil {
			return err
		}
		return settings.InWords(update.Check(group))
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := checkGroupExists(ctx, op, cmd, args[0], group); err != nil {
			return err
		}
		if err := op.WritePolicy(ctx, args[0], group, update); err != nil {
			return err
		}
		return printPolicy(ctx, a, op, args[0], group)
	})
}

// settingsHelp lists the settings for the help text.
func settingsHelp() string {
	const indent, width = 22, 88
	var b strings.Builder
	for _, s := range policy.Settings() {
		text := written.Describe(s, settings.WordOf)
		if s.WholeQueue {
			text += " (whole queue only)"
		}
		line := fmt.Sprintf("  %-*s", indent-2, s.Word)
		for word := range strings.FieldsSeq(text) {
			if len(line)+len(word) > width {
				b.WriteString(strings.TrimRight(line, " ") + "\n")
				line = strings.Repeat(" ", indent)
			}
			line += word + " "
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// parsePolicy parses settings of the form setting=value. It does not check their limits.
func parsePolicy(args []string) (u admin.PolicyUpdate, err error) {
	var errs []error
	seen := map[string]bool{}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		switch {
		case !ok:
			errs = append(errs, usage.Errorf("%q: must be setting=value", arg))
			continue
		case seen[name]:
			errs = append(errs, usage.Errorf("%s: is given twice", name))
			continue
		}
		seen[name] = true
		if err := setPolicy(&u, name, value); err != nil {
			errs = append(errs, usage.Errorf("%s %q: %w", name, value, err))
		}
	}
	return u, errors.Join(errs...)
}

func setPolicy(u *admin.PolicyUpdate, name, value string) error {
	s, known := settings.ByWord(name)
	if !known {
		return fmt.Errorf("is not a setting: must be one of %s", strings.Join(settings.Words(), ", "))
	}
	if s.Name == policy.SettingHistory {
		return setHistory(u, value)
	}
	if value == "" {
		u.Clear = append(u.Clear, s.Name)
		return nil
	}
	parsed, err := written.ParseSetting(s, value)
	if err == nil {
		s.Put(u, parsed)
	}
	return err
}

// setHistory parses 50000/24h, 50000, off, or an empty value.
func setHistory(u *admin.PolicyUpdate, value string) error {
	if value == "" {
		u.Clear = append(u.Clear, admin.SettingHistory, admin.SettingHistoryAge)
		return nil
	}
	count, age, hasAge := strings.Cut(value, "/")
	if value == "off" {
		count = "0"
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return errors.New("must be off, or a number of changes and how long they are kept: 50000/24h")
	}
	u.History = &n
	if !hasAge {
		return nil
	}
	kept, err := written.ParseDuration(age)
	u.HistoryAge = &kept
	return err
}
