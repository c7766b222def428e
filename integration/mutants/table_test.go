package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A row has no effect if its text is no longer in its file, or if its test is not where it says. Only a run of all
// mutants would show that.
func TestEveryMutantFindsItsPlace(t *testing.T) {
	names := map[string]bool{}
	for _, m := range allMutants() {
		if names[m.name] {
			t.Errorf("%s: twice", m.name)
		}
		names[m.name] = true
		text, err := os.ReadFile(filepath.Join("..", "..", m.file))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if n := strings.Count(string(text), m.old); n != max(1, m.changes) {
			t.Errorf("%s: its text is %d times in %s:\n%s", m.name, n, m.file, m.old)
		}
		for _, word := range m.test {
			if strings.HasPrefix(word, "./") {
				if tests, _ := filepath.Glob(filepath.Join("..", "..", word, "*_test.go")); len(tests) == 0 {
					t.Errorf("%s: no tests in %s", m.name, word)
				}
			}
		}
	}
}

// The page that reports the results of the mutants only names mutants that exist.
func TestTheDocumentedMutantsAreThere(t *testing.T) {
	names := map[string]bool{}
	for _, m := range allMutants() {
		names[m.name] = true
	}
	text, err := os.ReadFile("../../docs/history/results.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Mutants\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := 0
	for line := range strings.Lines(section) {
		name, isRow := strings.CutPrefix(line, "| ")
		name, _, _ = strings.Cut(name, " | ")
		if !isRow || name == "guard taken out" {
			continue
		}
		rows++
		if !names[name] {
			t.Errorf("no mutant is called %q", name)
		}
	}
	if rows < 10 {
		t.Errorf("%d rows", rows)
	}
}
