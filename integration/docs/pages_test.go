package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Pages are short, and fit on a screen: at most 300 lines, 120 columns outside of tables and code, and 200 characters
// in a cell of a table.
func TestPagesAreShort(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	long := []string{"docs/reference/protocol.md", "CHANGELOG.md"} // may have more lines
	target := regexp.MustCompile(`\]\([^)]*\)`)                    // cannot be broken
	cellEnd := regexp.MustCompile(`(?:^|[^\\])\|`)
	for _, page := range documents(t, root) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := relative(root, page)
		if n := strings.Count(string(text), "\n"); n > 300 && !slices.Contains(long, name) {
			t.Errorf("%s has %d lines", name, n)
		}
		inside := false
		for i, line := range strings.Split(string(text), "\n") {
			switch {
			case strings.HasPrefix(line, "```"):
				inside = !inside
			case inside:
			case strings.HasPrefix(line, "|"):
				for _, cell := range cellEnd.Split(line, -1) {
					if n := utf8.RuneCountInString(strings.TrimSpace(target.ReplaceAllString(cell, "]"))); n > 200 {
						t.Errorf("%s:%d: a cell has %d characters", name, i+1, n)
					}
				}
			default:
				if n := utf8.RuneCountInString(target.ReplaceAllString(line, "]")); n > 120 {
					t.Errorf("%s:%d has %d columns", name, i+1, n)
				}
			}
		}
	}
}
