package dashboard

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// This file makes texts of producers safe to read: no character is invisible or changes the direction of others.

// visible returns a text with each character that cannot be seen, such as NUL or the override of the direction of
// writing, as an escape: \u0000. Blanks and line breaks stay. Bytes that are not UTF-8 become escapes, too: \xff.
func visible(text string) string {
	if !strings.ContainsFunc(text, isInvisible) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case r != utf8.RuneError && isInvisible(r):
			b.WriteString(escape(r))
		default:
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}

// isInvisible reports whether visible escapes a character. It is true for RuneError, which may stand for a wrong byte.
func isInvisible(r rune) bool {
	return r == utf8.RuneError || r != '\n' && r != '\t' && !unicode.IsPrint(r)
}

// escape returns the escape of a character in JSON, or if the character needs more than four digits, in Go.
func escape(r rune) string {
	if r > 0xffff {
		return fmt.Sprintf(`\U%08x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// clip returns the beginning of a text, at most n bytes of whole characters.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
