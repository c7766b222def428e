package output

import (
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// Describe prints table rows about a message, its headers and its payload.
func (o *Output) Describe(rows [][]string, headers map[string]string, payload admin.Payload) {
	term.Table(o.Out, append(rows, MapRows("header ", headers)...))
	o.DescribePayload(payload)
}

// DescribePayload prints a payload for people. A nil payload was lost.
func (o *Output) DescribePayload(payload admin.Payload) {
	if payload == nil {
		fmt.Fprintf(o.Out, "\nno payload: it was lost, or could not be kept\n")
		return
	}
	fmt.Fprintf(o.Out, "\npayload (%d bytes):\n%s\n", len(payload), PayloadText(payload, term.IsTerminal(o.Out)))
}

// maxPayloadShown is the largest part of a payload that is printed to a terminal, in bytes.
const maxPayloadShown = 4 << 10

// PayloadText returns a payload as text for people. On a terminal it cuts a long payload, and says how many bytes are
// left out.
func PayloadText(payload []byte, onTerminal bool) string {
	if !onTerminal || len(payload) <= maxPayloadShown {
		return human.Printable(payload)
	}
	cut := maxPayloadShown
	for cut > maxPayloadShown-utf8.UTFMax && !utf8.RuneStart(payload[cut]) {
		cut--
	}
	return fmt.Sprintf("%s\n… and %s more bytes: --raw or --json prints all", human.Printable(payload[:cut]),
		human.Thousands(len(payload)-cut))
}

// PrintRaw prints the bytes of a payload, and nothing else.
func (o *Output) PrintRaw(payload admin.Payload) error {
	if payload == nil {
		return fmt.Errorf("%w: the payload was lost, or could not be kept", admin.ErrNotFound)
	}
	if _, err := term.Unfiltered(o.Out).(io.Writer).Write(payload); err != nil {
		return &LostError{err}
	}
	return nil
}
