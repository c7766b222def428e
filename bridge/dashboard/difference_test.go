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
		plural(many+1-diffLines, "", "further old lines")+", "+plural(many+1-diffLines, "", "further new lines"))
	got = difference(old+"x\n"+old, old+"y\n"+old) // behind the lines that are compared one by one
	redistest.Want(t, "lines of a late change", len(got), 1+diffContext+2)
	contains(t, got[diffContext+1].Text, "equal bytes) …", "x\na\n")
	contains(t, got[diffContext+2].Text, "equal bytes) …", "y\na\n")
	few := strings.Repeat("a\n", diffTextLines/2-10)
	got = difference(few+"x\n"+few, few+"y\n"+few)
	redistest.Want(t, "lines of a small change", len(got), 2*diffContext+2+2)
	got = difference("x\n"+old, "y\n"+old)
	redistest.Want(t, "equal lines", got[len(got)-1].Text, plural(many+1-diffContext, "", "equal lines"))
}

// A text of very many lines must not take 16 bytes of memory for each of them. Regression: a dead letter of 16 MiB of
// line breaks took 268 MB for each difference.
func TestTheLinesOfATextAreBounded(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("\n", 1<<20)
	lines := linesOf(text)
	redistest.Want(t, "lines that are held", len(lines), diffTextLines)
	redistest.Want(t, "lines that are counted", count(lines), 1<<20+1)
	redistest.Want(t, "the text is whole", strings.Join(lines, "\n") == text, true)
}
