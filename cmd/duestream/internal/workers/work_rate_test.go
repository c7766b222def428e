package workers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// All workers of a group share the rate of --group-rate.
func TestWorkSharesTheRateOfItsGroup(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	for flags, want := range map[string]string{
		"--group-rate fast":                 "group rate \"fast\"",
		"--group-burst 2":                   "group burst \"2\": needs a group rate",
		"--group-rate 1/s --group-burst -1": "group burst \"-1\"",
	} {
		args := slices.Concat([]string{"work", "q", "--group", "g"}, strings.Fields(flags), []string{"--", "true"})
		c.Fails(exit.Invalid, []string{want}, args...)
	}
	for _, id := range []string{"a", "b", "c"} {
		c.OK("schedule", "q", "--id", id, "x")
	}
	for range 2 {
		c.Work(dir, `echo x >> "$1/runs"`, "--group-rate", "1/h", "--group-burst", "2")
	}
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		var s admin.QueueStats
		clitest.Decode(t, c.OK("stats", "q", "--json"), &s)
		runs, _ := os.ReadFile(filepath.Join(dir, "runs"))
		rests := len(s.Groups) == 1 && s.Groups[0].Lag == 1 && s.Groups[0].Pending == 0
		return rests && string(runs) == "x\nx\n", fmt.Sprintf("%+v, %q", s.Groups, runs)
	})
}
