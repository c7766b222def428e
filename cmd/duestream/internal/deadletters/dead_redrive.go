package deadletters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

type redriveFlags struct {
	selection
	redriveOptions
	noHeaders bool
	rateFlag  string
}

func deadRedrive(a *cli.App) *cobra.Command {
	var o redriveFlags
	cmd := &cobra.Command{
		Use:   "redrive <queue> [<letter>...]",
		Short: "Schedule dead letters again",
		Long: `Schedules dead letters again, each for the group it failed in, from attempt 1 and
without its old expiry. A letter with one of these faults needs a flag. Without the flag
it is refused, and stays as it is (exit code 6):

  its payload was lost           --payload or --payload-file
  its headers cannot be read     --header or --no-headers
  its group no longer exists     --to

After an interrupt, the command finishes the letters that it has begun, and prints how
far it got. Run the same command again for the other letters.`,
		Example: `  duestream dead redrive emails 1767000000000-0
  duestream dead redrive emails --group mailer --error timeout --rate 50/s
  duestream dead redrive emails --reason max_attempts --spread 10m
  duestream dead redrive emails --reason group_gone --to mailer
  duestream dead redrive emails --all --dry-run`,
	}
	o.selection.flags(cmd)
	o.redriveOptions.flags(cmd, "replace the payload of each letter", "replace the payload of each letter by this file",
		"replace the headers of each letter by these", "each letter")
	f := cmd.Flags()
	f.BoolVar(&o.noHeaders, "no-headers", false, "remove the headers of each letter")
	flags.DelayVar(f, &o.Spread, "spread", "delay each letter by a random time of at most this")
	f.StringVar(&o.rateFlag, "rate", "", "at most this many letters per second, like 50/s")
	cmd.MarkFlagsMutuallyExclusive("header", "no-headers")
	return a.WithKnownQueues(cmd, func(args []string) error {
		return errors.Join(o.check(args[1:]), o.complete(a))
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		return redrive(ctx, a, op, args[0], args[1:], o)
	})
}

// complete sets the options that no flag sets directly, and reports the flags that do not parse.
func (o *redriveFlags) complete(a *cli.App) error {
	o.DryRun = o.dryRun
	if err := cli.CheckGroup(o.To); err != nil {
		return err
	}
	if err := o.readPayload(a); err != nil {
		return err
	}
	if o.headerFlag != nil || o.noHeaders {
		headers := map[string]string(o.headerFlag)
		o.Headers = &headers
	}
	var err error
	o.Rate, err = flags.ParseRate(o.rateFlag)
	return err
}

func redrive(ctx context.Context, a *cli.App, op *admin.Admin, queue string, names []string, o redriveFlags) error {
	letters := op.DeadLetters()
	bar := term.NewProgress(a.Err, "letters")
	if bar.Draws() { // if Progress is set, Redrive first counts all letters, which only a progress bar is worth
		o.Progress = func(done, total int) { bar.Of(int64(done), int64(total)) }
	}
	var first firstLetters
	if o.dryRun {
		o.Selected = first.add
	}
	var result admin.RedriveResult
	var err error
	if len(names) > 0 {
		result, err = letters.Redrive(ctx, queue, names, o.RedriveOptions)
	} else {
		result, err = letters.RedriveMatching(ctx, queue, o.filter, o.RedriveOptions)
	}
	bar.Clear()
	if err == nil && len(names) == 0 {
		found := result.Scheduled + result.Gone + result.Left()
		if err := checkFound(ctx, op, queue, o.filter, found); err != nil {
			return err
		}
	}
	value := struct {
		admin.RedriveResult
		DryRun bool         `json:"dry_run"`
		First  firstLetters `json:"first,omitempty"`
	}{result, o.dryRun, first}
	printed := a.Print(value, func() {
		fmt.Fprintf(a.Out, "%s %s, gone %s, without payload %s\n", output.Done("redriven", o.dryRun),
			human.Thousands(result.Scheduled), human.Thousands(result.Gone), human.Thousands(result.NoPayload))
		printRefused(a.Out, result)
		listFirst(a, first, result.Scheduled+result.Left())
	})
	noteStopped(a, err)
	notRedriven := result.Gone + result.Left()
	goneFails := len(names) > 0 && result.Gone > 0 // a letter that is gone is a failure only if it was named
	switch {
	case err != nil:
		return err
	case printed != nil:
		return printed
	case len(names) > 0 && result.Gone == len(names):
		return fmt.Errorf("%w: no such dead letter", admin.ErrNotFound)
	case result.Left() > 0 || goneFails:
		anyDone := result.Scheduled > 0
		return fmt.Errorf("%w: not redriven: %s", exit.Refused(anyDone), human.Counted(notRedriven, "letter"))
	}
	return nil
}

// printRefused prints how many letters were refused, and the flags that they need.
func printRefused(w io.Writer, r admin.RedriveResult) {
	if r.Unreadable > 0 {
		fmt.Fprintf(w, "%s whose headers could not be read: give --header, or --no-headers\n", human.Thousands(r.Unreadable))
	}
	if r.GroupGone > 0 {
		fmt.Fprintf(w, "%s for groups that do not exist: %s (--to sends them to another group)\n",
			human.Thousands(r.GroupGone), groupList(r.GoneGroups))
	}
}

// groupList lists at most ten groups, and says how many more there are.
func groupList(groups []string) string {
	const most = 10
	names := make([]string, 0, most)
	for _, group := range groups[:min(most, len(groups))] {
		names = append(names, human.OneLine(group, 60))
	}
	if more := len(groups) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// firstLetters holds the first ten letters that a dry run selects.
type firstLetters []letterInBrief

type letterInBrief struct {
	Letter string `json:"letter"`
	ID     string `json:"id"`
	Group  string `json:"group,omitempty"`
	Reason string `json:"reason"`
	err    string
}

func (f *firstLetters) add(l admin.Letter) {
	if len(*f) < 10 {
		*f = append(*f, letterInBrief{l.Letter, l.ID, l.Group, l.Reason, l.Error})
	}
}

// listFirst prints the first letters of a dry run.
func listFirst(a *cli.App, first firstLetters, total int) {
	if len(first) == 0 {
		return
	}
	rows := [][]string{{"LETTER", "ID", "GROUP", "REASON", "ERROR"}}
	for _, l := range first {
		group := human.OrDash(human.OneLine(l.Group, 30))
		rows = append(rows, []string{l.Letter, human.OneLine(l.ID, 40), group, human.OneLine(l.Reason, 30),
			human.OneLine(l.err, 60)})
	}
	term.FirstRows(a.Out, rows, total)
}

// noteStopped says after an interrupt how to continue.
func noteStopped(a *cli.App, err error) {
	if errors.Is(err, context.Canceled) {
		a.Note("stopped: the other letters are unchanged; run the same command again for them")
	}
}
