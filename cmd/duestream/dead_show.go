package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

func (a *app) deadShow() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "show <queue> <letter>", Short: "Show a dead letter, with its payload", Args: cobra.ExactArgs(2),
		Example: "  duestream dead show emails 1767000000000-0",
		RunE: a.do(func(ctx context.Context, args []string) error {
			if err := errors.Join(admin.CheckQueue(args[0]), checkLetters(args[1:])); err != nil {
				return err
			}
			letters, done, err := a.letters(ctx, args[0])
			if err != nil {
				return err
			}
			defer done()
			l, err := letters.Show(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			if raw {
				return a.printRaw(l.Payload)
			}
			return a.print(l, func() { a.describeLetter(l) })
		}),
	}
	a.jsonFlag(cmd)
	rawFlag(cmd, &raw)
	return cmd
}

func (a *app) describeLetter(l admin.Letter) {
	now := time.Now()
	rows := [][]string{
		{"letter", l.Letter}, {"id", human.OneLine(l.ID, 256)}, {"group", human.OrDash(human.OneLine(l.Group, 256))}, {"reason", human.OneLine(l.Reason, 60)},
		{"attempt", strconv.Itoa(l.Attempt)}, {"entry", human.OrDash(l.Entry)},
	}
	rows = append(rows, timeRows(now, "dead", l.Dead, "due", l.Due, "expired", l.Expires)...)
	term.Table(a.out, append(append(rows, mapRows("header ", l.Headers)...), mapRows("field ", l.Extra)...))
	if l.Error != "" {
		fmt.Fprintf(a.out, "\nerror:\n%s\n", human.Printable([]byte(l.Error)))
	}
	a.describePayload(l.Payload)
}
