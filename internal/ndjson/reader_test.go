package ndjson

import (
	"io"
	"strings"
	"testing"
)

// The reader reports a line that is too long without its text, and goes on with the line after it.
func TestLineReaderSkipsALineThatIsTooLong(t *testing.T) {
	t.Parallel()
	r := NewReader(io.MultiReader(strings.NewReader("a\n"), strings.NewReader(strings.Repeat("x", MaxLine+1)),
		strings.NewReader("\nb")))
	for i, want := range []string{"a", "", "b"} {
		line, tooLong, err := r.Next()
		if err != nil || string(line) != want || tooLong != (i == 1) || r.Number != i+1 {
			t.Errorf("line %d: %q, too long %t, number %d, error %v", i+1, line, tooLong, r.Number, err)
		}
	}
	if _, _, err := r.Next(); err != io.EOF {
		t.Errorf("error %v, want EOF", err)
	}
}
