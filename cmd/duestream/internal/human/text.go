// Package human writes values as people read them: durations, points in time, numbers, and texts that come from elsewhere.
package human

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns a payload as a terminal can show it: as it is, or quoted when it holds other bytes.
func Printable(payload []byte) string {
	text := string(payload)
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && !unicode.IsPrint(r)
	}) {
		return text
	}
	return fmt.Sprintf("%q", text)
}

// OneLine returns a foreign text for a cell of a table: no control characters, at most n characters.
func OneLine(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if r := []rune(text); len(r) > n {
		text = string(r[:n-1]) + "…"
	}
	return text
}

// OrDash returns the text of a table's cell: "-" for an empty one.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
