package deadletter

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/duestream/duestream/integration/redistest"
)

// Any pattern of IDs, also one that is not UTF-8, must select the same IDs as a plain recursion, and must not panic.
func FuzzLetterFilter(f *testing.F) {
	for _, s := range [][2]string{
		{"order-*", "order-1"}, {"*-1", "order-1"}, {"?", "ü"}, {"a?c*", "abc"}, {"*", ""}, {"", "x"}, {"**?", "a"}, {"[a]", "a"},
		{`\*`, "*"}, {"a.c", "abc"}, {"*a*b", "aab"},
		{"\xff", "\xff"}, {"?\xfe*", "\xff\xfe"}, {"*\n*", "a\nb"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, id string) {
		if len(pattern) > 200 || len(id) > 200 {
			return // the recursion is slow
		}
		got := Filter{ID: pattern}.matches(Letter{ID: id})
		if wanted := pattern == "" || matchesSlowly([]rune(mapBytes(pattern)), []rune(mapBytes(id)),
			map[[2]int]bool{}); got != wanted {
			t.Errorf("%q selects %q: %t, want %t", pattern, id, got, wanted)
		}
	})
}

// Regression: a pattern that is not UTF-8 made the filter panic, because the pattern was compiled to a regular
// expression. `dead list --id` with a stray byte ended in a stack trace.
func TestLetterFilterTakesAnyPattern(t *testing.T) {
	t.Parallel()
	matches := Filter{ID: "\xff*"}.matches
	redistest.Want(t, "selected", matches(Letter{ID: "\xff\xfe"}), true)
	redistest.Want(t, "selected", matches(Letter{ID: "\xfe\xff"}), false)
	redistest.Want(t, "ends in time", Filter{ID: strings.Repeat("*a", 60)}.matches(Letter{ID: strings.Repeat("a", 5000) + "b"}),
		false)
}

// mapBytes replaces each byte that is not valid UTF-8 by a character of its own, so that matchesSlowly can work on
// runes.
func mapBytes(s string) string {
	var out strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			r = rune(0xf0000) + rune(s[0])
		}
		out.WriteRune(r)
		s = s[n:]
	}
	return out.String()
}

// matchesSlowly reports whether a pattern with * and ? matches an ID, by a plain recursion. failed remembers the pairs
// of remaining lengths that did not match.
func matchesSlowly(pattern, id []rune, failed map[[2]int]bool) bool {
	at := [2]int{len(pattern), len(id)}
	if failed[at] {
		return false
	}
	ok := false
	switch {
	case len(pattern) == 0:
		ok = len(id) == 0
	case pattern[0] == '*':
		ok = matchesSlowly(pattern[1:], id, failed) || len(id) > 0 && matchesSlowly(pattern, id[1:], failed)
	default:
		ok = len(id) > 0 && (pattern[0] == '?' || pattern[0] == id[0]) && matchesSlowly(pattern[1:], id[1:], failed)
	}
	failed[at] = !ok
	return ok
}
