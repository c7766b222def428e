package command_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// notOnACluster holds the commands that TestEveryCommandOnACluster does not run, with the reason or with the test that
// runs them on a cluster.
var notOnACluster = map[string]string{
	"duestream bench":          "bench.TestScenariosMeasureOnACluster",
	"duestream conformance":    "conformance.TestGoodProgramsPassOnACluster",
	"duestream dev":            "brings a server of its own",
	"duestream functions dump": "does not ask Redis",
	"duestream man":            "does not ask Redis",
	"duestream version":        "does not ask Redis",
	"duestream result":         "is a call of Admin.Result, which TestEveryAbilityOfAnOperatorOnACluster makes",
}

// commandsOnACluster are command lines in the order of their run, with a text that each one prints. $letter is a dead
// letter, $dir a directory, and $lmstfy the URL of another server.
var commandsOnACluster = []struct{ line, says, stdin string }{
	{line: "queue set q max_attempts=1 history=100 --create"},
	{line: "queue partitions q 5", says: "5"},
	{line: "queue show q", says: "max_attempts"},
	{line: "schedule q --in 1h --id a --dedup 1h x", says: "a"},
	{line: "schedule q --in 1h --id b x", says: "b"},
	{line: "schedule q --in 1h --id c --key k x", says: "c"},
	{line: "reschedule q a --in 2h", says: "a"},
	{line: "show q a", says: "scheduled"},
	{line: "find a", says: "scheduled"},
	{line: "story a", says: "scheduled"},
	{line: "stats q", says: "3"},
	{line: "peek q", says: "a"},
	{line: "top --once --interval 100ms q", says: "3 servers"},
	{line: "pause q"},
	{line: "resume q"},
	{line: "search --text x", says: "found 3: looked at"},
	{line: "act reschedule q --id a --in 150m", says: "moved 1"},
	{line: "act expire q --id c --dry-run", says: "would be expired 1"},
	{line: "act cancel q --text x --dry-run", says: "would be cancelled 3"},
	{line: "bulk reschedule q --id-prefix a --in 3h", says: "1"},
	{line: "bulk expire q b", says: "1"},
	{line: "bulk cancel q --id-prefix a --yes", says: "1"},
	{line: "cancel q c", says: "cancelled"},
	{line: "consumers q", says: "g"},
	{line: "pending q g"},
	{line: "health", says: "bridge"},
	{line: "doctor --quick --severity error q", says: "5 partitions"},
	{line: "dead list q", says: "$letter"},
	{line: "wait q order-42 --group g --state dead", says: "dead"},
	{line: "dead show q $letter", says: "order-42"},
	{line: "act redrive --error status --dry-run", says: "would be redriven 1"},
	{line: "act purge q --error status --dry-run", says: "would be purged 1"},
	{line: "export q", says: "order-42"},
	{line: "forecast q --group g", says: "TOTAL"},
	{line: "import other $dir/export", says: "imported"},
	{line: "dead edit q $letter --payload new --in 1h"},
	{line: "dead redrive other --all --in 1h", says: "redriven 2"},
	{line: "dead purge q --all --yes"},
	{line: "recur add q r --every 1h x", says: "r"},
	{line: "recur list q", says: "r"},
	{line: "recur show q r", says: "1h"},
	{line: "recur pause q r"},
	{line: "recur resume q r"},
	{line: "recur run q r", says: "r@"},
	{line: "recur rm q r"},
	{line: "recur apply --owner me -f -", stdin: "recurrences:\n- {queue: q, name: r, every: 1h}\n", says: "r"},
	{line: "push add q --group posts --url https://example.com/", says: "whsec_"},
	{line: "push list q", says: "posts"},
	{line: "push rotate q --group posts"},
	{line: "push rm q --group posts"},
	{line: "token add t --verb publish --queue *"},
	{line: "token list", says: "t"},
	{line: "token rm t"},
	{line: "functions load", says: "loaded"},
	{line: "functions show"},
	{line: "functions delete --yes"},
	{line: "migrate lmstfy --from $lmstfy", says: "moved 0"},
	{line: "migrate asynq --from $lmstfy", says: "moved 0"},
	{line: "migrate delayqueue --from $lmstfy", says: "moved 0"},
	{line: "migrate bullmq --from $lmstfy", says: "moved 0"},
	{line: "queue rollback q --force", says: "released"},
	{line: "queue delete q --force --yes", says: "deleted"},
	{line: "queue delete other --force --yes", says: "deleted"},
}

// On a cluster, with a queue whose partitions are on all servers, every command works as on one server. A command
// that is in neither table fails the test.
func TestEveryCommandOnACluster(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewOn(t, redistest.Cluster(t, 3, 0, "--appendonly", "yes").Server()), t.TempDir()
	done := map[string]bool{}
	// path returns the command that the words call, and notes that it was run.
	path := func(words []string) string {
		cmd, _, err := newRoot().Find(words)
		if err != nil {
			t.Fatal(err)
		}
		done[cmd.CommandPath()] = true
		return cmd.CommandPath()
	}
	for _, line := range []string{"serve", "gateway --http 127.0.0.1:0", "push run"} {
		words := strings.Fields(line)
		path(words)
		running := c.Start(words...)
		t.Cleanup(func() {
			running.Stop()
			if code := running.Wait(); code != exit.OK {
				t.Errorf("%s: exit code %d: %s%s", line, code, running.Out, running.Err)
			}
		})
	}
	letter := "" // the dead letter of order-42, once there is one
	for _, one := range commandsOnACluster {
		if strings.HasPrefix(one.line, "consumers") { // the consumers must exist first
			path([]string{"work"})
			worker := c.Start("work", "q", "--group", "g", "--", "false")
			c.OK("schedule", "q", "--id", "order-42", "x")
			redistest.Eventually(t, clitest.Patience, func() (bool, string) {
				var found struct{ Letter string }
				out := c.OK("dead", "list", "q", "--group", "g", "--json")
				_ = json.Unmarshal([]byte(out), &found)
				letter = found.Letter
				return letter != "", out + worker.Err.String()
			})
		}
		fill := strings.NewReplacer("$letter", letter, "$dir", dir, "$lmstfy", redistest.Own(t).URL())
		words := strings.Fields(fill.Replace(one.line))
		path(words)
		r := c.RunIn(one.stdin, words...)
		if r.Code != exit.OK || !strings.Contains(r.Out+r.Err, fill.Replace(one.says)) {
			t.Errorf("%s: exit code %d, without %q: %s%s", one.line, r.Code, one.says, r.Out, r.Err)
		}
		if words[0] == "export" {
			if err := os.WriteFile(filepath.Join(dir, "export"), []byte(r.Out), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, cmd := range tree() {
		if name := cmd.CommandPath(); cmd.Runnable() && !cmd.HasSubCommands() && !ofCobra(cmd) && !done[name] &&
			notOnACluster[name] == "" {
			t.Errorf("neither table has %q", name)
		}
	}
}
