package human

import (
	"strings"
	"testing"
	"unicode"
)

// A text of a foreign client reaches a terminal without control characters, and OneLine cuts it to the width of a cell.
func FuzzForeignText(f *testing.F) {
	for _, seed := range []string{"plain", "\x1b[31mred", "a\nb\tc", "\xff\xfe", "\u202eabc", "\u0085",
		strings.Repeat("ü", 50), "\x00"} {
		f.Add(seed, 40)
	}
	f.Fuzz(func(t *testing.T, text string, n int) {
		n = 1 + (n&0x7fffffff)%200
		cell := OneLine(text, n)
		if len([]rune(cell)) > n || strings.ContainsFunc(cell, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is shown as %q", text, cell)
		}
		if shown := Printable([]byte(text)); strings.ContainsFunc(shown, func(r rune) bool {
			return r != '\n' && r != '\t' && !unicode.IsPrint(r)
		}) {
			t.Errorf("%q is printed as %q", text, shown)
		}
	})
}
