package messages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
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

// Bulk returns the command bulk.
func Bulk(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "bulk", Short: "Cancel, move or expire many scheduled messages at once",
		Long: `Changes many scheduled messages. Select them by IDs, as arguments or in a file, or by
flags. A message must match all flags. --dry-run prints how many messages match, and the
first ones. The queue keeps working, because the change is made in short steps. If a
message becomes ready before the change reaches it, it is delivered, and counted as gone.

After an interrupt, an error or a kill, run the same command again. It skips the
messages that the first run changed. To repeat "bulk reschedule --in", see its help.`,
		Example: `  duestream bulk cancel emails --id-prefix order-42- --dry-run
  duestream bulk reschedule emails --header tenant=acme --in 1h --rate 500/s
  duestream bulk expire emails --due-until 2026-01-01T00:00:00Z`,
	}, bulkCancel(a), bulkReschedule(a), bulkExpire(a))
}

// bulkFlags are the flags that select messages and limit the change.
type bulkFlags struct {
	filter   admin.BulkFilter
	headers  flags.Headers
	idsFile  string
	all      bool
	dryRun   bool
	rateFlag string
	rate     float64       // messages per second; 0 = no limit
	spread   time.Duration // only of bulk reschedule
}

func (o *bulkFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.idsFile, "ids-from", "", "messages whose IDs are the lines of this file; - is standard input")
	f.StringVar(&o.filter.Prefix, "id-prefix", "", "messages whose ID begins with this text")
	f.Var(&o.headers, "header", "messages with this header; may be repeated")
	flags.InstantVar(f, &o.filter.From, "due-from", "messages that are due at this time or later: RFC 3339")
	flags.InstantVar(f, &o.filter.Until, "due-until", "messages that are due before this time: RFC 3339")
	f.BoolVar(&o.filter.Retries, "retries", false, "also the waiting retries of the messages, in all groups")
	f.StringVarP(&o.filter.Group, "group", "g", "", "only waiting retries of this group")
	f.BoolVar(&o.all, "all", false, "all messages that wait in the queue")
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be done")
	f.StringVar(&o.rateFlag, "rate", "", "at most this many messages per second, like 500/s")
	cmd.MarkFlagsMutuallyExclusive("retries", "group")
}

// byID reports whether the command line, or a file, names the messages by their IDs.
func (o *bulkFlags) byID(ids []string) bool { return len(ids) > 0 || o.idsFile != "" }

func (o *bulkFlags) check(ids []string) (err error) {
	o.filter.Headers = o.headers
	selected := o.filter.Prefix != "" || len(o.headers) > 0 || !o.filter.From.IsZero() || !o.filter.Until.IsZero() ||
		o.filter.Group != ""
	switch {
	case len(ids) > 0 && o.idsFile != "":
		return usage.Errorf("name IDs, or give them by --ids-from, not both")
	case o.all && (o.byID(ids) || selected):
		return usage.Errorf("--all selects all messages: give it alone, or select messages by IDs or other flags")
	case !o.byID(ids) && !selected && !o.all:
		return usage.Errorf("name IDs, or select messages by flags, or give --all")
	}
	o.rate, err = flags.ParseRate(o.rateFlag)
	return errors.Join(err, cli.CheckGroup(o.filter.Group))
}

// readIDs puts the IDs of the command line, or of the file, into the filter.
func (o *bulkFlags) readIDs(a *cli.App, ids []string) error {
	o.filter.IDs = ids
	if o.idsFile == "" {
		return nil
	}
	lines, _, closeFile, err := linefile.Open(a.In, o.idsFile)
	if err != nil {
		return err
	}
	defer closeFile()
	for {
		line, tooLong, err := lines.Next()
		if err == io.EOF {
			break
		}
		id := string(line)
		switch {
		case err != nil:
			return fmt.Errorf("%s: read line %d: %w", o.idsFile, lines.Number+1, err)
		case tooLong:
			return usage.Errorf("%s: line %d: %w", o.idsFile, lines.Number, linefile.ErrTooLong)
		case id == "":
			continue
		}
		if err := admin.CheckID(id); err != nil {
			return usage.Errorf("%s: line %d: %w", o.idsFile, lines.Number, err)
		}
		o.filter.IDs = append(o.filter.IDs, id)
	}
	if len(o.filter.IDs) == 0 {
		return usage.Errorf("%s holds no IDs", o.idsFile)
	}
	return nil
}

// bulkCall changes the selected messages of a queue: it cancels, reschedules or expires them.
type bulkCall func(context.Context, string, admin.BulkFilter, admin.BulkOptions) (admin.BulkResult, error)

// bulkAnswer is the result as JSON.
type bulkAnswer struct {
	admin.BulkResult
	DryRun  bool                `json:"dry_run"`
	Seconds float64             `json:"seconds"`
	First   []admin.BulkMessage `json:"first,omitempty"`  // a dry run's first selected messages
	Missed  []admin.BulkMessage `json:"missed,omitempty"` // the first messages that were gone or refused
}

// changeMany carries out a change and prints the result. participle names the change, such as "cancelled". unchanged
// is the text for messages that needed no change, such as "already due at that time".
func changeMany(ctx context.Context, a *cli.App, queue string, o *bulkFlags, call bulkCall,
	participle, unchanged string) error {
	const listed = 10
	bar, began, v := term.NewProgress(a.Err, participle), time.Now(), bulkAnswer{DryRun: o.dryRun}
	options := admin.BulkOptions{Rate: o.rate, DryRun: o.dryRun}
	if o.dryRun {
		options.Selected = func(m admin.BulkMessage) {
			if len(v.First) < listed {
				v.First = append(v.First, m)
			}
		}
	}
	options.Missed = func(m admin.BulkMessage) {
		if len(v.Missed) < listed {
			v.Missed = append(v.Missed, m)
		}
	}
	options.Progress = func(r admin.BulkResult) {
		bar.Show(int64(r.Changed), float64(r.Looked)/float64(max(1, r.Looked, r.Total)))
	}
	result, err := call(ctx, queue, o.filter, options)
	bar.Clear()
	v.BulkResult, v.Seconds = result, time.Since(began).Seconds()
	printed := a.Print(v, func() { describeBulk(a, v, o, a.Now(queue), participle, unchanged) })
	// A message that is gone is a failure only if it was named by its ID.
	byID, anyDone := len(o.filter.IDs) > 0, result.Changed+result.Unchanged > 0
	switch {
	case err != nil:
		if errors.Is(err, context.Canceled) {
			a.Note("stopped: the other messages are unchanged; run the same command again to change them")
		}
		return err
	case printed != nil:
		return printed
	case byID && !anyDone && result.Gone > 0:
		return fmt.Errorf("%w: none of %s", bridge.ErrNotScheduled, human.Counted(result.Gone, "ID"))
	case byID && result.Gone > 0 || result.Refused > 0:
		return fmt.Errorf("%w: not %s: %s", exit.Refused(anyDone), participle,
			human.Counted(result.Gone+result.Refused, "message"))
	}
	return nil
}

func describeBulk(a *cli.App, v bulkAnswer, o *bulkFlags, now time.Time, participle, unchanged string) {
	text := fmt.Sprintf("%s %s", output.Done(participle, o.dryRun), human.Thousands(v.Changed))
	if !v.To.IsZero() {
		text += ", due "
		if o.spread > 0 {
			text += "within " + human.Short(o.spread) + " from "
		}
		text += human.Clock(v.To, now)
	}
	if v.Unchanged > 0 {
		text += fmt.Sprintf(", %s %s", unchanged, human.Thousands(v.Unchanged))
	}
	text += ", gone " + human.Thousands(v.Gone)
	if v.Refused > 0 {
		text += ", refused " + human.Thousands(v.Refused)
	}
	if v.Seconds >= 1 && !o.dryRun {
		text += fmt.Sprintf("; %s, %s/s", human.Short(time.Duration(v.Seconds*float64(time.Second)).Round(time.Second)),
			human.Thousands(int64(float64(v.Changed)/v.Seconds)))
	}
	fmt.Fprintln(a.Out, text)
	listBulk(a, v.First, v.Changed, now, "")
	listBulk(a, v.Missed, v.Gone+v.Refused, now, "not "+participle+":")
}

// listBulk prints a table of the first messages of total.
func listBulk(a *cli.App, first []admin.BulkMessage, total int, now time.Time, title string) {
	if len(first) == 0 {
		return
	}
	if title != "" {
		fmt.Fprintln(a.Out, title)
	}
	rows := [][]string{{"ID", "FOR", "DUE"}}
	for _, m := range first {
		due := "-"
		if !m.Due.IsZero() {
			due = human.Clock(m.Due, now)
		}
		rows = append(rows, []string{human.OneLine(m.ID, 60), human.OrDash(human.OneLine(m.Group, 30)), due})
	}
	term.FirstRows(a.Out, rows, total)
}
