package cli

import (
	"strings"
	"testing"
)

func TestConfirm(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "": false, "yess\n": false} {
		var out strings.Builder
		if got := confirm(strings.NewReader(answer), &out, "sure? "); got != want || out.String() != "sure? " {
			t.Errorf("%q: %v, %q", answer, got, &out)
		}
	}
}
