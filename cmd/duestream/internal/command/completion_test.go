package command_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/integration/redistest"
)

// Each case completes the words in typed, whose end is marked by |. The shell must be offered the names in want, in
// this order and without those typed already, and the directive: 4 = no file names, 6 = the same and no space behind
// the name, 0 = file names.
func TestCompletion(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	all := c.Letters() // in queue q, of groups g1 and g2
	c.OK("schedule", "emails", "--id", "order-42", "--in", "1h", "x")
	c.OK("schedule", "emails", "--id", "order-43", "--in", "2h", "x")
	for _, one := range []struct{ typed, want, directive string }{
		{"stats |", "emails q", ":4"}, {"stats q |", "emails", ":4"}, {"top e|", "emails", ":4"}, {"show |", "emails q", ":4"},
		{"queue show |", "emails q", ":4"}, {"queue show q |", "", ":4"}, {"work |", "--group -g emails q", ":4"}, {"pending |", "emails q", ":4"}, {"pending q |", "g1 g2", ":4"}, {"find |", "", ":4"}, {"peek |", "emails q", ":4"}, {"pause q |", "emails", ":4"},
		{"consumers |", "emails q", ":4"}, {"doctor |", "emails q", ":4"}, {"export |", "emails q", ":4"},
		{"pending q --group |", "g1 g2", ":4"}, {"pending q -g |", "g1 g2", ":4"}, {"dead list q --group g|", "g1 g2", ":4"}, {"work q --group |", "g1 g2", ":4"},
		{"pending --group |", "", ":4"}, {"pending a/b --group |", "", ":4"},
		{"show emails |", "order-42 order-43", ":4"}, {"cancel emails order-42 |", "order-43", ":4"}, {"reschedule emails o|", "order-42 order-43", ":4"},
		{"reschedule emails order-42 |", "--at --in", ":4"},
		{"queue set q |", "burst= free_retries= handler_timeout= held= held_workers= history= history_age= key_failure= max_attempts= max_crashes= max_snoozes= rate= ready_limit= retry_delays= retry_for= retry_max= retry_min= visibility_timeout=", ":6"}, {"queue set q held=|", "held=true held=false held=", ":6"},
		{"dead list q --reason |", strings.Join(admin.Reasons(), " "), ":4"}, {"dead list q --reason e|", "expired", ":4"},
		{"stats --color |", "auto always never", ":4"}, {"top --sort |", "name lag rate lateness", ":4"}, {"schedule q --durability |", "accepted fsynced replicated=1", ":4"},
		{"work q --group g1 -- |", "", ":0"}, {"version |", "", ":4"},
	} {
		words := strings.Split(strings.TrimSuffix(one.typed, "|"), " ")
		typed := words[len(words)-1]
		// Wait, because a completion offers nothing if a busy server does not answer within a second.
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			names, directive := c.Offers(words...)
			// The shell filters by the typed prefix.
			names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, typed) })
			got := strings.Join(names, " ")
			return got == one.want && directive == one.directive, fmt.Sprintf("%s: %q %s, want %q %s", one.typed, got,
				directive, one.want, one.directive)
		})
	}
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		names, _ := c.Offers("dead", "show", "q", "")
		return len(names) == len(all) && names[0] == all[len(all)-1].Letter, fmt.Sprintf("letters %v, of %d", names, len(all))
	})
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		names, _ := c.Offers("dead", "purge", "q", all[0].Letter, "")
		return len(names) == len(all)-1, fmt.Sprintf("letters %v", names)
	})
}

// A server that is down or silent costs the typing user at most a second, and prints no error.
func TestCompletionNeverHangs(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and never replies
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, url := range []string{clitest.Unreachable, "redis://" + silent.Addr().String(), "nonsense://"} {
		c := &clitest.CLI{T: t, URL: url, Prefix: "p"}
		for _, args := range [][]string{{"stats", ""}, {"pending", "q", "--group", ""},
			{"dead", "show", "q", ""}, {"cancel", "q", ""}} {
			redistest.Eventually(t, clitest.Patience, func() (bool, string) { // retried, because this machine may be slow
				start := time.Now()
				names, _ := c.Offers(args...)
				took := time.Since(start)
				return len(names) == 0 && took <= 1500*time.Millisecond, fmt.Sprintf("%s %v: %v after %s", url, args, names, took)
			})
		}
	}
}

// Each shell gets its own script, recognized by a text that only this shell's script has.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t}
	for shell, text := range map[string]string{"bash": "__start_duestream", "zsh": "#compdef duestream",
		"fish": "complete -c duestream", "powershell": "Register-ArgumentCompleter"} {
		if out := c.OK("completion", shell); !strings.Contains(out, text) {
			t.Errorf("%s: %.200s", shell, out)
		}
	}
}
