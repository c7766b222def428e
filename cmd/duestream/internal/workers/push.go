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
		Long: `Callbacks post the messages of a queue's group to a URL, each in a signed request. An
answer 2xx acknowledges the message. After most other answers the message is delivered
again by policy. duestream push run posts the messages; run one process, or several.`,
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

// noteUncertainKey returns err, the error of a call that set a new signing key. If the call may have taken effect, it
// first prints the key that the call made, because nobody else knows that key.
func noteUncertainKey(a *cli.App, err error, newKey string) error {
	if newKey != "" && (errors.Is(err, bridge.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) {
		a.Note("this signing key may be in force: repeat the command with the key in --key-file: %s", newKey)
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
