package messages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/linefile"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Act returns the command act.
func Act(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "act", Short: "Change everything that a search finds, in any state and queue",
		Long: `Changes the messages that match all flags, as "duestream search" finds them: in the given
queues, or in all queues that the bridges know. --dry-run counts them, and "duestream
search" with the same flags lists them. The queues keep working, because the change is
made in short steps.

--from changes chosen messages: lines that "duestream search --json" printed. If a message
has left its state since, it is counted as gone. A message with the same ID that was
scheduled since, or moved to another time, is changed.

After an interrupt, an error or a kill, run the same command again: it changes what is
left. To repeat "act reschedule --in", see its help. A repeated "act redrive" also redrives
letters that came back dead since.`,
		Example: `  duestream act cancel --header tenant=acme --dry-run
  duestream act reschedule orders --text '"plan":"trial"' --in 24h --rate 500/s
  duestream act redrive --error 'connection refused' --spread 10m
  duestream act purge --from chosen.jsonl --yes`,
	}, actCancel(a), actReschedule(a), actExpire(a), actRedrive(a), actPurge(a))
}

// actFlags are the flags that select messages and limit the change.
type actFlags struct {
	flags.Search
	from     string
	all      bool
	dryRun   bool
	rateFlag string
	rate     float64 // messages per second; 0 = no limit
	hits     []admin.Hit
}

// mostHits is how many hits a file may have; all are read before the change.
const mostHits = 1_000_000

func (o *actFlags) flags(cmd *cobra.Command, kind admin.ActionKind) {
	o.Search.Flags(cmd, kind.States())
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", `messages in this file of lines by "duestream search --json"; - is standard input`)
	f.BoolVar(&o.all, "all", false, "all messages in these queues and states")
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be done")
	f.StringVar(&o.rateFlag, "rate", "", "at most this many messages per second, like 500/s")
}

func (o *actFlags) check(queues []string) (err error) {
	switch {
	case o.from != "" && (o.Narrows() || o.all || len(queues) > 0):
		return usage.Errorf("--from names the messages: give it without queues, --all, and flags that select messages")
	case o.all && o.Selects():
		return usage.Errorf("--all selects all messages: give it alone, or select messages by other flags")
	case o.from == "" && !o.Selects() && !o.all:
		return usage.Errorf("select messages by flags, or give --all or --from")
	}
	o.rate, err = flags.ParseRate(o.rateFlag)
	return errors.Join(err, o.Complete(queues))
}

// readHits reads the file of hits, if one is given.
func (o *actFlags) readHits(a *cli.App) error {
	if o.from == "" {
		return nil
	}
	lines, _, closeFile, err := linefile.Open(a.In, o.from)
	if err != nil {
		return err
	}
	defer closeFile()
	for {
		line, tooLong, err := lines.Next()
		switch {
		case err == io.EOF && len(o.hits) == 0:
			return usage.Errorf("%s holds no messages", o.from)
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("%s: read line %d: %w", o.from, lines.Number+1, err)
		case tooLong:
			return usage.Errorf("%s: line %d: %w", o.from, lines.Number, linefile.ErrTooLong)
		case len(line) == 0:
			continue
		}
		var h admin.Hit
		if json.Unmarshal(line, &h) != nil || h.Queue == "" || h.State == "" {
			return usage.Errorf("%s: line %d: must be a line that `duestream search --json` printed", o.from, lines.Number)
		}
		if len(o.hits) == mostHits {
			return usage.Errorf("%s: must have at most %s lines", o.from, human.Thousands(mostHits))
		}
		o.hits = append(o.hits, h)
	}
}

// run changes the selected messages, or in a dry run counts them.
func (o *actFlags) run(
	ctx context.Context, op *admin.Admin, what admin.Action, dryRun bool, progress func(admin.ActResult),
) (admin.ActResult, error) {
	options := admin.ActOptions{Rate: o.rate, DryRun: dryRun, Load: o.Load, Progress: progress}
	if o.from != "" {
		return op.ActOn(ctx, o.hits, what, options)
	}
	return op.Act(ctx, o.Filter, what, options)
}

// actCommand makes cmd carry out an action. question asks for consent, and names the number of messages with %s; ""
// means that none is needed. done is the participle of the change.
func actCommand(
	a *cli.App, cmd *cobra.Command, o *actFlags, action func() admin.Action, done, question string,
) *cobra.Command {
	consent := &cli.Consent{Yes: true}
	if question != "" {
		consent = cli.ConsentFlag(cmd)
	}
	return a.WithKnownQueues(cmd, func(args []string) error {
		err := errors.Join(o.check(args), action().Validate())
		if err == nil && !o.dryRun {
			err = consent.CheckPossible(a, "every message that the flags select (--dry-run counts them)")
		}
		if err != nil {
			return err
		}
		return o.readHits(a)
	}, func(ctx context.Context, op *admin.Admin, _ []string) error {
		run := func(dryRun bool, progress func(admin.ActResult)) (admin.ActResult, error) {
			return o.run(ctx, op, action(), dryRun, progress)
		}
		if consent.Yes || o.dryRun {
			return act(a, o, action(), done, run)
		}
		return actWithConsent(a, o, action(), done, run, func(n int64) error {
			return consent.Ask(ctx, a, fmt.Sprintf(question, human.Counted(n, "message")))
		})
	})
}

// actWithConsent counts the messages that an action would change, asks for consent, and carries out the action. If the
// count is 0, it prints the count without asking, and changes nothing: later matches are left alone.
func actWithConsent(
	a *cli.App, o *actFlags, what admin.Action, done string, run actRun, ask func(n int64) error,
) error {
	found, err := withBar(a, done, true, run)
	switch {
	case err != nil:
		return err
	case found.Changed == 0:
		run = func(bool, func(admin.ActResult)) (admin.ActResult, error) { return found, nil }
	default:
		if err := ask(found.Changed); err != nil {
			return err
		}
	}
	return act(a, o, what, done, run)
}

// actAnswer is the result as JSON.
type actAnswer struct {
	admin.ActResult
	DryRun  bool    `json:"dry_run"`
	Seconds float64 `json:"seconds"`
}

// actRun carries out an action, and tells its progress.
type actRun func(dryRun bool, progress func(admin.ActResult)) (admin.ActResult, error)

// withBar carries out an action with a progress bar.
func withBar(a *cli.App, done string, dryRun bool, run actRun) (admin.ActResult, error) {
	bar := term.NewProgress(a.Err, done)
	defer bar.Clear()
	return run(dryRun, func(r admin.ActResult) {
		bar.Show(r.Changed, float64(r.Looked)/float64(max(1, r.Looked, r.Total)))
	})
}

// act carries out an action, and prints the result.
func act(a *cli.App, o *actFlags, what admin.Action, done string, run actRun) error {
	began := time.Now()
	result, err := withBar(a, done, o.dryRun, run)
	v := actAnswer{result, o.dryRun, time.Since(began).Seconds()}
	printed := a.Print(v, func() { describeAct(a, v, what, done, a.Now("")) })
	switch {
	case errors.Is(err, context.Canceled):
		a.Note("stopped: the other messages are unchanged; run the same command again to change them")
		return err
	case err != nil:
		return err
	case printed != nil:
		return printed
	case result.Refused > 0:
		return fmt.Errorf("%w: not %s: %s", exit.Refused(result.Changed > 0), done,
			human.Counted(result.Refused, "message"))
	}
	return nil
}

func describeAct(a *cli.App, v actAnswer, what admin.Action, done string, now time.Time) {
	text := fmt.Sprintf("%s %s", output.Done(done, v.DryRun), human.Thousands(v.Changed))
	if v.Found == 0 {
		text = "nothing matches: " + text
	}
	if !v.To.IsZero() {
		text += ", due "
		if what.Spread > 0 {
			text += "within " + human.Short(what.Spread) + " from "
		}
		text += human.Clock(v.To, now)
	}
	for _, count := range []struct {
		name string
		n    int64
	}{{"unchanged", v.Unchanged}, {"refused", v.Refused}, {"in another state", v.Unfit}} {
		if count.n > 0 {
			text += fmt.Sprintf(", %s %s", count.name, human.Thousands(count.n))
		}
	}
	text += fmt.Sprintf(", gone %s; looked at %s", human.Thousands(v.Gone), human.Thousands(v.Looked))
	if v.Seconds >= 1 {
		text += " in " + human.Short(time.Duration(v.Seconds*float64(time.Second)).Round(time.Second))
	}
	fmt.Fprintln(a.Out, text)
}
