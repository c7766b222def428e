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
		Long: `Changes many scheduled messages: those with the IDs named, or in a file, or all that the
flags select, which must hold together. --dry-run says how many they are, and shows the
first ones. The queue goes on meanwhile: it is done in short steps, and what becomes ready
before its turn is delivered, and counted as gone.

A run that ended early, by an interrupt, an error or a kill, is gone on with by the same
command: what was done is not done again.`,
		Example: `  duestream bulk cancel emails --id-prefix order-42- --dry-run
  duestream bulk reschedule emails --header tenant=acme --in 1h --rate 500/s
  duestream bulk expire emails --due-until 2026-01-01T00:00:00Z`,
	}, bulkCancel(a), bulkReschedule(a), bulkExpire(a))
}

// bulkFlags are the flags that select messages and limit the change.
type bulkFlags struct {
	filter  admin.BulkFilter
	headers flags.Headers
	file    string
	all     bool
	dryRun  bool
	rate    string
	perSec  float64
	spread  time.Duration // only of bulk reschedule
}

func (o *bulkFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.file, "ids-from", "", "those whose IDs are the lines of this file; - is standard input")
	f.StringVar(&o.filter.Prefix, "id-prefix", "", "those whose ID begins with this text")
	f.Var(&o.headers, "header", "those with this header; may be repeated")
	flags.InstantVar(f, &o.filter.From, "due-from", "those that are due at this time or later: RFC 3339")
	flags.InstantVar(f, &o.filter.Until, "due-until", "those that are due before this time: RFC 3339")
	f.BoolVar(&o.filter.Retries, "retries", false, "the messages, and also retries that wait, of all groups")
	f.StringVarP(&o.filter.Group, "group", "g", "", "only retries that wait for this group")
	f.BoolVar(&o.all, "all", false, "all that wait in the queue")
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be done")
	f.StringVar(&o.rate, "rate", "", "at most this many messages per second, like 500/s")
	cmd.MarkFlagsMutuallyExclusive("retries", "group")
}

// named reports whether every message is named by its ID.
func (o *bulkFlags) named(ids []string) bool { return len(ids) > 0 || o.file != "" }

func (o *bulkFlags) check(ids []string) (err error) {
	o.filter.Headers = o.headers
	selected := o.filter.Prefix != "" || len(o.headers) > 0 || !o.filter.From.IsZero() || !o.filter.Until.IsZero() ||
		o.filter.Group != ""
	switch {
	case len(ids) > 0 && o.file != "":
		return usage.Errorf("name IDs, or give them by --ids-from, not both")
	case o.all && (o.named(ids) || selected):
		return usage.Errorf("--all is everything: give it alone, or select messages")
	case !o.named(ids) && !selected && !o.all:
		return usage.Errorf("name IDs, or select messages by flags, or give --all")
	}
	o.perSec, err = flags.ParseRate(o.rate)
	return errors.Join(err, cli.CheckGroup(o.filter.Group))
}

// read puts the IDs of the command line, or of the file, into the filter.
func (o *bulkFlags) read(a *cli.App, ids []string) error {
	o.filter.IDs = ids
	if o.file == "" {
		return nil
	}
	lines, _, closeFile, err := linefile.Open(a.In, o.file)
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
			return fmt.Errorf("%s: read line %d: %w", o.file, lines.Number+1, err)
		case tooLong:
			return usage.Errorf("%s: line %d: %w", o.file, lines.Number, linefile.ErrTooLong)
		case id == "":
			continue
		}
		if err := admin.CheckID(id); err != nil {
			return usage.Errorf("%s: line %d: %w", o.file, lines.Number, err)
		}
		o.filter.IDs = append(o.filter.IDs, id)
	}
	if len(o.filter.IDs) == 0 {
		return usage.Errorf("%s holds no IDs", o.file)
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

// changeMany carries out a change and prints the result. what is the participle of the change, such as "cancelled".
// already describes messages that needed no change.
func changeMany(ctx context.Context, a *cli.App, queue string, o *bulkFlags, call bulkCall,
	what, already string) error {
	const some = 10
	bar, began, v := term.NewProgress(a.Err, what), time.Now(), bulkAnswer{DryRun: o.dryRun}
	options := admin.BulkOptions{Rate: o.perSec, DryRun: o.dryRun}
	if o.dryRun {
		options.Selected = func(m admin.BulkMessage) {
			if len(v.First) < some {
				v.First = append(v.First, m)
			}
		}
	}
	options.Missed = func(m admin.BulkMessage) {
		if len(v.Missed) < some {
			v.Missed = append(v.Missed, m)
		}
	}
	options.Progress = func(r admin.BulkResult) {
		bar.Show(int64(r.Changed), float64(r.Looked)/float64(max(1, r.Looked, r.Total)))
	}
	result, err := call(ctx, queue, o.filter, options)
	bar.Clear()
	v.BulkResult, v.Seconds = result, time.Since(began).Seconds()
	printed := a.Print(v, func() { describeBulk(a, v, o, a.Now(queue), what, already) })
	switch {
	case err != nil:
		if errors.Is(err, context.Canceled) {
			a.Note("stopped: the other messages are as they were; the same command goes on with them")
		}
		return err
	case printed != nil:
		return printed
	case len(o.filter.IDs) > 0 && result.Changed+result.Unchanged == 0 && result.Gone > 0:
		return fmt.Errorf("%w: none of %s", bridge.ErrNotScheduled, human.Counted(result.Gone, "ID"))
	case len(o.filter.IDs) > 0 && result.Gone > 0 || result.Refused > 0:
		kind := exit.Refused(result.Changed+result.Unchanged > 0)
		return fmt.Errorf("%w: not %s: %s", kind, what, human.Counted(result.Gone+result.Refused, "message"))
	}
	return nil
}

func describeBulk(a *cli.App, v bulkAnswer, o *bulkFlags, now time.Time, what, already string) {
	text := fmt.Sprintf("%s %s", output.Done(what, o.dryRun), human.Thousands(v.Changed))
	if !v.To.IsZero() {
		text += ", due "
		if o.spread > 0 {
			text += "within " + human.Short(o.spread) + " from "
		}
		text += human.Clock(v.To, now)
	}
	if v.Unchanged > 0 {
		text += fmt.Sprintf(", %s %s", already, human.Thousands(v.Unchanged))
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
	listBulk(a, v.Missed, v.Gone+v.Refused, now, "not "+what+":")
}

// listBulk prints a table of the first messages, and how many more there are.
func listBulk(a *cli.App, some []admin.BulkMessage, total int, now time.Time, title string) {
	if len(some) == 0 {
		return
	}
	if title != "" {
		fmt.Fprintln(a.Out, title)
	}
	rows := [][]string{{"ID", "FOR", "DUE"}}
	for _, m := range some {
		due := "-"
		if !m.Due.IsZero() {
			due = human.Clock(m.Due, now)
		}
		rows = append(rows, []string{human.OneLine(m.ID, 60), human.OrDash(human.OneLine(m.Group, 30)), due})
	}
	term.Table(a.Out, rows)
	if more := total - len(some); more > 0 {
		fmt.Fprintf(a.Out, "and %s more\n", human.Thousands(more))
	}
}
