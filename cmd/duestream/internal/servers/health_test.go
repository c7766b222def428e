package servers_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// health fails if there is no heartbeat, or only one that is a minute old by the clock of Redis.
func TestHealthFailsWithoutABridge(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	r := c.Fails(exit.Failure, []string{"no live bridge"}, "health", "--json")
	if !strings.Contains(r.Out, `"healthy":false`) || !strings.Contains(r.Out, `"bridges":[]`) {
		t.Errorf("output %s", r.Out)
	}
	// A bridge that died a minute ago, by the clock of Redis.
	client := c.Redis()
	now, err := client.Do(t.Context(), client.B().Time().Build()).AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	add := client.B().Zadd().Key(c.Prefix+":bridges").ScoreMember().ScoreMember(float64((now[0]-60)*1000), "old")
	if err := client.Do(t.Context(), add.Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.Fails(exit.Failure, []string{"no live bridge"}, "health")
}

// Any client can add names to the heartbeats. Such a name counts as no bridge, and is printed without control
// characters.
func TestForeignHeartbeatsAreNoBridges(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	client := c.Redis()
	now, err := client.Do(t.Context(), client.B().Time().Build()).AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"\x1b]0;owned\a\x1b[2J", strings.Repeat("x", 1<<20), "\xff\u202e",
		"01M7ZMPW4AFDJS68SPX5258FR1 \x1b[2J 7 v1"} {
		if err := client.Do(t.Context(),
			client.B().Zadd().Key(c.Prefix+":bridges").ScoreMember().
				ScoreMember(float64(now[0]*1000+60_000), name).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	r := c.Fails(exit.Failure, []string{"no live bridge"}, "health", "--json")
	if strings.Count(r.Out, `"fresh":false`) != 4 || strings.Count(r.Out, `"foreign":true`) != 4 || len(r.Out) > 2000 {
		t.Errorf("%.3000s", r.Out)
	}
	printed := r.Out + c.Fails(exit.Failure, []string{"no live bridge"}, "health").Out
	for _, look := range []string{"stats", "top --once", "top --once --json"} {
		out := c.OK(strings.Fields(look)...)
		if !strings.Contains(look, "json") && !strings.Contains(out,
			"no bridge is alive: nothing becomes ready; last heartbeats: 4 names that no bridge wrote") {
			t.Errorf("%s:\n%.3000s", look, out)
		}
		printed += out
	}
	if strings.ContainsAny(printed, "\x1b\a\u202e") || len(printed) > 10_000 {
		t.Errorf("printed %d bytes:\n%.3000q", len(printed), printed)
	}
	// A bridge beside these names serves all queues.
	c.Serve()
	c.OK("schedule", "q", "--in", "50ms", "--id", "one", "hello")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		out := c.Run("show", "q", "one", "--json").Out
		return strings.Contains(out, `"ready"`), out
	})
}
