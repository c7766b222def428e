// Package term writes to terminals: colours, tables, a progress line, a full screen, and the outlets that all output
// passes through. It knows nothing of queues.
package term

import (
	"errors"
	"os"
	"slices"
)

// ColorMode is the value of the flag --color.
type ColorMode string

// ColorModes are the allowed values of --color.
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

// Paint says whether texts get colours. A colour only repeats the meaning of the text.
type Paint bool

// Style is a colour, or bold or faint.
type Style string

// The styles.
const (
	Plain  Style = ""
	Strong Style = "1"
	Faint  Style = "2"
	Bad    Style = "31"
	Alert  Style = "33"
)

// Text returns the text in a style.
func (p Paint) Text(s Style, text string) string {
	if !p || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Paint says whether texts on a stream get colours. The stream is standard output or standard error.
func (m ColorMode) Paint(stream any) Paint {
	switch m {
	case "always":
		return true
	case "never":
		return false
	}
	return Paint(IsTerminal(stream) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}
