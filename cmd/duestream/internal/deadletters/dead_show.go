package deadletters

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

func deadShow(a *cli.App) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "show <queue> <letter>", Short: "Show a dead letter, with its payload",
		Example: "  duestream dead show emails 1767000000000-0",
	}
	return cli.RawFlag(a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		l, err := op.DeadLetters().Show(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		if raw {
			return a.PrintRaw(l.Payload)
		}
		return a.Print(l, func() { describeLetter(a, l, a.Now(args[0])) })
	}), &raw)
}

func describeLetter(a *cli.App, l admin.Letter, now time.Time) {
	rows := [][]string{
		{"letter", l.Letter}, {"id", human.OneLine(l.ID, 256)}, {"group", human.OrDash(human.OneLine(l.Group, 256))},
		{"reason", human.OneLine(l.Reason, 60)}, {"attempt", strconv.Itoa(l.Attempt)}, {"entry", human.OrDash(l.Entry)},
	}
	rows = append(rows, output.TimeRows(now, "dead", l.Dead, "due", l.Due, "expired", l.Expires)...)
	term.Table(a.Out, append(append(rows, output.MapRows("header ", l.Headers)...), output.MapRows("field ", l.Extra)...))
	if l.Error != "" {
		fmt.Fprintf(a.Out, "\nerror:\n%s\n", human.Printable([]byte(l.Error)))
	}
	a.DescribePayload(l.Payload)
}
