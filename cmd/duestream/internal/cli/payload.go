package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// ReadPayloadFile returns the payload from a file; "-" is standard input.
func ReadPayloadFile(a *App, name string) ([]byte, error) {
	if name == "-" {
		return readLimited(a.In, "standard input")
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, usage.Errorf("%w", err)
	}
	defer file.Close()
	return readLimited(file, name)
}

// ReadPayload returns the payload from the command line, or from standard input.
func ReadPayload(a *App, args []string) ([]byte, error) {
	if len(args) == 1 && args[0] != "-" {
		return []byte(args[0]), admin.CheckPayload([]byte(args[0]))
	}
	if len(args) == 0 && term.IsTerminal(a.In) {
		return nil, usage.Errorf("no payload: give it as an argument ('' for an empty one), or on standard input")
	}
	payload, err := readLimited(a.In, "standard input")
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
