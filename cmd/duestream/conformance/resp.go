package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	wireBytes = 512 << 20 // of one string, as Redis has it
	wireItems = 1 << 20   // of one array
)

var errNotRESP = errors.New("this is not the protocol of Redis")

// value is what a server answers, of RESP2 or RESP3; of a map, names and values take turns.
type value struct {
	kind byte // the first one on the wire
	null bool
	text string
	list []value
}

func (v value) isError() bool { return v.kind == '-' || v.kind == '!' }

// number of a reply that is one; 0 of others.
func (v value) number() int {
	n, _ := strconv.Atoi(v.text)
	return n
}

// strings of a reply that is a list of them.
func (v value) strings() (all []string) {
	for _, item := range v.list {
		all = append(all, item.text)
	}
	return all
}

// wire reads one side of a connection, and keeps the bytes of what it has read.
type wire struct {
	from *bufio.Reader
	raw  bytes.Buffer
}

func (w *wire) line() (string, error) {
	text, err := w.from.ReadString('\n')
	w.raw.WriteString(text)
	return strings.TrimRight(text, "\r\n"), err
}

// bytes reads a string of so many bytes, and its end.
func (w *wire) bytes(n int) (string, error) {
	if n < 0 || n > wireBytes {
		return "", errNotRESP
	}
	begin := w.raw.Len()
	if _, err := io.CopyN(&w.raw, w.from, int64(n)+2); err != nil {
		return "", err
	}
	return string(w.raw.Bytes()[begin : begin+n]), nil
}

// request reads a command and its arguments; none of an empty line.
func (w *wire) request() ([]string, error) {
	line, err := w.line()
	if err != nil {
		return nil, err
	}
	count, isArray := strings.CutPrefix(line, "*")
	if !isArray {
		return strings.Fields(line), nil // as one types it
	}
	n, err := strconv.Atoi(count)
	if err != nil || n > wireItems {
		return nil, errNotRESP
	}
	var args []string
	for range n {
		head, err := w.line()
		if err != nil {
			return nil, err
		}
		size, err := strconv.Atoi(strings.TrimPrefix(head, "$"))
		if err != nil || !strings.HasPrefix(head, "$") {
			return nil, errNotRESP
		}
		arg, err := w.bytes(size)
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
	}
	return args, nil
}

// reply reads what a server answers.
func (w *wire) reply() (v value, err error) {
	line, err := w.line()
	if err != nil {
		return v, err
	}
	if line == "" {
		return v, errNotRESP
	}
	v.kind, v.text = line[0], line[1:]
	switch v.kind {
	case '+', '-', ':', '_', ',', '(', '#':
		v.null = v.kind == '_'
		return v, nil
	}
	n, err := strconv.Atoi(v.text)
	if err != nil || n > wireBytes {
		return v, fmt.Errorf("%w: %q", errNotRESP, line)
	}
	if v.text = ""; n < 0 {
		v.null = true
		return v, nil
	}
	switch v.kind {
	case '$', '=', '!':
		v.text, err = w.bytes(n)
		return v, err
	case '%', '|':
		n *= 2
	case '*', '~', '>':
	default:
		return v, fmt.Errorf("%w: %q", errNotRESP, line)
	}
	for range n {
		item, err := w.reply()
		if err != nil {
			return v, err
		}
		v.list = append(v.list, item)
	}
	if v.kind == '|' { // attributes; what they are about follows
		return w.reply()
	}
	return v, nil
}
