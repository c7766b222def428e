package messages

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Result returns the command result.
func Result(a *cli.App) *cobra.Command {
	var group string
	var raw bool
	cmd := &cobra.Command{
		Use:   "result <queue> <id>",
		Short: "Print the result of a message at once",
		Long: `Prints the result that a group's handler set for a message. Only a message that was
scheduled with --keep-result has a result: from the success of the handler on, for the
time of --keep-result. If there is none, or none yet, the exit code is 3. To wait for
a result, or to learn why there is none, use duestream wait.

Without --group, the queue must have exactly one group.`,
		Example: `  duestream result charges order-42 --group billing
  duestream result charges order-42 --group billing --json
  duestream result charges order-42 --group billing --raw >invoice.pdf`,
	}
	cli.GroupFlag(cmd, &group, "the group whose handler set the result")
	a.WithKnownQueues(cmd, cli.GroupCheck(&group), func(ctx context.Context, op *admin.Admin, args []string) error {
		queue, id := args[0], args[1]
		group, err := groupOf(ctx, op, queue, group)
		if err != nil {
			return err
		}
		result, err := op.Result(ctx, queue, id, group)
		if err != nil {
			return err
		}
		return newResultAnswer(queue, id, group, bridge.AwaitDone, result).print(a, raw)
	})
	return rawValueFlag(cmd, &raw)
}

// Wait returns the command wait.
func Wait(a *cli.App) *cobra.Command {
	var group string
	var raw bool
	state, timeout := string(bridge.AwaitDone), time.Duration(0)
	cmd := &cobra.Command{
		Use:   "wait <queue> <id>",
		Short: "Wait until a message is done, ready or dead, and print its result",
		Long: `Waits until a message is in a state for a group:

  done   the handler succeeded; prints the result. The message must have been scheduled
         with --keep-result.
  ready  the message is ready for the group: its due time has come
  dead   the group gave the message up: it is a dead letter

The command ends early if the state will not be reached. If the message became a dead
letter instead, or with --state dead is done, the exit code is 1. If the message is
nowhere, the exit code is 3: it was cancelled, never scheduled, or done without a
result, or its result has expired. If --timeout is over first, the exit code is 10.

Without --group, the queue must have exactly one group.`,
		Example: `  duestream wait charges order-42 --group billing
  duestream wait charges order-42 --group billing --timeout 5m --json
  duestream wait charges order-42 --group billing --state ready`,
	}
	cli.GroupFlag(cmd, &group, "the group for which the message is to reach the state")
	cmd.Flags().StringVar(&state, "state", state, "ready, done or dead")
	cli.OfferValues(cmd, "state", string(bridge.AwaitReady), string(bridge.AwaitDone), string(bridge.AwaitDead))
	flags.DurationVar(cmd.Flags(), &timeout, "timeout", 30*time.Second, "how long to wait at most")
	check := func([]string) error {
		var errs []error
		switch bridge.Awaited(state) {
		case bridge.AwaitDone:
		case bridge.AwaitReady, bridge.AwaitDead:
			if raw {
				errs = append(errs, usage.Errorf("--raw prints the result: it is not for --state %s", state))
			}
		default:
			errs = append(errs, usage.Errorf("state %q: must be ready, done or dead", state))
		}
		if timeout <= 0 {
			errs = append(errs, usage.Errorf("timeout %s: must be longer than 0s; duestream result does not wait",
				human.Short(timeout)))
		}
		return errors.Join(append(errs, cli.CheckGroup(group))...)
	}
	a.WithKnownQueues(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		queue, id := args[0], args[1]
		group, err := groupOf(ctx, op, queue, group)
		if err != nil {
			return err
		}
		result, err := waitFor(ctx, op, queue, id, group, bridge.Awaited(state), timeout)
		if err != nil {
			return err
		}
		return newResultAnswer(queue, id, group, bridge.Awaited(state), result).print(a, raw)
	})
	return rawValueFlag(cmd, &raw)
}

// waitFor waits for a state. exit.ErrNotYet: the timeout was over.
func waitFor(ctx context.Context, op *admin.Admin, queue, id, group string, state bridge.Awaited,
	timeout time.Duration) (bridge.MessageResult, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	result, err := op.WaitFor(limited, queue, id, group, state)
	if errors.Is(err, context.DeadlineExceeded) && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("wait until %s in %s is %s for %s: %w, after %s", id, queue, state, group, exit.ErrNotYet,
			human.Short(timeout))
	}
	return result, err
}

// groupOf returns the group of the flag, or without the flag the only group of the queue.
func groupOf(ctx context.Context, op *admin.Admin, queue, group string) (string, error) {
	if group != "" {
		return group, nil
	}
	names, err := cli.Groups(ctx, op, queue)
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "", usage.Errorf("queue %s has no group yet: give --group", queue)
	case len(names) > 1:
		const most = 5
		shown := strings.Join(names[:min(most, len(names))], ", ")
		if len(names) > most {
			shown += ", …"
		}
		return "", usage.Errorf("queue %s has %d groups: give one with --group: %s", queue, len(names),
			human.OneLine(shown, 200))
	}
	return names[0], nil
}

func rawValueFlag(cmd *cobra.Command, raw *bool) *cobra.Command {
	cmd.Flags().BoolVar(raw, "raw", false, "print the value of the result as it is, and nothing else")
	cmd.MarkFlagsMutuallyExclusive("raw", "json")
	return cmd
}

// resultAnswer is the state that a message has reached, with its result if it is done, as JSON.
type resultAnswer struct {
	Queue   string         `json:"queue"`
	ID      string         `json:"id"`
	Group   string         `json:"group"`
	State   bridge.Awaited `json:"state"`
	Value   *admin.Payload `json:"value,omitempty"` // only of a message that is done; "" if its handler set none
	Attempt int            `json:"attempt,omitempty"`
	Done    time.Time      `json:"done,omitzero"`
}

func newResultAnswer(queue, id, group string, state bridge.Awaited, r bridge.MessageResult) resultAnswer {
	answer := resultAnswer{Queue: queue, ID: id, Group: group, State: state}
	if !r.Done.IsZero() { // also a message that was awaited until it is ready may be done already
		value := append(admin.Payload{}, r.Value...) // not nil, which would say that the value was lost
		answer.State, answer.Value, answer.Attempt, answer.Done = bridge.AwaitDone, &value, r.Attempt, r.Done
	}
	return answer
}

func (r resultAnswer) print(a *cli.App, raw bool) error {
	if raw {
		return a.PrintRaw(*r.Value)
	}
	return a.Print(r, func() {
		rows := [][]string{{"state", string(r.State)}, {"group", human.OneLine(r.Group, 256)}}
		if r.Value != nil {
			rows = append(rows, []string{"attempt", strconv.Itoa(r.Attempt)})
			rows = append(rows, output.TimeRows(a.Now(r.Queue), "done", r.Done)...)
		}
		term.Table(a.Out, rows)
		if r.Value != nil {
			fmt.Fprintf(a.Out, "\nvalue (%d bytes):\n%s\n", len(*r.Value),
				output.PayloadText(*r.Value, term.IsTerminal(a.Out)))
		}
	})
}
