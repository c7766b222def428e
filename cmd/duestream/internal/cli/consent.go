package cli

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

// Consent is the user's agreement to delete data that the command line does not name one by one. A terminal user is
// asked. Without a terminal, only --yes agrees.
type Consent struct{ Yes bool }

// ConsentFlag adds --yes to a command that can delete data without naming each piece, and marks the command as one that
// destroys data.
func ConsentFlag(cmd *cobra.Command) *Consent {
	c := &Consent{}
	cmd.Flags().BoolVarP(&c.Yes, "yes", "y", false, "do it without asking")
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations["destroys"] = "true"
	return c
}

// CheckPossible returns nil if --yes was given, or if there is a terminal where Ask can ask. Commands call it before
// they touch Redis. Its error says that the command would delete data.
func (c *Consent) CheckPossible(a *App, data string) error {
	if c.Yes || term.IsTerminal(a.In) && term.IsTerminal(a.Err) {
		return nil
	}
	return usage.Errorf("this deletes %s, and nobody can be asked here: standard input and standard error are no "+
		"terminal. To delete without being asked, add --yes", data)
}

// Ask asks the user, unless --yes was given. Its error says that nothing was deleted.
func (c *Consent) Ask(ctx context.Context, a *App, question string) error {
	if c.Yes {
		return nil
	}
	if err := c.CheckPossible(a, "something"); err != nil { // for a command that did not call CheckPossible before
		return err
	}
	answer := make(chan bool, 1)
	fmt.Fprint(a.Err, question+" [y/N] ")
	go func() { answer <- readYes(a.In) }()
	select {
	case <-ctx.Done(): // Ctrl-C counts as no; the reader of standard input stays until exit
		fmt.Fprintln(a.Err)
		return fmt.Errorf("nothing was deleted: %w", ctx.Err())
	case yes := <-answer:
		if !yes {
			return usage.Errorf("nothing was deleted")
		}
		return nil
	}
}

// readYes reads a line, and reports whether it is y or yes.
func readYes(in io.Reader) bool {
	answer, _ := bufio.NewReader(in).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
