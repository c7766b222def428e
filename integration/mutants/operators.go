package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// mutant is one change of one line of a Lua script.
type mutant struct {
	file string // below lua, as "lib/free.lua"
	line int    // from 1
	rule string // the operator that made it
	old  string // the line, without indentation
	new  string // what replaces it; "" removes it
}

func (m mutant) String() string {
	if m.new == "" {
		return fmt.Sprintf("%s:%d %s: %s", m.file, m.line, m.rule, m.old)
	}
	return fmt.Sprintf("%s:%d %s: %s", m.file, m.line, m.rule, m.new)
}

// name identifies a mutant when lines above it have moved.
func (m mutant) name() string { return m.file + " | " + m.rule + " | " + cmp.Or(m.new, m.old) }

// The rules:
//   - drop: a line that is one call of Redis, or one whole "if … end", is removed;
//   - negate: one comparison of a line means its opposite.
const (
	drop   = "drop"
	negate = "negate"
)

var opposites = map[string]string{"==": "~=", "~=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}

// aComparison matches a comparison, or a text in quotes, which is skipped.
var aComparison = regexp.MustCompile(`'(?:[^'\\]|\\.)*'|==|~=|<=|>=|<|>`)

// oneCall matches a line that does nothing but call Redis.
var oneCall = regexp.MustCompile(`^(pcall\()?redis\.p?call[(,].*\)$|^in_chunks\('.*\)$`)

// mutantsOf returns the mutants of all scripts and libraries, by file and line.
func mutantsOf(lua fs.FS) ([]mutant, error) {
	var files []string
	for _, pattern := range []string{"*.lua", "lib/*.lua"} {
		found, err := fs.Glob(lua, pattern)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	var all []mutant
	for _, file := range files {
		text, err := fs.ReadFile(lua, file)
		if err != nil {
			return nil, err
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, m := range mutantsOfLine(line) {
				m.file, m.line = file, i+1
				all = append(all, m)
			}
		}
	}
	return all, nil
}

func mutantsOfLine(line string) []mutant {
	code, _, _ := strings.Cut(strings.TrimSpace(line), " -- ")
	code = strings.TrimSpace(code)
	if code == "" || strings.HasPrefix(code, "--") {
		return nil
	}
	var all []mutant
	wholeIf := strings.HasPrefix(code, "if ") && strings.HasSuffix(code, " end")
	if wholeIf || oneCall.MatchString(code) && strings.Count(code, "(") == strings.Count(code, ")") {
		all = append(all, mutant{rule: drop, old: code})
	}
	for _, at := range aComparison.FindAllStringIndex(code, -1) {
		if opposite, ok := opposites[code[at[0]:at[1]]]; ok {
			all = append(all, mutant{rule: negate, old: code, new: code[:at[0]] + opposite + code[at[1]:]})
		}
	}
	return all
}

// apply returns the text of a file with the change.
func (m mutant) apply(text string) (string, error) {
	lines := strings.Split(text, "\n")
	if m.line > len(lines) || !strings.Contains(lines[m.line-1], m.old) {
		return "", fmt.Errorf("%s:%d is not %q", m.file, m.line, m.old)
	}
	if m.new == "" {
		return strings.Join(slices.Delete(lines, m.line-1, m.line), "\n"), nil
	}
	lines[m.line-1] = strings.Replace(lines[m.line-1], m.old, m.new, 1)
	return strings.Join(lines, "\n"), nil
}
