package dashboard

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// Characters that cannot be seen, or that turn the direction of others, must be shown as escapes, and all others as
// they are.
func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                              "",
		"plain, naïve, 日本語, \U0001f600": "plain, naïve, 日本語, \U0001f600",
		"two\nlines\tand a tab":         "two\nlines\tand a tab",
		"a\x00b\x1b[31m\x7f":            `a\u0000b\u001b[31m\u007f`,
		"exe\u202egpj":                  `exe\u202egpj`,
		"zero\u200bwidth\u2028\ufeff":   `zero\u200bwidth\u2028\ufeff`,
		"tag\U000e0041":                 `tag\U000e0041`,
		"\xff\xfe ok \xc3":              `\xff\xfe ok \xc3`,
		"a real \ufffd":                 "a real \ufffd",
	} {
		redistest.Want(t, text, visible(text), want)
	}
}

// A clipped text must be the beginning of the text, and end with a whole character.
func TestClip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"", 0, ""}, {"abc", 3, "abc"}, {"abc", 2, "ab"}, {"aé", 2, "a"}, {"日本", 5, "日"}, {"日", 2, ""}} {
		redistest.Want(t, c.text, clip(c.text, c.n), c.want)
	}
}
