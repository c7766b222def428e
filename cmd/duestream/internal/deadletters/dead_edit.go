package deadletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

type editFlags struct {
	redriveOptions
	unset []string // names of headers
}

func deadEdit(a *cli.App) *cobra.Command {
	var o editFlags
	cmd := &cobra.Command{
		Use:   "edit <queue> <letter>",
		Short: "Schedule a dead letter again, with another payload or other headers",
		Long: `Changes the payload or the headers of a dead letter, and schedules it at once for the
group it failed in, or for --to, from attempt 1 and without its old expiry. All other
parts stay as they were. The command either schedules the changed message and deletes
the letter, or changes nothing.

On a terminal, if the command line names no change, $VISUAL or $EDITOR opens the payload
and the headers as JSON. If you leave the text as it is, or it has an error, nothing
happens.`,
		Example: `  duestream dead edit emails 1767000000000-0 --header tenant=acme --unset-header debug
  duestream dead edit emails 1767000000000-0 --payload-file - --in 5m <fixed.json
  EDITOR=nano duestream dead edit emails 1767000000000-0`,
	}
	o.flags(cmd, "the new payload", "the new payload is in this file", "set this header", "it")
	f := cmd.Flags()
	f.StringArrayVar(&o.unset, "unset-header", nil, "remove the header of this name; may be given again")
	f.BoolVar(&o.DryRun, "dry-run", false, "only show what would be scheduled")
	inEditor := false
	return a.WithKnownQueues(cmd, func([]string) error {
		err := o.readPayload(a)
		inEditor = o.Payload == nil && o.headerFlag == nil && o.unset == nil
		if err = errors.Join(o.check(), err); err == nil && inEditor && !term.IsTerminal(a.In) {
			err = usage.Errorf("nothing to change: give --payload, --payload-file, --header or --unset-header; " +
				"on a terminal, an editor opens if you give none of them")
		}
		return err
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		l, err := op.DeadLetters().Show(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		change := change{payload: o.Payload, headers: o.apply(l.Headers)}
		if inEditor {
			editor := func(ctx context.Context, file string) error { return openEditor(ctx, a, file) }
			if change, err = editLetter(ctx, l, editor); err != nil {
				return err
			}
		}
		return edit(ctx, a, op.DeadLetters(), args[0], l, change, o)
	})
}

func (o *editFlags) check() error {
	if err := cli.CheckGroup(o.To); err != nil {
		return err
	}
	for _, name := range o.unset {
		if _, both := o.headerFlag[name]; both {
			return usage.Errorf("header %q is set and unset", name)
		}
	}
	return nil
}

// apply returns the old headers with the changes of the flags, or nil if the flags change none.
func (o *editFlags) apply(old map[string]string) *map[string]string {
	if o.headerFlag == nil && o.unset == nil {
		return nil
	}
	all := maps.Clone(old)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, o.headerFlag)
	for _, name := range o.unset {
		delete(all, name)
	}
	return &all
}

// edit redrives a letter with a change. It does not read the letter again, because a letter never changes: it can only
// be deleted.
func edit(ctx context.Context, a *cli.App, letters *admin.DeadLetters, queue string, l admin.Letter, c change,
	o editFlags) error {
	if c.headers != nil {
		l.Headers = *c.headers
	}
	if c.payload != nil {
		l.Payload = *c.payload
	}
	o.Payload, o.Headers = c.payload, c.headers
	result, err := letters.Redrive(ctx, queue, []string{l.Letter}, o.RedriveOptions)
	switch {
	case err != nil:
		return err
	case result.Gone > 0:
		return fmt.Errorf("%w: dead letter %s was redriven or purged meanwhile", admin.ErrNotFound, l.Letter)
	case result.NoPayload > 0:
		return fmt.Errorf("%w: the payload was lost: give one with --payload or --payload-file", exit.ErrNothing)
	case result.Unreadable > 0:
		return fmt.Errorf("%w: the headers could not be read: set them with --header, or remove one with --unset-header",
			exit.ErrNothing)
	case result.GroupGone > 0:
		return fmt.Errorf("%w: there is no group %s: send it to another one with --to", exit.ErrNothing,
			groupList(result.GoneGroups))
	}
	value := struct {
		Letter  string            `json:"letter"`
		ID      string            `json:"id"`
		Group   string            `json:"group,omitempty"`
		In      int64             `json:"in_ms"`
		Headers map[string]string `json:"headers,omitempty"`
		Payload admin.Payload     `json:"payload"`
		DryRun  bool              `json:"dry_run"`
	}{l.Letter, l.ID, cmp.Or(o.To, l.Group), o.Delay.Milliseconds(), l.Headers, l.Payload, o.DryRun}
	return a.Print(value, func() {
		rows := [][]string{
			{output.Done("redriven", o.DryRun), human.OneLine(l.ID, 256)},
			{"for", human.OrDash(human.OneLine(cmp.Or(o.To, l.Group), 256))},
			{"attempt", "1"}, {"due", human.Relative(time.Now().Add(o.Delay), time.Now())},
		}
		term.Table(a.Out, append(rows, output.MapRows("header ", l.Headers)...))
		if o.DryRun {
			a.DescribePayload(l.Payload)
		}
	})
}
