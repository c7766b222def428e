package messages_test

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/messages"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

// reschedule moves a message to a time, or to now, and says when it is due.
func TestRescheduleMovesAMessage(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--id", "a", "--in", "1h", "x")
	at := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	var got output.ScheduledAt
	c.JSON(&got, "reschedule", "q", "a", "--at", at.Format(time.RFC3339))
	if got.ID != "a" || !got.Due.Equal(at) || got.DueMS != at.UnixMilli() {
		t.Errorf("%+v", got)
	}
	if out := c.OK("reschedule", "q", "a", "--in", "0s"); !strings.HasPrefix(out, "a  due ") ||
		!strings.Contains(out, "(now)") &&
			!strings.Contains(out, "ago)") {
		t.Error(out)
	}
	c.Fails(exit.NotFound, nil, "reschedule", "q", "gone", "--in", "1h")
}

// reschedule moves the waiting retries of a message, those of one group or of all groups, if the message itself is not
// scheduled. So retries can be made due once a partner's system is up again.
func TestRescheduleMovesRetriesThatWait(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Retries("q", "a", time.Now().Add(time.Hour), "g", "h")
	if out := c.OK("reschedule", "q", "a", "--in", "0s", "--group", "g"); !strings.HasPrefix(out, "a  due ") ||
		!strings.HasSuffix(out, "  retry for g\n") {
		t.Error(out)
	}
	at := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	var got struct {
		output.ScheduledAt
		Retries []messages.RetryAnswer
	}
	c.JSON(&got, "reschedule", "q", "a", "--at", at.Format(time.RFC3339))
	if got.ID != "a" || !got.Due.Equal(at) || len(got.Retries) != 2 || !got.Retries[0].Due.Equal(at) {
		t.Errorf("%+v", got)
	}
}
