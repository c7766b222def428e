package queues

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

func queueSet(a *cli.App) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use:   "set <queue> <setting>=<value>...",
		Short: "Change the policy of a queue, or of one of its groups",
		Long: `Changes settings in Redis; bridges and workers take them up within seconds. An empty
value takes a setting back, so that the next level counts again.

  visibility_timeout  how long a delivery may go without a sign of life (100ms to 168h)
  max_attempts        deliveries to a group before a dead letter (1 to 1000000)
  retry_min           delay after the first failure; each further one doubles (from 1ms)
  retry_max           longest delay between attempts
  retry_delays        exact delays after failures instead: 1m,3m,5m; the last one repeats,
                      so one alone is fixed. 0: by retry_min and retry_max
  retry_for           how long a message is tried, from its due time on; 0: no limit
  max_snoozes         how often a group may put a message off (up to 1000000); 0: 1000
  max_crashes         how often a message may be abandoned by workers that end or hang
                      before a dead letter, counted apart from failures; 0: each is one
  handler_timeout     how long a handler may take before its attempt fails; 0: as each worker
                      says itself, which is no limit unless its program sets one
  held                true: what is scheduled does not become ready (whole queue only)
  held_workers        true: workers take nothing new (whole queue only)
  rate                how many messages become ready: 500/s, 30/m or 1/h; 0: no limit (whole
                      queue only; in each partition by itself)
  burst               how many at once after a quiet time; 0: a tenth of a second's
  free_retries        true: retries and redriven dead letters are not subject to the rate
  ready_limit         nothing becomes ready while so many entries wait for the slowest group;
                      retries pass; 0: no limit (whole queue only; in each partition)
  history             changes of state to keep, and how long: 50000/24h; off: none, and what
                      was kept is deleted (whole queue only). See duestream story
  key_failure         block: messages with a key wait for the retries of the one before;
                      skip: they pass it (whole queue only)`,
		Example: `  duestream queue set emails max_attempts=5 retry_max=10m
  duestream queue set emails --group mailer visibility_timeout=
  duestream queue set callbacks retry_delays=1m,3m,5m,7m,9m max_attempts=6 retry_for=24h
  duestream queue set emails rate=500/s burst=50 ready_limit=10000
  duestream queue set invoices --create max_attempts=5`,
	}
	cli.GroupFlag(cmd, &group, "change what holds for this group")
	a.OldBridgesFlag(cmd)
	var update admin.PolicyUpdate
	return a.WithQueues(cmd, func(args []string) (err error) {
		if update, err = parsePolicy(args[1:]); err != nil {
			return err
		}
		return update.Check(group)
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := checkGroupThere(ctx, op, cmd, args[0], group); err != nil {
			return err
		}
		if err := op.WritePolicy(ctx, args[0], group, update); err != nil {
			return err
		}
		return printPolicy(ctx, a, op, args[0], group)
	})
}

// parsePolicy parses settings of the form setting=value, and checks their limits.
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
	if err := errors.Join(errs...); err != nil {
		return u, err
	}
	return u, settings.RenameFields(policyOf(u).Validate(), func(field string) string { return settings.PolicyFields[field] })
}

// policyOf returns a policy to validate an update with: the settings of the update, and settings that cannot conflict
// with them.
func policyOf(u admin.PolicyUpdate) bridge.Policy {
	p := bridge.DefaultPolicy()
	if u.VisibilityTimeout != nil {
		p.VisibilityTimeout = *u.VisibilityTimeout
	}
	if u.MaxAttempts != nil {
		p.MaxAttempts = *u.MaxAttempts
	}
	if u.History != nil {
		p.History = *u.History
	}
	if u.HistoryAge != nil {
		p.HistoryAge = *u.HistoryAge
	}
	switch {
	case u.RetryMin != nil && u.RetryMax != nil:
		p.RetryMin, p.RetryMax = *u.RetryMin, *u.RetryMax
	case u.RetryMin != nil:
		p.RetryMin, p.RetryMax = *u.RetryMin, *u.RetryMin
	case u.RetryMax != nil:
		p.RetryMin, p.RetryMax = *u.RetryMax, *u.RetryMax
	}
	if u.RetryDelays != nil {
		p.RetryDelays = *u.RetryDelays
	}
	if u.RetryFor != nil {
		p.RetryFor = *u.RetryFor
	}
	if u.MaxSnoozes != nil {
		p.MaxSnoozes = *u.MaxSnoozes
	}
	if u.KeyFailure != nil {
		p.KeyFailure = *u.KeyFailure
	}
	if u.MaxCrashes != nil {
		p.MaxCrashes = *u.MaxCrashes
	}
	if u.HandlerTimeout != nil {
		p.HandlerTimeout = *u.HandlerTimeout
	}
	if u.Rate != nil {
		p.Rate = *u.Rate
	}
	if u.Burst != nil {
		p.Burst = *u.Burst
	}
	if u.ReadyLimit != nil {
		p.ReadyLimit = *u.ReadyLimit
	}
	return p
}

func setPolicy(u *admin.PolicyUpdate, name, value string) error {
	if name == "history" {
		return setHistory(u, value)
	}
	if value == "" {
		for inRedis, here := range settings.PolicyFields {
			if here == name {
				u.Clear = append(u.Clear, inRedis)
				return nil
			}
		}
	}
	var err error
	switch name {
	case "visibility_timeout":
		u.VisibilityTimeout, err = parsed(flags.ParseDuration(value))
	case "retry_min":
		u.RetryMin, err = parsed(flags.ParseDuration(value))
	case "retry_max":
		u.RetryMax, err = parsed(flags.ParseDuration(value))
	case "retry_delays":
		u.RetryDelays, err = parsed(flags.ParseDelays(value))
	case "retry_for":
		u.RetryFor, err = parsed(flags.ParseDuration(value))
	case "max_attempts":
		u.MaxAttempts, err = parseNumber(value)
	case "max_snoozes":
		u.MaxSnoozes, err = parseNumber(value)
	case "max_crashes":
		u.MaxCrashes, err = parseNumber(value)
	case "handler_timeout":
		u.HandlerTimeout, err = parsed(flags.ParseDuration(value))
	case "held":
		u.Held, err = parseSwitch(value)
	case "held_workers":
		u.HeldWorkers, err = parseSwitch(value)
	case "free_retries":
		u.FreeRetries, err = parseSwitch(value)
	case "rate":
		u.Rate = readRate(value)
	case "burst":
		u.Burst, err = parseNumber(value)
	case "ready_limit":
		u.ReadyLimit, err = parseNumber(value)
	case "key_failure":
		u.KeyFailure = (*bridge.KeyFailure)(&value)
	case "history_age":
		u.HistoryAge, err = parsed(flags.ParseDuration(value))
	default:
		err = fmt.Errorf("is not a setting: must be one of %s",
			strings.Join(slices.Sorted(maps.Values(settings.PolicyFields)), ", "))
	}
	return err
}

func parseSwitch(value string) (*bool, error) {
	is, err := strconv.ParseBool(value)
	if err != nil {
		return nil, errors.New("must be true or false")
	}
	return &is, nil
}

// readRate parses 500/s, 500, 30/m, 1/h or 0. It is validated with all other settings.
func readRate(value string) *bridge.Rate {
	rate := bridge.Rate(value).Normal()
	if value == "0" {
		rate = ""
	}
	return &rate
}

func parseNumber(value string) (*int, error) {
	n, err := strconv.Atoi(value)
	if err != nil {
		return nil, errors.New("must be a whole number")
	}
	return &n, nil
}

// setHistory parses 50000/24h, 50000, off, or an empty value.
func setHistory(u *admin.PolicyUpdate, value string) (err error) {
	if value == "" {
		u.Clear = append(u.Clear, admin.SettingHistory, admin.SettingHistoryAge)
		return nil
	}
	most, age, both := strings.Cut(value, "/")
	if most == "off" && !both {
		most = "0"
	}
	if u.History, err = parsed(strconv.Atoi(most)); err != nil {
		return errors.New("must be off, or a number of changes and how long they are kept: 50000/24h")
	}
	if both {
		u.HistoryAge, err = parsed(flags.ParseDuration(age))
	}
	return err
}

func parsed[T any](value T, err error) (*T, error) { return &value, err }
