package looking_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// Without an ID, story must print the newest changes of a queue, newest first, also those of messages that are gone.
func TestStoryOfAQueue(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "set", "q", "history=1000/1h", "--create")
	for _, id := range []string{"one", "two"} {
		c.OK("schedule", "q", "--id", id, "--in", "1h", "x")
	}
	c.OK("cancel", "q", "one")
	out := strings.Split(strings.TrimSpace(c.OK("story", "--queue", "q")), "\n")
	redistest.Want(t, "lines", len(out), 3)
	if !strings.Contains(out[0], "one") || !strings.Contains(out[0], "cancelled") {
		t.Error(out)
	}
	var recent admin.Recent
	if err := json.Unmarshal([]byte(c.OK("story", "--queue", "q", "--limit", "2", "--json")), &recent); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "changes", len(recent.Changes), 2)
	redistest.Want(t, "more", recent.More, true)
	redistest.Want(t, "the second one", recent.Changes[1].ID, "two")
	c.OK("schedule", "bare", "--in", "1h", "x")
	c.Fails(exit.NotFound, []string{"history"}, "story", "--queue", "bare")
	for line, want := range map[string]string{
		"story":                         "give the ID of a message, or one --queue",
		"story --queue q --queue bare":  "give the ID of a message, or one --queue",
		"story one --limit 5":           "--limit is for the history of a queue",
		"story --queue q --limit 0":     "limit 0: must be between 1 and 1000",
		"story --queue q --limit 10000": "limit 10000: must be between 1 and 1000",
	} {
		c.Fails(exit.Invalid, []string{want}, strings.Fields(line)...)
	}
}
