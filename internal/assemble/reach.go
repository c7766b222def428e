package assemble

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// luaText is a Lua text, split into its functions and the lines outside of them.
type luaText struct {
	functions []function
	rest      string
}

// function is a declaration of a text: a local function (see split), or another local (see splitConstants).
type function struct{ name, text string }

// split splits a text. A function begins with a line that begins with "local function". It ends with the same line if
// that line ends with "end", else with the next line that is only "end".
func split(text string) luaText {
	var l luaText
	inside := false
	for line := range strings.Lines(text) {
		if declared, ok := strings.CutPrefix(line, "local function "); ok {
			name, _, _ := strings.Cut(declared, "(")
			l.functions = append(l.functions, function{name: name})
			inside = true
		}
		if !inside {
			l.rest += line
			continue
		}
		l.functions[len(l.functions)-1].text += line
		inside = line != "end\n" && !(strings.HasPrefix(line, "local function ") && strings.HasSuffix(line, " end\n"))
	}
	return l
}

var constant = regexp.MustCompile(`^local (\w+) = `)

// splitConstants splits the lines outside of functions into declarations of locals and other lines. A declaration
// ends before the first line that begins with neither a space nor a closing brace. Each declaration costs the server
// time in every run, so a script gets only the locals that it can reach.
func splitConstants(text string) (constants luaText, others string) {
	inside := false
	for line := range strings.Lines(text) {
		continues := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "}")
		if declared := constant.FindStringSubmatch(line); declared != nil {
			constants.functions = append(constants.functions, function{name: declared[1]})
			inside = true
		} else if !continues {
			inside = false
		}
		if inside {
			constants.functions[len(constants.functions)-1].text += line
		} else {
			others += line
		}
	}
	return constants, others
}

// reachableFrom returns the texts of the functions that a text names, directly or through each other, in their order.
func (l luaText) reachableFrom(text string) string {
	return textOf(l.reachedFrom(text, nil))
}

// reachedFrom returns the functions that a text names, directly or through each other, in their order. The functions
// that a function in notFollowed names are not brought in by it. A function counts as named if its name is a word of
// the text, so a local with the name of a function brings it in, too.
func (l luaText) reachedFrom(text string, notFollowed []string) (reached []function) {
	called := map[string]bool{}
	for found := true; found; {
		found = false
		for _, f := range l.functions {
			if !called[f.name] && hasWord(text, f.name) {
				called[f.name], found = true, true
				if !slices.Contains(notFollowed, f.name) {
					text += f.text
				}
			}
		}
	}
	for _, f := range l.functions {
		if called[f.name] {
			reached = append(reached, f)
		}
	}
	return reached
}

func textOf(functions []function) string {
	var b strings.Builder
	for _, f := range functions {
		b.WriteString(f.text)
	}
	return b.String()
}

// without returns the text without the functions of a name.
func (l luaText) without(name string) luaText {
	l.functions = slices.DeleteFunc(slices.Clone(l.functions), func(f function) bool { return f.name == name })
	return l
}

// withoutAll returns the text without these functions.
func (l luaText) withoutAll(functions []function) luaText {
	for _, f := range functions {
		l = l.without(f.name)
	}
	return l
}

// hasWord reports whether a Lua name stands in a text as a whole word.
func hasWord(text, name string) bool {
	inName := func(at int) bool {
		if at < 0 || at >= len(text) {
			return false
		}
		c := rune(text[at])
		return c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c)
	}
	for at := 0; ; at++ {
		next := strings.Index(text[at:], name)
		if next < 0 {
			return false
		}
		at += next
		if !inName(at-1) && !inName(at+len(name)) {
			return true
		}
	}
}
