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
	wireBytes = 512 << 20 // longest string, as in Redis; most items of a reply
	wireItems = 1 << 20   // most arguments of a request
)

var errNotRESP = errors.New("this is not the protocol of Redis")

// value is a reply of a server, in RESP2 or RESP3. A map is a list in which names and values alternate.
type value struct {
	kind byte // the first byte on the wire
	null bool
	text string
	list []value
}

func (v value) isError() bool { return v.kind == '-' || v.kind == '!' }

// number returns the reply as an integer, or 0 if it is none.
func (v value) number() int {
	n, _ := strconv.Atoi(v.text)
	return n
}

// strings returns the items of a list as strings.
func (v value) strings() (all []string) {
	for _, item := range v.list {
		all = append(all, item.text)
	}
	return all
}

// wire reads one direction of a connection, and keeps the bytes that it read.
type wire struct {
	from *bufio.Reader
	raw  bytes.Buffer
}

func (w *wire) line() (string, error) {
	text, err := w.from.ReadString('\n')
	w.raw.WriteString(text)
	return strings.TrimRight(text, "\r\n"), err
}

// bytes reads a string of n bytes and its line end.
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

// request reads a command with its arguments. An empty line gives none.
func (w *wire) request() ([]string, error) {
	line, err := w.line()
	if err != nil {
		return nil, err
	}
	count, isArray := strings.CutPrefix(line, "*")
	if !isArray {
		return strings.Fields(line), nil // an inline command
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

// reply reads a reply of a server.
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
	v.text = "" // it was the length
	if n < 0 {
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
	if v.kind == '|' { // attributes; the reply itself follows
		return w.reply()
	}
	return v, nil
}
