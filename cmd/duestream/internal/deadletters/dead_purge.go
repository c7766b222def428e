package deadletters

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

func deadPurge(a *cli.App) *cobra.Command {
	var s selection
	cmd := &cobra.Command{
		Use:   "purge <queue> [<letter>...]",
		Short: "Delete dead letters for good",
		Long: `Deletes dead letters for good. If flags select the letters, the command prints their
number and asks first. Without a terminal it needs --yes. Try --dry-run first.`,
		Example: `  duestream dead purge emails 1767000000000-0
  duestream dead purge emails --older-than 30d --dry-run
  duestream dead purge emails --reason expired --yes`,
	}
	s.flags(cmd)
	consent := cli.ConsentFlag(cmd)
	needsConsent := func(names []string) bool { return len(names) == 0 && !s.dryRun }
	return a.WithKnownQueues(cmd, func(args []string) error {
		if err := s.check(args[1:]); err != nil || !needsConsent(args[1:]) {
			return err
		}
		return consent.CheckPossible(a, "every dead letter that the flags select (--dry-run shows them)")
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		letters := op.DeadLetters()
		if needsConsent(args[1:]) && !consent.Yes {
			n, err := letters.Count(ctx, args[0], s.filter)
			if err != nil {
				return err
			}
			if n == 0 { // nobody is asked, so letters that are added from now on stay
				return reportPurge(ctx, a, op, args[0], nil, s, 0, nil, nil)
			}
			question := fmt.Sprintf("Delete %s of %s for good?", human.Counted(n, "dead letter"), args[0])
			if err := consent.Ask(ctx, a, question); err != nil {
				return err
			}
		}
		return purge(ctx, a, op, args[0], args[1:], s)
	})
}

func purge(ctx context.Context, a *cli.App, op *admin.Admin, queue string, names []string, s selection) error {
	letters := op.DeadLetters()
	var purged int
	var first firstLetters
	var err error
	bar := term.NewProgress(a.Err, "letters")
	if s.dryRun {
		purged, err = wouldPurge(ctx, letters, queue, names, s, first.add)
	} else if len(names) > 0 {
		purged, err = letters.Purge(ctx, queue, names)
	} else {
		filter, total := s.filter, 0
		if bar.Draws() { // the total is for the progress bar only
			if total, err = letters.Count(ctx, queue, filter); err != nil {
				return err
			}
		}
		purged, err = letters.PurgeProgress(ctx, queue, filter, func(n int) { bar.Of(int64(n), int64(total)) })
	}
	bar.Clear()
	return reportPurge(ctx, a, op, queue, names, s, purged, first, err)
}

// reportPurge prints what a purge did. err: the error that ended it.
func reportPurge(
	ctx context.Context, a *cli.App, op *admin.Admin, queue string, names []string, s selection, purged int,
	first firstLetters, err error,
) error {
	if err == nil && len(names) == 0 {
		if err := checkFound(ctx, op, queue, s.filter, purged); err != nil {
			return err
		}
	}
	value := struct {
		Purged int          `json:"purged"`
		DryRun bool         `json:"dry_run"`
		First  firstLetters `json:"first,omitempty"`
	}{purged, s.dryRun, first}
	printed := a.Print(value, func() { // also after an error: a purge that failed part way prints what it deleted
		fmt.Fprintf(a.Out, "%s %s\n", output.Done("purged", s.dryRun), human.Thousands(purged))
		listFirst(a, first, purged)
	})
	noteStopped(a, err)
	switch {
	case err != nil:
		return err
	case printed != nil:
		return printed
	case len(names) > 0 && purged == 0:
		return fmt.Errorf("%w: no such dead letter", admin.ErrNotFound)
	case purged < len(names):
		return fmt.Errorf("%w: not found: %s", exit.ErrPartly, human.Counted(len(names)-purged, "letter"))
	}
	return nil
}

// wouldPurge counts the letters that a purge would delete.
func wouldPurge(
	ctx context.Context, letters *admin.DeadLetters, queue string, names []string, s selection,
	selected func(admin.Letter),
) (n int, err error) {
	count := func(l admin.Letter, err error) error {
		if err == nil {
			n++
			selected(l)
		}
		return err
	}
	for _, name := range names {
		if err := count(letters.Show(ctx, queue, name)); err != nil && !errors.Is(err, admin.ErrNotFound) {
			return n, err
		}
	}
	if len(names) > 0 {
		return n, nil
	}
	for l, err := range letters.List(ctx, queue, s.filter) {
		if err := count(l, err); err != nil {
			return n, err
		}
	}
	return n, nil
}
