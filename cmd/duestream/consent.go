package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// consent is the user's agreement to delete data that the command line does not name one by one. A terminal user is
// asked. Without a terminal, only --yes agrees.
type consent struct{ yes bool }

// destroys marks a command that can delete data its arguments do not name one by one, and gives it --yes.
func destroys(cmd *cobra.Command) *consent {
	c := &consent{}
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "delete without asking")
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations["destroys"] = "true"
	return c
}

// possible fails, before Redis is touched, without --yes and without a terminal to ask at. The error says what the
// command would delete.
func (c *consent) possible(a *app, what string) error {
	if c.yes || term.IsTerminal(a.in) && term.IsTerminal(a.err) {
		return nil
	}
	return usage.Errorf("this deletes %s, and nobody can be asked here: standard input and standard error are no terminal. If "+
		"that is what you want, add --yes", what)
}

// ask asks the user, unless --yes was given. Its error says that nothing was deleted.
func (c *consent) ask(ctx context.Context, a *app, question string) error {
	if c.yes {
		return nil
	}
	if err := c.possible(a, "something"); err != nil { // a command that forgot to call possible must delete nothing
		return err
	}
	answered := make(chan bool, 1)
	fmt.Fprint(a.err, question+" [y/N] ")
	go func() { answered <- confirm(a.in, io.Discard, "") }()
	select {
	case <-ctx.Done(): // Ctrl-C counts as no; the reader of standard input stays until exit
		fmt.Fprintln(a.err)
		return fmt.Errorf("nothing was deleted: %w", ctx.Err())
	case yes := <-answered:
		if !yes {
			return usage.Errorf("nothing was deleted")
		}
		return nil
	}
}

// confirm prints the question, and reports whether the answer is yes.
func confirm(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprint(out, question)
	answer, _ := bufio.NewReader(in).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
