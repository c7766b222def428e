package main

import (
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// payloadFile returns the payload from a file; "-" is standard input.
func (a *app) payloadFile(name string) ([]byte, error) {
	if name == "-" {
		return readLimited(a.in, "standard input")
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, usage.Errorf("%w", err)
	}
	defer file.Close()
	return readLimited(file, name)
}

// payload returns the payload from the command line, or from standard input.
func (a *app) payload(args []string) ([]byte, error) {
	if len(args) == 1 && args[0] != "-" {
		return []byte(args[0]), admin.CheckPayload([]byte(args[0]))
	}
	if len(args) == 0 && term.IsTerminal(a.in) {
		return nil, usage.Errorf("no payload: give it as an argument ('' for an empty one), or on standard input")
	}
	payload, err := readLimited(a.in, "standard input")
	if err == nil && len(payload) == 0 { // probably an earlier program of the pipe failed
		return nil, usage.Errorf("standard input is empty: give '' for an empty payload")
	}
	return payload, err
}

func readLimited(r io.Reader, name string) ([]byte, error) {
	payload, err := io.ReadAll(io.LimitReader(r, admin.MaxPayloadBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the payload from %s: %w", name, err)
	}
	if len(payload) > admin.MaxPayloadBytes {
		return nil, usage.Errorf("payload from %s: must be at most %d bytes", name, admin.MaxPayloadBytes)
	}
	return payload, nil
}

// describe prints table rows about a message, its headers and its payload.
func (o *printer) describe(rows [][]string, headers map[string]string, payload admin.Payload) {
	term.Table(o.out, append(rows, mapRows("header ", headers)...))
	o.describePayload(payload)
}

// describePayload prints a payload for people. nil means that the payload was lost.
func (o *printer) describePayload(payload admin.Payload) {
	if payload == nil {
		fmt.Fprintf(o.out, "\nno payload: it was lost, or could not be kept\n")
		return
	}
	fmt.Fprintf(o.out, "\npayload (%d bytes):\n%s\n", len(payload), payloadText(payload, term.IsTerminal(o.out)))
}

// payloadShown bounds the bytes of a payload that are printed to a terminal.
const payloadShown = 4 << 10

// payloadText returns a payload as text for people. On a terminal it cuts a long payload, and says how many bytes are
// left out.
func payloadText(payload []byte, onTerminal bool) string {
	if !onTerminal || len(payload) <= payloadShown {
		return human.Printable(payload)
	}
	cut := payloadShown
	for cut > payloadShown-4 && !utf8.RuneStart(payload[cut]) {
		cut--
	}
	return fmt.Sprintf("%s\n… and %s more bytes: --raw or --json prints all", human.Printable(payload[:cut]),
		human.Thousands(len(payload)-cut))
}

// printRaw prints the bytes of a payload, and nothing else.
func (o *printer) printRaw(payload admin.Payload) error {
	if payload == nil {
		return fmt.Errorf("%w: the payload was lost, or could not be kept", admin.ErrNotFound)
	}
	if _, err := term.Unfiltered(o.out).(io.Writer).Write(payload); err != nil {
		return &outputLost{err}
	}
	return nil
}

// rawFlag adds --raw to a command that shows a message. The command must have --json already.
func rawFlag(cmd *cobra.Command, raw *bool) *cobra.Command {
	cmd.Flags().BoolVar(raw, "raw", false, "print the payload as it is, and nothing else")
	cmd.MarkFlagsMutuallyExclusive("raw", "json")
	return cmd
}
