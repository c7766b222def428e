package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// letterFilter holds the flags that select dead letters.
type letterFilter struct {
	group, reason, err, id string
	older, newer           flags.Delay
	limit                  int
}

func (f *letterFilter) flags(cmd *cobra.Command, limit int) {
	fs := cmd.Flags()
	fs.StringVarP(&f.group, "group", "g", "", "of this group")
	fs.StringVar(&f.reason, "reason", "", "with this reason: "+strings.Join(deadReasons, ", "))
	fs.StringVar(&f.err, "error", "", "with this text in the error")
	fs.StringVar(&f.id, "id", "", "of the message with this ID; * stands for any text, ? for one character")
	flags.DelayVar(fs, &f.older, "older-than", "dead for at least so long")
	flags.DelayVar(fs, &f.newer, "newer-than", "dead for at most so long")
	fs.IntVar(&f.limit, "limit", limit, "at most so many; 0 = all")
}

// filter returns the filter; its zero value selects everything.
func (f *letterFilter) filter() admin.LetterFilter {
	return admin.LetterFilter{
		Group: f.group, Reason: f.reason, ErrorText: f.err, ID: f.id, OlderThan: f.older.D, NewerThan: f.newer.D, Limit: f.limit,
	}
}

// check refuses values that are wrong whatever Redis holds.
func (f *letterFilter) check([]string) error {
	if f.limit < 0 {
		return usage.Errorf("limit %d: must not be negative", f.limit)
	}
	if f.reason != "" && !slices.Contains(deadReasons, f.reason) {
		return usage.Errorf("reason %q: must be one of %s", human.OneLine(f.reason, 60), strings.Join(deadReasons, ", "))
	}
	return checkGroup(f.group)
}

// selection says which dead letters a command is about: those named, all, or those that pass the filter.
type selection struct {
	filter letterFilter
	all    bool
	dryRun bool
}

func (s *selection) flags(cmd *cobra.Command) {
	s.filter.flags(cmd, 0)
	cmd.Flags().BoolVar(&s.all, "all", false, "all dead letters of the queue")
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "only say what would be done")
}

func (s *selection) check(letters []string) error {
	filtered := s.filter.filter() != admin.LetterFilter{}
	switch {
	case len(letters) > 0 && (filtered || s.all):
		return usage.Errorf("name letters, or select them by flags, not both")
	case len(letters) == 0 && !filtered && !s.all:
		return usage.Errorf("name letters, or select them by flags, or give --all")
	}
	return s.filter.check(nil)
}

var letterName = regexp.MustCompile(`^([1-9][0-9]{0,2}/)?[0-9]+-[0-9]+$`)

func checkLetter(letter string) error {
	if letterName.MatchString(letter) {
		return nil
	}
	return usage.Errorf("letter %q: must be <milliseconds>-<sequence>, or <partition>/<milliseconds>-<sequence>, "+
		"as `duestream dead list` prints it", letter)
}
