package cli

import (
	"strings"
	"testing"
)

func TestOnlyYesIsYes(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "": false, "yess\n": false} {
		if got := readYes(strings.NewReader(answer)); got != want {
			t.Errorf("%q: %v", answer, got)
		}
	}
}
