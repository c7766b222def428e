package main

import (
	"strings"
	"testing"
)

func TestQueueSetChangesThePolicy(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "set", "q", "max_attempts=4", "visibility_timeout=1d", "held=true")
	c.ok("queue", "set", "q", "--group", "g", "max_attempts=5")
	var got struct {
		MaxAttempts       int   `json:"max_attempts"`
		VisibilityTimeout int64 `json:"visibility_timeout_ms"`
		RetryMax          int64 `json:"retry_max_ms"`
		Held              bool
	}
	c.json(&got, "queue", "show", "q", "--group", "g")
	if got.MaxAttempts != 5 || got.VisibilityTimeout != 86_400_000 || got.RetryMax != 3_600_000 || !got.Held {
		t.Errorf("%+v", got)
	}
	c.json(&got, "queue", "set", "q", "--group", "g", "max_attempts=")
	if got.MaxAttempts != 4 {
		t.Errorf("%+v", got)
	}
	if out := c.ok("queue", "show", "q"); !strings.Contains(out, "visibility_timeout  1d\n") {
		t.Error(out)
	}
	c.fails(exitInvalid, []string{"can be set for a whole queue only"}, "queue", "set", "q", "--group", "g", "held=true")
}

// Settings of a queue whose name was misspelt were taken without a word. They are still taken: a queue may be set before its
// first message.
func TestSettingsOfAnUnknownQueueAreTakenWithANote(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "there", "--in", "1h", "x")
	for line, says := range map[string][2]string{
		"queue set early max_attempts=3": {"no bridge knows a queue early yet: is the name right?", `"known":false`}, "queue show early": {"no bridge knows a queue early yet", `"known":false`},
		"queue partitions new 2":         {"nobody knew a queue new before: is the name right?", `"new":true`},
		"queue set there max_attempts=3": {"", `"known":true`}, "queue show there": {"", `"known":true`}, "queue partitions there 2": {"", `"partitions":2`},
	} {
		if strings.Contains(line, "show early") { // is there once it was set
			c.ok("queue", "set", "early", "max_attempts=3")
		}
		if r := c.run(strings.Fields(line)...); r.code != exitOK || (r.err == "") != (says[0] == "") ||
			!strings.Contains(r.err, says[0]) {
			t.Errorf("%s: %+v", line, r)
		}
		again := strings.Fields(strings.Replace(line, "new", "newer", 1) + " --json")
		if r := c.run(again...); r.code != exitOK || r.err != "" || !strings.Contains(r.out, says[1]) {
			t.Errorf("%q: %+v", again, r)
		}
	}
}
