package functions

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

func functionsShow(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show which functions each server has, and how they are called",
		Long: `Shows which version of the functions each server has, compared with the version of this
program, and the keys and arguments of the functions. Arguments in brackets are repeated
for every item.

  absent   the server has no library
  current  the library has the same functions as this program
  older    the library is of an older release; functions load replaces it
  newer    the library is of a newer release than this program
  other    the release of the library is neither older nor newer, but its functions differ
  foreign  the library is called duestream, but another program made it`,
		Example: "  duestream functions show\n  duestream functions show --json",
	}
	return a.WithAdmin(cmd, nil, func(ctx context.Context, op *admin.Admin, _ []string) error {
		rows := op.ShowFunctions(ctx, a.Version)
		var err error
		for _, l := range rows {
			err = errors.Join(err, l.Err)
		}
		return printServers(a, rows, err, admin.Functions(), func() { printLibraries(a, rows) })
	})
}

func printLibraries(a *cli.App, rows []admin.Library) {
	lines := [][]string{{"SERVER", "ROLE", "LIBRARY", "RELEASE", "SOURCE"}}
	for _, l := range rows {
		release, source := human.OrDash(human.OneLine(l.Release, 40)), human.OrDash(human.OneLine(l.Source, 40))
		lines = append(lines, []string{l.Server, human.OrDash(l.Role), human.OrDash(string(l.State)), release, source})
	}
	lines = append(lines, []string{"this program", "-", "-", a.Version, admin.FunctionsSource()})
	term.Table(a.Out, lines)
	fmt.Fprintln(a.Out)
	lines = [][]string{{"FUNCTION", "KEYS", "ARGUMENTS"}}
	for _, f := range admin.Functions() {
		args := f.Args
		if len(f.Each) > 0 {
			args = append(args, "["+strings.Join(f.Each, " ")+"]…")
		}
		lines = append(lines, []string{f.Name, strings.Join(f.Keys, " "), strings.Join(args, " ")})
	}
	term.Table(a.Out, lines)
}
