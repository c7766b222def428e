package assemble

import (
	"slices"
	"strings"
)

// rareFunctions are functions of lua/lib that most runs of a script do not call. Beside each stands the feature that
// needs it. Each declaration costs the server at least 500 instructions in every run, and a rare function needs many
// others.
var rareFunctions = []string{
	"begin_record", "told_text", "note_drained", "note_values", "write_record", // a history
	"begin_flow",             // a rate limit, or a ready limit
	"add_described",          // messages with a meta, and dead letters
	"end_turns", "pass_held", // ordering keys
	"bounds", // batches of more than 16 entries
}

// deferring returns a declaration of the rare function f. When f is first called, it declares the constants and
// functions that no other function of the script needs. Then f replaces itself: the inner declaration assigns to the
// outer local. constants and library hold the constants and functions that the script does not declare anyway. Two rare
// functions may both declare the same function, which is harmless, because functions of lua/lib keep no state.
func deferring(f function, constants, library luaText) string {
	own := textOf(library.reachedFrom(f.text, nil))
	own = textOf(constants.reachedFrom(own+f.text, nil)) + own
	if own == "" {
		return f.text
	}
	return "local function " + f.name + "(...)\n" + own + strings.TrimPrefix(f.text, "local ") +
		"return " + f.name + "(...)\nend\n"
}

// withoutRare returns the functions that are not rare.
func withoutRare(functions []function) []function {
	return slices.DeleteFunc(slices.Clone(functions), func(f function) bool {
		return slices.Contains(rareFunctions, f.name)
	})
}
