package messages

import (
	"errors"
	"strings"
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
	cmd.Flags().BoolVar(&o.retries, "retries", false, "also the waiting retries of the message, in all groups")
	cmd.Flags().StringVar(&o.group, "group", "", "only the waiting retries of this group")
	cmd.MarkFlagsMutuallyExclusive("retries", "group")
}

// call calls change with the scope that the flags select, and puts the retries that were changed into retries. Without
// a flag it tries the scheduled message first, and the retries only if no message is scheduled, because finding retries
// walks through the whole schedule.
func (o *reach) call(retries *[]bridge.Retry, change func(...bridge.Scope) error) error {
	switch {
	case o.group != "":
		return change(bridge.RetriesOf(o.group).Into(retries))
	case o.retries:
		return change(bridge.Retries().Into(retries))
	}
	err := change()
	if errors.Is(err, bridge.ErrNotScheduled) {
		err = change(bridge.Retries().Into(retries))
	}
	return err
}

func (o *reach) check([]string) error { return cli.CheckGroup(o.group) }

// retryAnswer is the JSON of a retry.
type retryAnswer struct {
	Group string    `json:"group"` // "" for a message that was redriven for all groups
	Due   time.Time `json:"due"`
}

func newRetryAnswers(retries []bridge.Retry) (answers []retryAnswer) {
	for _, r := range retries {
		answers = append(answers, retryAnswer{r.Group, r.Due})
	}
	return answers
}

// describeRetries lists retries behind a separator, and returns "" if there are none.
func describeRetries(separator string, retries []retryAnswer, describe func(retryAnswer) string) string {
	var texts []string
	for _, r := range retries {
		texts = append(texts, describe(r))
	}
	if len(texts) == 0 {
		return ""
	}
	return separator + strings.Join(texts, ", ")
}

// describe returns "retry for mailer", or "redriven message" if the message is for all groups.
func (r retryAnswer) describe() string {
	if r.Group == "" {
		return "redriven message"
	}
	return "retry for " + human.OneLine(r.Group, 60)
}
