package command_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// effects lists the effect of every command on data in Redis. "asks" marks a command that can delete data not listed
// one by one in its arguments, and that therefore needs consent. The words behind "asks" are arguments with which the
// command deletes such data.
var effects = map[string]string{
	"duestream": "reads", "duestream serve": "moves", "duestream dev": "moves", "duestream health": "reads",
	"duestream schedule": "adds", "duestream cancel": "deletes named items", "duestream reschedule": "moves",
	"duestream bulk": "reads", "duestream bulk cancel": "asks q --all",
	"duestream bulk reschedule": "moves", "duestream bulk expire": "moves", "duestream show": "reads",
	"duestream work": "moves",
	"duestream act":  "reads", "duestream act cancel": "asks q --all", "duestream act reschedule": "moves",
	"duestream act expire": "moves", "duestream act redrive": "moves", "duestream act purge": "asks q --all",
	"duestream search": "reads", "duestream result": "reads", "duestream wait": "reads",

	"duestream stats": "reads", "duestream top": "reads", "duestream find": "reads", "duestream story": "reads",
	"duestream peek": "reads", "duestream pending": "reads",
	"duestream consumers": "reads", "duestream dead": "reads", "duestream dead list": "reads",
	"duestream dead show":    "reads",
	"duestream dead redrive": "moves", "duestream dead edit": "moves", "duestream dead purge": "asks q --all",
	"duestream queue": "reads", "duestream queue show": "reads", "duestream queue set": "sets",
	"duestream queue delete": "asks q --force", "duestream queue partitions": "sets",
	"duestream queue rollback": "moves",
	"duestream recur":          "reads", "duestream recur add": "sets", "duestream recur list": "reads",
	"duestream recur show":  "reads",
	"duestream recur pause": "sets", "duestream recur resume": "sets",
	"duestream recur run": "adds", "duestream recur rm": "deletes named items",
	"duestream recur apply": "sets",
	"duestream push":        "reads", "duestream push add": "sets", "duestream push list": "reads",
	"duestream push rm":     "deletes named items",
	"duestream push rotate": "sets", "duestream push run": "moves",
	"duestream token": "reads", "duestream token add": "sets", "duestream token list": "reads",
	"duestream token rm": "deletes named items",
	"duestream gateway":  "serves",
	"duestream pause":    "sets", "duestream resume": "sets", "duestream export": "reads", "duestream import": "adds",
	"duestream migrate": "reads", "duestream migrate lmstfy": "adds",
	"duestream forecast":      "reads",
	"duestream migrate asynq": "adds", "duestream migrate delayqueue": "adds", "duestream migrate bullmq": "adds",
	"duestream functions": "reads", "duestream functions load": "adds", "duestream functions show": "reads",
	"duestream functions delete": "asks", "duestream functions dump": "reads",
	"duestream doctor": "repairs without loss", "duestream bench": "deletes its own",
	"duestream conformance": "has a server of its own",
	"duestream man":         "reads", "duestream version": "reads", "duestream help": "reads",
	"duestream completion": "reads", "duestream completion bash": "reads", "duestream completion zsh": "reads",
	"duestream completion fish": "reads", "duestream completion powershell": "reads",
}

// Regression: a purge of all dead letters in a script, or over ssh, deleted without a question. Commands that delete
// data they do not name one by one now need --yes if nobody can be asked. A new command must be added to effects. A
// command that consent lets through fails as Unavailable, because there is no server.
func TestNothingIsDestroyedWithoutConsent(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	there := map[string]bool{}
	for _, cmd := range tree() {
		name := cmd.CommandPath()
		there[name] = true
		effect := strings.Fields(effects[name])
		if len(effect) == 0 {
			t.Errorf("%s: nothing says what it does to Redis", name)
			continue
		}
		asks := effect[0] == "asks"
		marked, hasYes := cmd.Annotations["destroys"] != "", cmd.Flags().Lookup("yes") != nil
		if marked != asks || hasYes != asks {
			t.Errorf("%s: listed as asking: %t, marked as destroying: %t, has --yes: %t", name, asks, marked, hasYes)
		}
		if !asks {
			continue
		}
		args := slices.Concat(strings.Fields(name)[1:], effect[1:])
		c.Fails(exit.Invalid, []string{"this deletes ", "add --yes"}, args...)
		c.Fails(exit.Unavailable, nil, append(args, "--yes")...)
	}
	for name := range effects {
		if !there[name] {
			t.Errorf("%s is listed, and does not exist", name)
		}
	}
}

// A purge needs consent with any filter. A dry run, and a purge of letters given by name, need none. What needs none
// fails as Unavailable, because there is no server.
func TestPurgeByFlagsNeedsConsentWhateverTheFlags(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for _, flags := range []string{
		"--all", "--group g", "--reason expired", "--error x", "--id x", "--older-than 1h", "--newer-than 1h",
		"--limit 1", "--all --json", "--all --group g",
	} {
		args := append([]string{"dead", "purge", "q"}, strings.Fields(flags)...)
		c.Fails(exit.Invalid, []string{"add --yes"}, args...)
		c.Fails(exit.Unavailable, nil, append(args, "--dry-run")...)
		c.Fails(exit.Unavailable, nil, append(args, "--yes")...)
	}
	c.Fails(exit.Unavailable, nil, "dead", "purge", "q", "1-0")
}
