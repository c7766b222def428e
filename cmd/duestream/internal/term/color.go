// Package term is what the command knows of terminals: colours, tables, a line of progress, a screen that is taken over and
// given back, and outlets, through which all that is printed passes. Nothing here knows a queue.
package term

import (
	"errors"
	"os"
	"slices"
)

// ColorMode is the flag --color.
type ColorMode string

// ColorModes are the values of --color.
var ColorModes = []string{"auto", "always", "never"}

// Set implements pflag.Value.
func (m *ColorMode) Set(text string) error {
	if !slices.Contains(ColorModes, text) {
		return errors.New("must be auto, always or never")
	}
	*m = ColorMode(text)
	return nil
}

// Type implements pflag.Value.
func (m *ColorMode) Type() string { return "when" }

// String implements pflag.Value.
func (m *ColorMode) String() string { return string(*m) }

// Paint colours texts; false leaves them as they are. A colour repeats what the text says, and adds nothing to it.
type Paint bool

// Style is a colour, or how strong a text stands out.
type Style string

// What a text may look like.
const (
	Plain  Style = ""
	Strong Style = "1"
	Faint  Style = "2"
	Bad    Style = "31"
	Alert  Style = "33"
)

// Text colours a text.
func (p Paint) Text(s Style, text string) string {
	if !p || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Paint returns the colours for a stream: standard output or standard error.
func (m ColorMode) Paint(stream any) Paint {
	switch m {
	case "always":
		return true
	case "never":
		return false
	}
	return Paint(IsTerminal(stream) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}
