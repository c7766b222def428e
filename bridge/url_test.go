package bridge

import (
	"strings"
	"testing"
)

// Redact hides every password in a URL: that before the @, and that of a parameter. If a part of a URL cannot be told
// from a password, Redact hides it too.
func TestRedactHidesPasswords(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h:1":                 "redis://h:1",
		"redis://u:secret@h:1/2?db=3": "redis://…@h:1/2?db=3",
		"redis://u:sec@ret@h:1":       "redis://…@h:1",
		"redis://u:sec?ret@h:1":       "redis://…@h:1",
		"redis://u:x?pass=secret@h:1": "redis://…",
		"redis://h?master_set=m&sentinel_password=secret&addr=i:1": "redis://h?master_set=m&sentinel_password=…&addr=i:1",
		"redis://h?sentinel_password=sec@ret":                      "redis://…",
		"redis://h?sentinel_pasword=1&PASS=secret":                 "redis://h?sentinel_pasword=…&PASS=…",
		"h:1": "h:1",
	} {
		if got := Redact(url); got != want || strings.Contains(got, "sec") {
			t.Errorf("Redact(%q) = %q, want %q", url, got, want)
		}
	}
}
