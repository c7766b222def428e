package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// This file shows the difference of two texts, line by line.

// diffLine is a line of a difference.
type diffLine struct {
	Kind string // "same", "old", "new", or "gap" for lines that are left out
	Text string
}

// Bounds of a difference.
const (
	diffContext = 3    // equal lines beside a change
	diffLines   = 1000 // of each text, between the first and the last line that differs
	diffWidth   = 600  // bytes of a line

	diffTextLines = 200_000 // of each text, as linesOf splits it: a line takes 16 bytes of memory
)

// Mark returns the sign of the line.
func (l diffLine) Mark() string {
	switch l.Kind {
	case "old":
		return "−"
	case "new":
		return "+"
	}
	return " "
}

// difference returns the lines that differ, with some equal lines around them; nil = the texts are equal.
func difference(old, new string) []diffLine {
	if old == new {
		return nil
	}
	a, b := linesOf(old), linesOf(new)
	start, end := 0, 0 // numbers of equal lines at the beginning and at the end
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	for end < len(a)-start && end < len(b)-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	before, after := a[:start], a[len(a)-end:]
	var all []diffLine
	if hidden := len(before) - diffContext; hidden > 0 {
		all = append(all, gapLine(hidden, "equal line", "equal lines"))
		before = before[hidden:]
	}
	all = addLines(all, "same", before)
	all = append(all, withoutContext(changedLines(a[start:len(a)-end], b[start:len(b)-end]))...)
	if len(after) > diffContext {
		all = addLines(all, "same", after[:diffContext])
		return shorten(append(all, gapLine(count(after[diffContext:]), "equal line", "equal lines")))
	}
	return shorten(addLines(all, "same", after))
}

func addLines(all []diffLine, kind string, lines []string) []diffLine {
	for _, line := range lines {
		all = append(all, diffLine{kind, line})
	}
	return all
}

// gapLine tells how many lines are left out.
func gapLine(n int, one, many string) diffLine { return diffLine{"gap", plural(n, one, many)} }

// linesOf returns the lines of a text; an empty text has none. The last one of very many lines is the rest of the text.
func linesOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.SplitN(text, "\n", diffTextLines)
}

// count returns how many lines there are, if some of them came from linesOf.
func count(lines []string) int {
	if len(lines) == 0 {
		return 0
	}
	return len(lines) + strings.Count(lines[len(lines)-1], "\n")
}

// changedLines returns the difference of two lists of lines, by their longest common subsequence. If a list is too long
// for that, it returns the first lines of both.
func changedLines(a, b []string) (all []diffLine) {
	if len(a) > diffLines || len(b) > diffLines {
		all = addLines(all, "old", a[:min(len(a), diffLines)])
		if len(a) > diffLines {
			all = append(all, gapLine(count(a[diffLines:]), "further old line", "further old lines"))
		}
		all = addLines(all, "new", b[:min(len(b), diffLines)])
		if len(b) > diffLines {
			all = append(all, gapLine(count(b[diffLines:]), "further new line", "further new lines"))
		}
		return all
	}
	common := make([][]int32, len(a)+1) // common[i][j]: length of the longest common subsequence of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, diffLine{"same", a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			all = append(all, diffLine{"old", a[i]})
			i++
		default:
			all = append(all, diffLine{"new", b[j]})
			j++
		}
	}
	return all
}

// withoutContext replaces equal lines far from a change by one line that tells their number.
func withoutContext(all []diffLine) (shown []diffLine) {
	near := make([]bool, len(all))
	for i, line := range all {
		if line.Kind == "same" {
			continue
		}
		for k := max(0, i-diffContext); k <= min(len(all)-1, i+diffContext); k++ {
			near[k] = true
		}
	}
	left := 0
	gap := func() {
		if left > 0 {
			shown = append(shown, gapLine(left, "equal line", "equal lines"))
		}
		left = 0
	}
	for i, line := range all {
		if !near[i] {
			left++
			continue
		}
		gap()
		shown = append(shown, line)
	}
	gap()
	return shown
}

// shorten cuts long lines. Of a long line and the line that replaces it, it keeps the parts that differ.
func shorten(all []diffLine) []diffLine {
	for i := range all {
		line := &all[i]
		if len(line.Text) <= diffWidth || line.Kind == "gap" {
			continue
		}
		isPair := line.Kind == "old" && i+1 < len(all) && all[i+1].Kind == "new"
		if isPair {
			line.Text, all[i+1].Text = differingParts(line.Text, all[i+1].Text)
		}
		line.Text = cutLine(line.Text)
	}
	return all
}

func cutLine(text string) string {
	if len(text) <= diffWidth {
		return text
	}
	begin := clip(text, diffWidth)
	return fmt.Sprintf("%s… (%s more)", begin, plural(len(text)-len(begin), "byte", "bytes"))
}

// differingParts cuts the equal beginning of two texts.
func differingParts(a, b string) (string, string) {
	equal := 0
	for equal < len(a) && equal < len(b) && a[equal] == b[equal] {
		equal++
	}
	kept := len(clip(a, max(0, equal-60))) // the beginning of a character
	if kept == 0 {
		return a, b
	}
	mark := fmt.Sprintf("(%s) …", plural(kept, "equal byte", "equal bytes"))
	return mark + a[kept:], mark + b[kept:]
}

// maxIndentation is the most blanks that forDifference adds. A short text that is nested deeply could need gigabytes.
const maxIndentation = 8 << 20

// indentation returns how many blanks the indentation of a JSON text has, at most. It also counts signs in strings.
func indentation(text string) (blanks int) {
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth = max(depth-1, 0)
		case ',':
		default:
			continue
		}
		blanks += 2 * depth
	}
	return blanks
}

// forDifference returns a text in the form in which differences are easiest to see: JSON has a line for each value,
// unless it is nested so deeply that this would be too large.
func forDifference(text string) string {
	var folded bytes.Buffer
	if indentation(text) <= maxIndentation && json.Indent(&folded, []byte(text), "", "  ") == nil {
		text = folded.String()
	}
	return visible(text)
}
