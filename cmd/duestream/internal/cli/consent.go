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

// AskConsent marks a command that can delete data its arguments do not name one by one, and gives it --yes. Nothing is
// asked yet: Ask does that.
func AskConsent(cmd *cobra.Command) *Consent {
	c := &Consent{}
	cmd.Flags().BoolVarP(&c.Yes, "yes", "y", false, "delete without asking")
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations["destroys"] = "true"
	return c
}

// Possible returns nil if --yes was given, or if there is a terminal to ask at. Commands call it before they touch
// Redis. The error names data, which the command would delete.
func (c *Consent) Possible(a *App, data string) error {
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
	if err := c.Possible(a, "something"); err != nil { // a command that forgot to call Possible must delete nothing
		return err
	}
	answered := make(chan bool, 1)
	fmt.Fprint(a.Err, question+" [y/N] ")
	go func() { answered <- readYes(a.In) }()
	select {
	case <-ctx.Done(): // Ctrl-C counts as no; the reader of standard input stays until exit
		fmt.Fprintln(a.Err)
		return fmt.Errorf("nothing was deleted: %w", ctx.Err())
	case yes := <-answered:
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
