package assemble

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// rareFunctions are functions of lua/lib that most runs of a script do not call. Beside each stands the feature that
// needs it. Each declaration costs the server at least 500 instructions in every run, and a rare function needs many
// others.
var rareFunctions = []string{
	"begin_record", "told_text", "note_drained", "note_values", "note_acknowledged", "write_record", // a history
	"begin_flow",                               // a rate limit, or a ready limit
	"add_other",                                // messages with a meta, and dead letters
	"end_turns", "pass_held", "id_without_key", // ordering keys
	"has_id",    // entries that a worker read before a possible change of the master
	"free_many", // several groups, or batches of more than 16 entries
}

// deferring returns a declaration of the rare function f. When f is first called, it declares the constants and
// functions that no other function of the script needs. Then f replaces itself: the inner declaration assigns to the
// outer local. constants and library hold the constants and functions that the script does not declare anyway. Two rare
// functions may both declare the same constant or function. Each of them then has its own copy, and does not see what
// the other changes in its copy. So deferring returns an error if f, or a function declared in it, changes a constant.
func deferring(f function, constants, library luaText) (string, error) {
	own := textOf(library.reachedFrom(f.text, nil))
	ownConstants := constants.reachedFrom(own+f.text, nil)
	for _, one := range ownConstants {
		if changes(own+f.text, one.name) {
			return "", fmt.Errorf("%s is a rare function, and changes %s, which is declared outside of it", f.name, one.name)
		}
	}
	own = textOf(ownConstants) + own
	if own == "" {
		return f.text, nil
	}
	return "local function " + f.name + "(...)\n" + own + strings.TrimPrefix(f.text, "local ") +
		"return " + f.name + "(...)\nend\n", nil
}

// changes reports whether a text assigns to the variable name or to an element of it, or gives the variable to a
// function that changes its first argument. It does not notice changes that are made by another name of the same table.
func changes(text, name string) bool {
	assigned := `(?m)(?:^|[^\w.:])` + name + ` *(?:\[[^=\n]*\]|\.\w+)* *(?:,[\w .,\[\]]*)?=[^=]`
	given := `\b(?:table\.insert|table\.remove|table\.sort|add_pair|extend_values)\(` + name + `\b`
	return regexp.MustCompile(assigned + "|" + given).MatchString(text)
}

// deferred returns the functions, with deferring applied to the rare ones.
func deferred(functions []function, constants, library luaText) ([]function, error) {
	functions = slices.Clone(functions)
	for i, f := range functions {
		if !slices.Contains(rareFunctions, f.name) {
			continue
		}
		var err error
		if functions[i].text, err = deferring(f, constants, library); err != nil {
			return nil, err
		}
	}
	return functions, nil
}

// withoutRare returns the functions that are not rare.
func withoutRare(functions []function) []function {
	return slices.DeleteFunc(slices.Clone(functions), func(f function) bool {
		return slices.Contains(rareFunctions, f.name)
	})
}
