package assemble

import (
	"slices"
	"strings"
	"testing"
)

func TestHeaderParserRefusesDisorder(t *testing.T) {
	t.Parallel()
	good := readAll(t).files["ack.lua"].text
	if _, err := ParseHeader("ack", good); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(good, "\n")
	for i := range 8 {
		without := strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "")
		if h, err := ParseHeader("ack", without); err == nil && len(h.Args)+len(h.Each) == 3 {
			t.Errorf("accepted without line %d: %s", i+1, lines[i])
		}
		if i < 7 {
			swapped := slices.Clone(lines)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			if _, err := ParseHeader("ack", strings.Join(swapped, "")); err == nil {
				t.Errorf("accepted with lines %d and %d swapped", i+1, i+2)
			}
		}
	}
}
