package main

import (
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// The server's clock is not the one of the machine that schedules. A message that was to live for ten minutes was dead at once
// where the server was ahead by an hour, and lived for an hour more where it was behind.
func TestExpiryCountsByTheClockOfRedis(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t)
	c := newCLIOn(t, server)
	for what, step := range map[string]time.Duration{"ahead": time.Hour, "behind": -2 * time.Hour} {
		clock.Step(step)
		c.runIn(`{"id":"line"}`, "schedule", what, "--file", "-", "--in", "5m", "--expires-in", "10m")
		c.ok("schedule", what, "--id", "one", "--in", "5m", "--expires-in", "10m", "x")
		at := time.Now().Add(clock.By()).Add(5 * time.Minute)
		c.ok("schedule", what, "--id", "at", "--at", at.Format(time.RFC3339), "--expires-in", "10m", "x")
		c.ok("schedule", what, "--id", "until", "--in", "5m", "--expires-at", at.Add(5*time.Minute).Format(time.RFC3339), "x")
		for _, id := range []string{"line", "one", "at", "until"} {
			var places []struct{ Expires time.Time }
			c.json(&places, "show", what, id)
			if len(places) != 1 || places[0].Expires.Sub(at.Add(5*time.Minute)).Abs() > time.Minute {
				t.Errorf("%s: %s expires %v, and not ten minutes after %s", what, id, places, at.Add(-5*time.Minute))
			}
		}
		c.fails(exitInvalid, []string{"must be after the due time"}, "schedule", what, "--in", "5m", "--expires-at",
			at.Add(-time.Minute).Format(time.RFC3339), "x")
		c.fails(exitInvalid, []string{"must be after the due time"}, "schedule", what, "--at",
			at.Add(10*time.Minute).Format(time.RFC3339), "--expires-in", "10m", "x")
	}
	c.fails(exitInvalid, []string{"must be after the due time"}, "schedule", "q", "--in", "5m", "--expires-in", "5m", "x")
}
