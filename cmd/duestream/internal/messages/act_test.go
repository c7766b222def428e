package messages_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/messages"
	"github.com/duestream/duestream/integration/redistest"
)

// actRig is a queue q with the scheduled messages car and bike, the retry late, the ready message new and the dead
// letter order-42, and a queue other with the scheduled message boat.
func actRig(t *testing.T) *clitest.CLI {
	t.Helper()
	c := clitest.New(t)
	for queue, ids := range map[string][]string{"q": {"car", "bike"}, "other": {"boat"}} {
		for _, id := range ids {
			c.OK("schedule", queue, "--id", id, "--in", "1h", "--header", "tenant=acme", "red "+id)
		}
	}
	c.Retries("q", "late", time.Now().Add(time.Hour), "g")
	c.OneLetter("red and dead")
	c.Do("XADD", c.Key("q", "stream"), "*", "id", "new", "payload", "red", "due_ms", c.Milliseconds(0), "attempt", "1")
	return c
}

// act cancel cancels in each state except dead, in all queues or in those that are named. It asks first, and a dry run
// changes nothing.
func TestActCancelsWhatASearchFinds(t *testing.T) {
	t.Parallel()
	c := actRig(t)
	const dry = "would be cancelled 4, gone 0; looked at "
	if out := c.OK("act", "cancel", "--text", "red", "--dry-run"); !strings.HasPrefix(out, dry) {
		t.Error(out)
	}
	c.Fails(exit.Invalid, []string{"this deletes every message that the flags select", "add --yes"}, "act", "cancel",
		"--text", "red")
	redistest.Want(t, "after a dry run, and a run without consent", members(c, "q")+members(c, "other"), int64(4))
	var answer messages.ActAnswer
	c.JSON(&answer, "act", "cancel", "q", "--text", "red", "--state", "scheduled,retrying", "--yes")
	if answer.Changed != 2 || answer.DryRun || !answer.Complete {
		t.Errorf("%+v", answer)
	}
	redistest.Want(t, "left in q: the retry", members(c, "q"), int64(1))
	redistest.Want(t, "left in other", members(c, "other"), int64(1))
	redistest.Want(t, "ready", c.Place("new").State, admin.StateReady)
	if out := c.OK("act", "cancel", "--text", "red", "--yes"); !strings.HasPrefix(out, "cancelled 2, gone 0; looked at ") {
		t.Error(out)
	}
	c.Fails(exit.NotFound, nil, "show", "q", "new")
	redistest.Want(t, "left in other", members(c, "other"), int64(0))
	redistest.Want(t, "dead letters", c.Size("XLEN", c.Key("q", "dead")), int64(1))
	redistest.Want(t, "the retry", c.Place("late").State, admin.StateRetrying)
}

// act reschedule and act expire change scheduled messages and retries, act redrive and act purge dead letters.
func TestActMovesExpiresRedrivesAndPurges(t *testing.T) {
	t.Parallel()
	c := actRig(t)
	const at = "2099-01-01T00:00:00Z"
	out := c.OK("act", "reschedule", "--header", "tenant=acme", "--at", at, "--rate", "1000/s")
	if !strings.HasPrefix(out, "moved 3, due ") {
		t.Error(out)
	}
	redistest.Want(t, "car is due", c.Place("car").Due.UTC().Format(time.RFC3339), at)
	out = c.OK("act", "reschedule", "--header", "tenant=acme", "--at", at)
	if !strings.Contains(out, ", unchanged 3, gone 0") {
		t.Error(out)
	}
	if out = c.OK("act", "reschedule", "q", "--id", "late", "--in", "3h"); !strings.HasPrefix(out, "moved 1, due ") {
		t.Error(out)
	}
	if due := c.Place("late").Due; time.Until(due) < 2*time.Hour {
		t.Error("late is due", due)
	}
	if out = c.OK("act", "expire", "q", "--id", "car"); !strings.HasPrefix(out, "expired 1, gone 0") {
		t.Error(out)
	}
	if e := c.Place("car").Expires; e.IsZero() || time.Until(e) > 0 {
		t.Error("car expires", e)
	}
	if out = c.OK("act", "redrive", "--error", "oops", "--in", "2h"); !strings.HasPrefix(out, "redriven 1, gone 0") {
		t.Error(out)
	}
	redistest.Want(t, "redriven", c.Place("order-42").State, admin.StateRetrying)
	c.OneLetter("again")
	r := c.Fails(exit.Partly, []string{"not redriven: 1 message"}, "act", "redrive", "q", "--all", "--to", "nobody")
	if !strings.HasPrefix(r.Out, "redriven 0, refused 1, gone 0") {
		t.Error(r.Out)
	}
	c.Fails(exit.Invalid, []string{"add --yes"}, "act", "purge", "q", "--all")
	redistest.Want(t, "dead letters", c.Size("XLEN", c.Key("q", "dead")), int64(1))
	if out = c.OK("act", "purge", "q", "--reason", "max_attempts", "--yes"); !strings.HasPrefix(out, "purged 1, gone 0") {
		t.Error(out)
	}
	redistest.Want(t, "dead letters", c.Size("XLEN", c.Key("q", "dead")), int64(0))
}

// --from changes the messages that a search printed, and no others. A message that is gone is counted. A file with
// another line is refused as a whole.
func TestActChangesChosenHits(t *testing.T) {
	t.Parallel()
	c := actRig(t)
	var chosen []string
	for line := range strings.Lines(c.OK("search", "--text", "red", "--json")) {
		if strings.Contains(line, `"id":"car"`) || strings.Contains(line, `"id":"new"`) || strings.Contains(line, `"boat"`) {
			chosen = append(chosen, line)
		}
	}
	c.OK("cancel", "other", "boat")
	r := c.RunIn(strings.Join(chosen, "\n"), "act", "cancel", "--from", "-", "--yes")
	if r.Code != exit.OK || !strings.HasPrefix(r.Out, "cancelled 2, gone 1; looked at 3") {
		t.Errorf("%+v", r)
	}
	redistest.Want(t, "left in q: the retry and bike", members(c, "q"), int64(2))
	c.Fails(exit.NotFound, nil, "show", "q", "new")
	redistest.Want(t, "bike", c.Place("bike").State, admin.StateScheduled)
	file := filepath.Join(t.TempDir(), "hits")
	for _, bad := range []string{"", "\n\n", chosen[0] + "{}\n", chosen[0] + "[1]\n", "bike\n"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Fails(exit.Invalid, []string{file}, "act", "expire", "--from", file)
	}
	c.Fails(exit.Invalid, []string{"no such file"}, "act", "expire", "--from", file+"-none")
}

// act that is interrupted keeps its changes, and the same command changes the rest.
func TestActThatIsInterruptedGoesOn(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--id", "one", "--in", "1h", "x")
	c.Fill("q", "m", 2000, time.Now().Add(time.Hour))
	r := c.Start("act", "cancel", "q", "--all", "--yes", "--rate", "500/s")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return members(c, "q") < 2001, r.Out.String() + r.Err.String()
	})
	r.Stop()
	redistest.Want(t, "exit code", r.Wait(), exit.Interrupted)
	r.Says("run the same command again")
	left := members(c, "q")
	if left == 0 {
		t.Fatal("everything was cancelled before the interrupt")
	}
	var answer messages.ActAnswer
	c.JSON(&answer, "act", "cancel", "q", "--all", "--yes")
	redistest.Want(t, "cancelled by the second run", answer.Changed, left)
	redistest.Want(t, "members", members(c, "q"), int64(0))
}

// An action needs an explicit selection. Each key is a command line, and its value a part of the error.
func TestActRefusesWhatDoesNotSayWhatIsMeant(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for line, want := range map[string]string{
		"cancel --yes":                                      "select messages by flags, or give --all or --from",
		"cancel q --yes":                                    "select messages by flags",
		"cancel q --state ready --yes":                      "select messages by flags",
		"expire --all --text a":                             "--all selects all messages",
		"expire q --from -":                                 "--from names the messages",
		"expire --from - --state scheduled":                 "--from names the messages",
		"expire --text a --rate 0/s":                        "rate",
		"expire --text a --load 2":                          "load 2",
		"expire --text a --state dead":                      `state "dead": must be one of scheduled, retrying`,
		"purge --text a --state ready --yes":                `state "ready": must be one of dead`,
		"cancel --text a --state dead --yes":                `state "dead": must be one of scheduled`,
		"cancel --reason expired --yes":                     "unknown flag: --reason",
		"reschedule --text a":                               "one of --in and --at is required",
		"reschedule --text a --in -1s":                      "in",
		"reschedule --text a --in 1h --spread 20y":          "spread",
		"redrive --text a --to " + strings.Repeat("g", 300): "group",
		"redrive {q} --text a":                              `queue "{q}"`,
	} {
		c.Fails(exit.Invalid, []string{want}, append([]string{"act"}, strings.Fields(line)...)...)
	}
	fine := []string{"cancel --all --yes", "cancel --text a --dry-run", "expire --id a", "purge --all --yes"}
	for _, line := range fine {
		c.Fails(exit.Unavailable, nil, append([]string{"act"}, strings.Fields(line)...)...)
	}
	if names, _ := c.Offers("act", "expire", "--state", ""); fmt.Sprint(names) != "[scheduled retrying]" {
		t.Error(names)
	}
}
