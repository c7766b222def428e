package assemble

import (
	"slices"
	"strings"
)

// rareFunctions are the functions of lua/lib that most runs of a script do not call: those for queues with a history, a
// rate limit, ordering keys or message headers, and for large batches. Each declaration costs the server up to 1 % of a
// run of drain, and the functions that only a rare function needs are many.
var rareFunctions = []string{
	"begin_record", "told_text", "note_drained", "note_values", "write_record", // a history
	"begin_flow",             // a rate limit, or a ready limit
	"add_described",          // messages with headers, and those that become dead letters
	"end_turns", "pass_held", // ordering keys
	"bounds", // batches of more than 16 entries
}

// deferring returns the declaration of a rare function that declares the constants and functions that only it needs
// when it is first called. Then it replaces itself: the second declaration in the text assigns to the local of the
// first one. constants and library are those that the script does not declare for other functions. Two rare functions
// may both declare the same function, which is harmless, because functions of lua/lib keep no state.
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
