package deadletters

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// filterFlags adds the flags that select dead letters to a command.
func filterFlags(cmd *cobra.Command, f *admin.LetterFilter, limit int) {
	fs := cmd.Flags()
	fs.StringVarP(&f.Group, "group", "g", "", "only letters of this group")
	fs.StringVar(&f.Reason, "reason", "", "only letters with this reason: "+strings.Join(admin.Reasons(), ", "))
	fs.StringVar(&f.ErrorText, "error", "", "only letters with this text in the error")
	fs.StringVar(&f.ID, "id", "",
		"only letters of the message with this ID; * stands for any text, ? for one character")
	flags.DelayVar(fs, &f.OlderThan, "older-than", "only letters that have been dead for at least this time")
	flags.DelayVar(fs, &f.NewerThan, "newer-than", "only letters that have been dead for at most this time")
	fs.IntVar(&f.Limit, "limit", limit, "at most this many letters; 0 = all")
}

// checkFilter refuses values that are wrong for any queue.
func checkFilter(f admin.LetterFilter) error {
	if f.Limit < 0 {
		return usage.Errorf("limit %d: must not be negative", f.Limit)
	}
	if f.Reason != "" && !slices.Contains(admin.Reasons(), f.Reason) {
		return usage.Errorf("reason %q: must be one of %s", human.OneLine(f.Reason, 60), strings.Join(admin.Reasons(), ", "))
	}
	return cli.CheckGroup(f.Group)
}

// checkFound returns ErrNoGroup if no letter was found and the queue does not have the group of the filter, because its
// name is probably misspelt.
func checkFound(ctx context.Context, op *admin.Admin, queue string, f admin.LetterFilter, found int) error {
	if found > 0 || f.Group == "" {
		return nil
	}
	return op.CheckGroup(ctx, queue, f.Group)
}

// selection holds the flags that select dead letters: all letters, or the letters that pass the filter. Arguments may
// name letters instead.
type selection struct {
	filter admin.LetterFilter
	all    bool
	dryRun bool
}

func (s *selection) flags(cmd *cobra.Command) {
	filterFlags(cmd, &s.filter, 0)
	cmd.Flags().BoolVar(&s.all, "all", false, "all dead letters of the queue")
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "only say what would be done")
}

func (s *selection) check(letters []string) error {
	filtered := s.filter != admin.LetterFilter{}
	switch {
	case len(letters) > 0 && (filtered || s.all):
		return usage.Errorf("name letters, or select them by flags, not both")
	case len(letters) == 0 && !filtered && !s.all:
		return usage.Errorf("name letters, or select them by flags, or give --all")
	}
	return checkFilter(s.filter)
}
