// Package human formats values for people: durations, times, numbers, and texts from elsewhere.
package human

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns a payload as text for a terminal. A payload with unprintable bytes is quoted.
func Printable(payload []byte) string {
	text := string(payload)
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && !unicode.IsPrint(r)
	}) {
		return text
	}
	return fmt.Sprintf("%q", text)
}

// OneLine returns a foreign text for a cell of a table: without control characters, cut to n characters.
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

// OrDash returns text, or "-" if it is empty.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// MiddleCut shortens the error of a flag library in its middle. Such an error quotes the whole value and gives the
// reason at its end.
func MiddleCut(text string) string {
	const most, keep = 500, 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:keep], "") + "…" + strings.ToValidUTF8(text[len(text)-keep:], "")
}
