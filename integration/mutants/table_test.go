package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A row whose text is no longer in its file, or whose test is not where it says, takes out no guard: it would be noticed only by
// a run of all of them.
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
