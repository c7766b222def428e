package clitest

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// Offers runs the completion of args, and returns the names that the shell is offered, without descriptions, and the
// directive that follows them.
func (c *CLI) Offers(args ...string) (names []string, directive string) {
	c.T.Helper()
	r := c.Run(append([]string{"__complete"}, c.completed(args)...)...)
	if r.Code != exit.OK || strings.Contains(r.Err, "duestream:") {
		c.T.Errorf("%q: exit code %d\n%s", args, r.Code, r.Err)
	}
	for line := range strings.Lines(r.Out) {
		name, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(name, ":") {
			directive = name
			continue
		}
		names = append(names, name)
	}
	return names, directive
}

// completed puts the connection flags after __complete, where the shell puts the typed words.
func (c *CLI) completed(args []string) []string {
	return append([]string{"--redis", c.URL, "--prefix", c.Prefix}, args...)
}

// Matches checks that a text has one line for each pattern, in this order, and that each line matches its pattern.
func Matches(t *testing.T, text string, patterns ...string) {
	t.Helper()
	if !regexp.MustCompile(`^` + strings.Join(patterns, "\n") + `\n$`).MatchString(text) {
		t.Errorf("not as expected:\n%s", text)
	}
}

// Hostile is a text that attacks a terminal: it clears the screen, sets the title and turns the direction of writing,
// with 7-bit and with 8-bit codes.
const Hostile = "x\x1b[2J\x1b]0;title\x07\r\b\x7f\u009b31m\u202egnp\u2066\u2028\xff\x9b2J"

// Orders returns the places of a text with characters that a terminal obeys or that mislead a reader.
func Orders(text string) (found []string) {
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		if r != '\n' && r != '\t' && (term.IsControl(r) || r == utf8.RuneError && size == 1) {
			found = append(found, text[max(0, i-10):i+size])
		}
	}
	return found
}

// Controls matches control sequences of terminals.
var Controls = regexp.MustCompile(`\x1b\[[?0-9;]*[a-zA-Z]`)
