// Package command puts the commands together and runs them.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Run runs the command and returns its exit code. Cancelling ctx is a clean stop.
func Run(ctx context.Context, version string, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &cli.App{In: in, Version: version}
	printed, said := a.Outlet(out), a.Outlet(errOut)
	a.Out, a.Err = printed, said
	root := Root(a)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.InitDefaultCompletionCmd() // prints to the writers that are set by now
	if shells, _, err := root.Find([]string{"completion"}); err == nil {
		shells.RunE = cli.Help // cobra's own takes any word for a shell
	}
	err := root.ExecuteContext(ctx)
	lost := printed.End()
	if err != nil && !a.Started {
		a.JSON = a.JSON || wantsJSON(args)
		if lost == nil { // a lost output reaches us as an error of cobra, too
			text := human.MiddleCut(err.Error())
			if word, above := unknownCommand(root, args); word != "" {
				text = fmt.Sprintf("unknown command %q for %q", human.OneLine(word, 100), above.CommandPath())
			}
			err = usage.Errorf("%s", plainFlagError(text))
		}
	}
	if lost != nil && !errors.Is(err, lost) {
		err = errors.Join(err, &output.LostError{Err: lost})
	}
	report(a, err)
	_ = said.End()
	return exit.Code(err)
}

// wantsJSON reports whether --json is among the arguments, for errors that come before the flags are read.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		if arg == "--json" || arg == "--" {
			return arg == "--json"
		}
	}
	return false
}
