package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/duestream/duestream/lua"
)

// tally counts the answers of each step. It is logged (-v), to show which cases the sequences have reached.
type tally map[string]int

var (
	verdicts = map[lua.Verdict]string{
		lua.Malformed: "malformed", lua.Duplicate: "duplicate", lua.Scheduled: "scheduled", lua.Ready: "ready",
		lua.Repeated: "repeated", lua.Replaced: "replaced", refusedForOldBridge: "refused for an old bridge",
	}
	outcomes = map[lua.Outcome]string{
		lua.Stuck: "stuck", lua.Lost: "lost", lua.Retried: "retried", lua.Dead: "buried", lua.Released: "released",
		lua.Skipped: "skipped", lua.Snoozed: "snoozed", lua.CancelledOut: "cancelled",
	}
	redriven = map[lua.Redriven]string{
		lua.RedriveGroupGone: "for a group that is gone", lua.RedriveUnreadable: "unreadable", lua.RedriveMalformed: "malformed",
		lua.RedriveNoPayload: "without payload", lua.RedriveGone: "gone", lua.RedriveScheduled: "scheduled",
	}
)

// add counts the answer of a step. what is the text of the step, which begins with its verb.
func (t tally) add(what string, got any) {
	verb, _, _ := strings.Cut(what, " ")
	count := func(n int, words ...any) { t[verb+" "+fmt.Sprint(words...)] += n }
	switch got := got.(type) {
	case struct{}:
		t["by plain commands"]++
	case bool:
		count(1, got)
	case []bool:
		for _, done := range got {
			count(1, done)
		}
	case []lua.Receipt:
		for _, receipt := range got {
			count(1, verdicts[receipt.Verdict])
		}
	case []lua.Outcome:
		for _, outcome := range got {
			count(1, outcomes[outcome])
		}
	case []lua.Extended:
		for _, answer := range got {
			count(1, map[lua.Extended]string{lua.NotHeld: "lost", lua.StillHeld: "held", lua.HeldCancelled: "cancelled"}[answer])
		}
	case []lua.Redriven:
		for _, outcome := range got {
			count(1, redriven[outcome])
		}
	case lua.Drained:
		count(got.Moved, "moved")
		count(got.Dead, "buried")
	case lua.Reclaimed:
		count(got.Retried, "retried")
		count(got.Dead, "buried")
		count(got.Skipped, "skipped")
		count(got.Cancelled, "cancelled")
		if got.Cursor != "" {
			count(1, "in part")
		}
	case lua.TurnsPassed:
		count(got.Freed, "freed")
		count(got.Moved, "had go on")
	case lua.Trimmed:
		count(got.Freed, "freed")
		if got.Cursor != "" {
			count(1, "in part")
		}
	default:
		t[verb]++
	}
	t["steps"]++
}

func (t tally) String() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(t)) {
		out = append(out, fmt.Sprint(name, " ", t[name]))
	}
	return strings.Join(out, ", ")
}
