package dashboard

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// A difference must hold every changed line, and only the equal lines around it.
func TestDifference(t *testing.T) {
	t.Parallel()
	text := func(old, new string) string {
		var b strings.Builder
		for _, line := range difference(old, new) {
			b.WriteString(line.Kind + ":" + line.Text + " ")
		}
		return strings.TrimSpace(b.String())
	}
	for _, c := range []struct{ old, new, want string }{
		{"a", "a", ""},
		{"a", "b", "old:a new:b"},
		{"a\nb\nc", "a\nc", "same:a old:b same:c"},
		{"a\nc", "a\nb\nc", "same:a new:b same:c"},
		{"a\nb\nc\nd", "a\nB\nc\nD", "same:a old:b new:B same:c old:d new:D"},
		{"1\n2\n3\n4\n5\n6", "1\n2\n3\n4\n5\nx", "gap:2 equal lines same:3 same:4 same:5 old:6 new:x"},
		{"x\n1\n2\n3\n4", "y\n1\n2\n3\n4", "old:x new:y same:1 same:2 same:3 gap:1 equal line"},
		{"", "a\nb", "new:a new:b"},
		{"a", "", "old:a"},
	} {
		redistest.Want(t, c.old+" → "+c.new, text(c.old, c.new), c.want)
	}
	long := strings.Repeat("é", 5000)
	got := text(long+"old", long+"new")
	contains(t, got, "old:", "…", "old", "new", "equal bytes")
	if len(got) > 1000 {
		t.Errorf("the difference of long lines has %d bytes", len(got))
	}
}

// The place where a text stops being JSON must be named by its line and column.
func TestJSONProblem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":               "line 1, column 1: the text ends too early",
		"{\"a\": 1,\n\n": "line 3, column 1: the text ends too early",
		"{\"a\": 1,\n}":  "line 2, column 1: invalid character '}' looking for beginning of object key string",
		"{\"é\": x}":     "line 1, column 7: invalid character 'x' looking for beginning of value",
		"{}\n{}":         "line 1, column 3: there is more text after the value",
	} {
		redistest.Want(t, text, jsonProblem([]byte(text)), want)
	}
}

// The difference of long texts must hold some of their lines, and say how many it leaves out. Regression: it had a line
// for each, so a form of 1 MiB took 15 s and hundreds of megabytes.
func TestADifferenceIsBounded(t *testing.T) {
	t.Parallel()
	const many = 1 << 19
	old, new := strings.Repeat("a\n", many), strings.Repeat("b\n", many)
	got := difference(old, new)
	if len(got) > 2*diffLines+2+diffContext {
		t.Errorf("%d lines", len(got))
	}
	hidden := []string{}
	for _, line := range got {
		if line.Kind == "gap" {
			hidden = append(hidden, line.Text)
		}
	}
	redistest.Want(t, "left out", strings.Join(hidden, ", "),
		plural(many-diffLines, "", "further old lines")+", "+plural(many-diffLines, "", "further new lines"))
	got = difference(old+"x\n"+old, old+"y\n"+old)
	redistest.Want(t, "lines of a small change", len(got), 2*diffContext+2+2)
}
