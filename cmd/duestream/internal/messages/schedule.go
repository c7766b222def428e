// Package messages has the commands that schedule, cancel and move messages.
package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

type scheduleOptions struct {
	when                   flags.When
	spread                 time.Duration
	id                     string
	headers                flags.Headers
	maxAttempts            int
	retryDelays            flags.Delays
	retryFor               time.Duration
	maxSnoozes, maxCrashes int
	handlerTimeout         time.Duration
	keepResult             time.Duration
	expiresIn              time.Duration
	expiresAt              time.Time
	dedup                  time.Duration
	replace                string
	key                    string
	file                   string
	fromLine               int
	duplicates             bool
	given                  func(flag string) bool // reports whether the command line has the flag
}

// Schedule returns the command schedule.
func Schedule(a *cli.App) *cobra.Command {
	var o scheduleOptions
	cmd := &cobra.Command{
		Use:   "schedule <queue> [payload | -]",
		Short: "Schedule a message, or a file of messages",
		Long: `Schedules a message: the payload is the argument, or standard input when it is "-" or
absent. Without --in or --at it is ready at once.

With --file, schedules one message per line of a file ("-" is standard input). Each
line is a JSON object with these fields, all optional:

  id              names the message (string)
  payload         a string stands for its bytes, any other JSON for its compact text
  payload_base64  the payload as base64, if it is not UTF-8
  in_ms           delay in ms from the moment the line is sent; or
  at_ms           due time, Unix ms
  spread_ms       delays the message by a further 0 to this, chosen by a hash of its ID
  headers         object of strings
  max_attempts    deliveries before a dead letter
  retry_delays_ms delays after failed attempts, in ms (array of numbers)
  retry_for_ms    how long the message is tried, from its due time on
  max_snoozes     how often a group may snooze the message
  max_crashes     how often workers may abandon the message (failures count apart)
  handler_timeout_ms how long a handler may take, in ms
  result_ms          how long the result of each group is kept, in ms
  expires_ms      Unix ms after which the message is dead-lettered instead of delivered
  key             ordering key: its messages are delivered one at a time (string)

--in, --at, --spread, --key, --header, --expires-in, --expires-at, --max-attempts,
--retry-delays, --retry-for, --max-snoozes, --max-crashes, --handler-timeout and
--keep-result apply to lines that lack the field. Headers are added to those of the line.

You may schedule a file again: for 24 h (--dedup) an ID that was accepted is refused,
and counted as a duplicate. A line without an ID gets an ID made from its number and its
SHA-256, so the same line at the same place is the same message. A refused line does not
stop the others (exit code 6). The first ten refused lines are reported with their
numbers. If Redis is full, or away for longer than the retries last, or after Ctrl-C,
the command stops and prints the line to continue from (--from-line).`,
		Example: `  duestream schedule emails --in 15m --id order-42 --header trace=abc 'hello'
  duestream schedule reports --at 2026-01-02T09:00:00+01:00 - < report.pdf
  duestream schedule emails --file messages.ndjson --header source=import --duplicates`,
		Args: cli.NumberOfArgs(1, 2),
	}
	a.JSONFlag(cmd)
	a.DurabilityFlag(cmd)
	a.OldBridgesFlag(cmd)
	f := cmd.Flags()
	o.when.Flags(cmd)
	flags.DelayVar(f, &o.spread, "spread",
		"delay by a further 0 to this, to spread messages that are due at once; a hash of the ID decides by how much")
	f.StringVar(&o.id, "id", "",
		"ID of the message; while it is scheduled, another message with this ID is refused. Default: a new ULID")
	f.Var(&o.headers, "header", "add a header; may be given again")
	f.IntVar(&o.maxAttempts, "max-attempts", 0, "deliveries to a group before a dead letter; 0 = by policy")
	f.Var(&o.retryDelays, "retry-delays",
		"exact delays after failed attempts: 1m,3m,5m; the last one repeats. Default: by policy")
	flags.DelayVar(f, &o.retryFor, "retry-for",
		"how long the message is tried, from its due time on. Default: by policy")
	f.IntVar(&o.maxSnoozes, "max-snoozes", 0, "how often a group may snooze the message; 0 = by policy")
	f.IntVar(&o.maxCrashes, "max-crashes", 0,
		"how often workers may abandon the message, counted apart from failures; 0 = by policy")
	flags.DelayVar(f, &o.keepResult, "keep-result",
		"keep the result of each group for so long, for duestream wait and result: 1s to 168h. Default: no result is kept")
	flags.DelayVar(f, &o.handlerTimeout, "handler-timeout",
		"how long a handler may take before the attempt fails. Default: by policy, or else by the worker")
	flags.DelayVar(f, &o.expiresIn, "expires-in",
		"dead-letter the message if it is not delivered within this time from now")
	flags.InstantVar(f, &o.expiresAt, "expires-at",
		"dead-letter the message instead of delivering it after this time: RFC 3339")
	flags.DelayVar(f, &o.dedup, "dedup",
		"refuse the ID for this time, also after delivery; needs --id. Default with --file: 24h")
	f.StringVar(&o.replace, "replace", "",
		"replace a scheduled message with this --id: always, or only if the new due time is later or earlier")
	f.StringVar(&o.key, "key", "",
		"ordering key, like a customer's: its messages are delivered one at a time, in due order")
	f.StringVarP(&o.file, "file", "f", "", "schedule a message per line of this file; - = standard input")
	f.IntVar(&o.fromLine, "from-line", 1, "with --file: skip the lines before this one")
	cmd.MarkFlagsMutuallyExclusive("expires-in", "expires-at")
	f.BoolVar(&o.duplicates, "duplicates", false, "with --file: list the lines whose ID was taken already")
	cmd.MarkFlagsMutuallyExclusive("file", "id")
	cmd.MarkFlagsMutuallyExclusive("file", "replace")
	o.given = f.Changed
	return a.WithRun(cmd, nil, func(ctx context.Context, args []string) error {
		if o.file != "" {
			return scheduleFile(ctx, a, o, args)
		}
		options, err := o.options()
		if err != nil {
			return err
		}
		payload, err := cli.ReadPayload(a, args[1:])
		if err != nil {
			return err
		}
		return a.UseClient(ctx, func(client *bridge.Client, op *admin.Admin) error {
			if err := o.checkExpiry(ctx, op, args[0]); err != nil {
				return err
			}
			return scheduleOne(ctx, a, client, op, args[0], payload, o.id, options)
		})
	})
}

func scheduleOne(
	ctx context.Context, a *cli.App, client *bridge.Client, op *admin.Admin, queue string, payload []byte, id string,
	options []bridge.Option,
) error {
	receipt, err := client.Schedule(ctx, queue, payload, options...)
	if errors.Is(err, bridge.ErrDuplicate) {
		return explainDuplicate(ctx, a, op, queue, id, err)
	}
	// With ErrNotDurable and a receipt the message is scheduled: print it, and return the error.
	if err != nil && (!errors.Is(err, bridge.ErrNotDurable) || receipt.Due.IsZero()) {
		return err
	}
	defer cli.WarnNoBridge(ctx, a, op)
	value := struct {
		Queue string `json:"queue"`
		output.ScheduledAt
		Ready    bool `json:"ready"`
		Replaced bool `json:"replaced,omitempty"`
	}{queue, output.NewScheduledAt(receipt.ID, receipt.Due), receipt.Ready, receipt.Replaced}
	return errors.Join(err, a.Print(value, func() {
		replaced := ""
		if receipt.Replaced {
			replaced = ", in the place of an earlier one"
		}
		fmt.Fprintf(a.Out, "%s  due %s%s\n", receipt.ID, human.Clock(receipt.Due, a.Now(queue)), replaced)
	}))
}

// explainDuplicate adds the end of the ID's dedup window to a duplicate error, if the ID has such a window.
func explainDuplicate(ctx context.Context, a *cli.App, op *admin.Admin, queue, id string, err error) error {
	until, windowErr := op.Remembered(ctx, queue, id)
	now, timeErr := op.Time(ctx, queue)
	if windowErr != nil || timeErr != nil || !until.After(now) {
		return err // the window cannot be read, or the ID has none because the first message is still scheduled
	}
	return fmt.Errorf("%w: %s took it before; its ID is remembered until %s", err, queue,
		until.Local().Format(time.RFC3339))
}

// checkExpiry refuses a message that would expire before it is due, in the cases that need the clock of the server.
func (o *scheduleOptions) checkExpiry(ctx context.Context, op *admin.Admin, queue string) error {
	if o.expiresAt.IsZero() || !o.when.At.IsZero() {
		return nil
	}
	now, err := op.Time(ctx, queue)
	if err != nil {
		return err
	}
	return checkExpiresAfter(o.expiresAt, now.Add(o.when.In+o.spread))
}

// checkExpiresAfter refuses a message that expires before its latest due time, or at that time.
func checkExpiresAfter(expires, latestDue time.Time) error {
	if expires.After(latestDue) {
		return nil
	}
	return usage.Errorf("expires %s: must be after the due time %s", expires.Format(time.RFC3339),
		latestDue.Format(time.RFC3339))
}

// setRetries copies the retry flags into the message.
func (o *scheduleOptions) setRetries(m *bridge.NewMessage) {
	m.MaxAttempts, m.RetryDelays, m.RetryFor = o.maxAttempts, bridge.Delays(o.retryDelays), o.retryFor
	m.MaxSnoozes, m.MaxCrashes, m.HandlerTimeout = o.maxSnoozes, o.maxCrashes, o.handlerTimeout
	m.KeepResult = o.keepResult
}

var replaceOptions = map[string]bridge.Option{
	"": nil, "always": bridge.Replace, "later": bridge.ReplaceLater, "earlier": bridge.ReplaceEarlier,
}

// options turns the flags into options, and checks everything that needs no Redis.
func (o *scheduleOptions) options() ([]bridge.Option, error) {
	all := []bridge.Option{o.when.Option()}
	if o.spread > 0 {
		all = append(all, bridge.Spread(o.spread))
	}
	if o.id != "" {
		if err := admin.CheckID(o.id); err != nil {
			return nil, err
		}
		all = append(all, bridge.WithID(o.id))
	}
	if o.given("key") {
		if err := admin.CheckKey(o.key); err != nil {
			return nil, err
		}
		all = append(all, bridge.Key(o.key))
	}
	for name, value := range o.headers {
		all = append(all, bridge.Header(name, value))
	}
	if o.maxAttempts != 0 {
		if err := admin.CheckMaxAttempts(o.maxAttempts); err != nil {
			return nil, err
		}
	}
	all = append(all, func(m *bridge.NewMessage) { o.setRetries(m) })
	if !o.when.At.IsZero() && !o.expiresAt.IsZero() {
		if err := checkExpiresAfter(o.expiresAt, o.when.At.Add(o.spread)); err != nil {
			return nil, err
		}
	}
	if latest := o.when.In + o.spread; o.given("expires-in") && o.when.At.IsZero() && o.expiresIn <= latest {
		return nil, usage.Errorf("expires-in %s: must be after the due time, which is in %s at the latest",
			human.Short(o.expiresIn), human.Short(latest))
	}
	all = append(all, bridge.ExpiresIn(o.expiresIn))
	if !o.expiresAt.IsZero() {
		all = append(all, bridge.ExpiresAt(o.expiresAt))
	}
	switch replace, known := replaceOptions[o.replace]; {
	case !known:
		return nil, usage.Errorf("replace %q: must be always, later or earlier", o.replace)
	case replace != nil && (o.id == "" || o.dedup > 0):
		return nil, usage.Errorf("replace %s: needs --id, and no --dedup", o.replace)
	case replace != nil:
		all = append(all, replace)
	}
	if o.dedup > 0 {
		if o.id == "" {
			return nil, usage.Errorf("dedup %s: needs --id", human.Short(o.dedup))
		}
		all = append(all, bridge.Dedup(o.dedup))
	}
	return all, nil
}
