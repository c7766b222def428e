package cli

import (
	"strings"
	"testing"
)

// Only y and yes, in any case, are consent to delete. The end of the input is none.
func TestOnlyYesIsYes(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "": false, "yess\n": false} {
		if got := readYes(strings.NewReader(answer)); got != want {
			t.Errorf("%q: %v", answer, got)
		}
	}
}
