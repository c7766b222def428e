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
	stdout, stderr := a.Outlet(out), a.Outlet(errOut)
	a.Out, a.Err = stdout, stderr
	root := Root(a)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.InitDefaultCompletionCmd() // after SetOut, because the command keeps the writer
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.RunE = cli.Help // cobra's own command takes an unknown shell without an error
	}
	err := root.ExecuteContext(ctx)
	writeErr := stdout.End()
	if err != nil && !a.Started {
		a.JSON = a.JSON || wantsJSON(args)
		if writeErr == nil { // after a failed write, cobra returns that error, which is no mistake in the arguments
			text := human.MiddleCut(err.Error())
			if word, parent := unknownCommand(root, args); word != "" {
				text = fmt.Sprintf("unknown command %q for %q", human.OneLine(word, 100), parent.CommandPath())
			}
			err = usage.Errorf("%s", plainFlagError(text))
		}
	}
	if writeErr != nil && !errors.Is(err, writeErr) {
		err = errors.Join(err, &output.LostError{Err: writeErr})
	}
	report(a, err)
	_ = stderr.End()
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
