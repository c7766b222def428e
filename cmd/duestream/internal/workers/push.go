package workers

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Push returns the command push.
func Push(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "push", Short: "Post messages to URLs",
		Long: `Callbacks: the messages of a queue's group are posted to a URL, each in a signed request.
What answers 2xx is acknowledged; the rest is delivered again by policy. Some process must
do it: duestream push run, any number of them.`,
		Example: `  duestream push add orders --group partner --url https://example.com/hook
  duestream push run
  duestream push list`,
	}, pushAdd(a), pushList(a), pushRm(a), pushRotate(a), pushRun(a))
}

// pushChanged is the result of a change to a target, as JSON.
type pushChanged struct {
	Queue string `json:"queue"`
	Group string `json:"group"`
	Did   string `json:"did"`
	Key   string `json:"key,omitempty"` // the key that was made
}

// keyOf prints a key that was made and may be in force although the call failed: nobody else knows the key.
func keyOf(a *cli.App, err error, made string) error {
	if made != "" && (errors.Is(err, bridge.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) {
		a.Note("this signing key may be in force, repeat with it in --key-file: %s", made)
	}
	return err
}

func printTarget(a *cli.App, c pushChanged) error {
	return a.Print(c, func() {
		fmt.Fprintf(a.Out, "%s/%s  %s\n", c.Queue, human.OneLine(c.Group, 60), c.Did)
		if c.Key != "" {
			fmt.Fprintf(a.Out, "signing key, shown this once: %s\n", c.Key)
		}
	})
}
