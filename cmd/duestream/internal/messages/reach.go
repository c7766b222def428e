package messages

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// reach selects the scheduled message with an ID, its retries, or both.
type reach struct {
	retries bool
	group   string
}

func (o *reach) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.retries, "retries", false, "the message, and also its retries that wait, of all groups")
	cmd.Flags().StringVar(&o.group, "group", "", "only the retries that wait for this group")
	cmd.MarkFlagsMutuallyExclusive("retries", "group")
}

// within calls do with the scope that the flags select. Without a flag it tries the scheduled message first, and the
// retries only if there is none: finding retries walks through the whole schedule.
func (o *reach) within(taken *[]bridge.Retry, do func(...bridge.Scope) error) error {
	switch {
	case o.group != "":
		return do(bridge.RetriesOf(o.group).Into(taken))
	case o.retries:
		return do(bridge.Retries().Into(taken))
	}
	err := do()
	if errors.Is(err, bridge.ErrNotScheduled) {
		err = do(bridge.Retries().Into(taken))
	}
	return err
}

func (o *reach) check([]string) error { return cli.CheckGroup(o.group) }

// takenRetry is the JSON of a retry.
type takenRetry struct {
	Group string    `json:"group"` // empty: a message redriven for all groups
	Due   time.Time `json:"due"`
}

func takenRetries(taken []bridge.Retry) (out []takenRetry) {
	for _, r := range taken {
		out = append(out, takenRetry{r.Group, r.Due})
	}
	return out
}

// whose returns "retry for mailer", or "redriven message" if it is for all groups.
func (r takenRetry) whose() string {
	if r.Group == "" {
		return "redriven message"
	}
	return "retry for " + human.OneLine(r.Group, 60)
}
