// Package resp reads and writes the protocol of Redis, in its versions 2 and 3, where a client library would hide the
// bytes.
package resp

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
	maxBytes     = 512 << 20 // longest string, as in Redis; most items of a reply
	maxArguments = 1 << 20   // most arguments of a command
)

// ErrNotRESP says that the bytes are not of the protocol of Redis.
var ErrNotRESP = errors.New("this is not the protocol of Redis")

// Value is a reply of a server. A map is a list in which names and values alternate.
type Value struct {
	Kind byte // the first byte on the wire
	Null bool
	Text string
	List []Value
}

// IsError reports whether the reply is an error. Its message is Text.
func (v Value) IsError() bool { return v.Kind == '-' || v.Kind == '!' }

// Number returns the reply as an integer, or 0 if it is none.
func (v Value) Number() int {
	n, _ := strconv.Atoi(v.Text)
	return n
}

// Command returns a command as the bytes that a client sends.
func Command(args ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// Reader reads one direction of a connection. It is not safe for concurrent use.
type Reader struct {
	from *bufio.Reader
	raw  bytes.Buffer
}

// NewReader returns a Reader of from. The Reader may read further ahead than the caller asked for.
func NewReader(from io.Reader) *Reader { return &Reader{from: bufio.NewReader(from)} }

// Raw returns the bytes of the last command or reply. They are valid until the next call of Command or Reply.
func (r *Reader) Raw() []byte { return r.raw.Bytes() }

// Command reads a command of a client: its name and arguments. An empty line has none.
func (r *Reader) Command() ([]string, error) {
	r.raw.Reset()
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	count, isArray := strings.CutPrefix(line, "*")
	if !isArray {
		return strings.Fields(line), nil // an inline command
	}
	n, err := strconv.Atoi(count)
	if err != nil || n > maxArguments {
		return nil, ErrNotRESP
	}
	var args []string
	for range n {
		head, err := r.line()
		if err != nil {
			return nil, err
		}
		size, err := strconv.Atoi(strings.TrimPrefix(head, "$"))
		if err != nil || !strings.HasPrefix(head, "$") {
			return nil, ErrNotRESP
		}
		arg, err := r.text(size)
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
	}
	return args, nil
}

// Reply reads a reply of a server.
func (r *Reader) Reply() (Value, error) {
	r.raw.Reset()
	return r.value()
}

func (r *Reader) value() (v Value, err error) {
	line, err := r.line()
	if err != nil {
		return v, err
	}
	if line == "" {
		return v, ErrNotRESP
	}
	v.Kind, v.Text = line[0], line[1:]
	switch v.Kind {
	case '+', '-', ':', '_', ',', '(', '#':
		v.Null = v.Kind == '_'
		return v, nil
	}
	n, err := strconv.Atoi(v.Text)
	if err != nil || n > maxBytes {
		return v, fmt.Errorf("%w: %q", ErrNotRESP, line)
	}
	v.Text = "" // it was the length
	if n < 0 {
		v.Null = true
		return v, nil
	}
	switch v.Kind {
	case '$', '=', '!':
		v.Text, err = r.text(n)
		return v, err
	case '%', '|':
		n *= 2
	case '*', '~', '>':
	default:
		return v, fmt.Errorf("%w: %q", ErrNotRESP, line)
	}
	for range n {
		item, err := r.value()
		if err != nil {
			return v, err
		}
		v.List = append(v.List, item)
	}
	if v.Kind == '|' { // attributes; the reply itself follows
		return r.value()
	}
	return v, nil
}

func (r *Reader) line() (string, error) {
	text, err := r.from.ReadString('\n')
	r.raw.WriteString(text)
	return strings.TrimRight(text, "\r\n"), err
}

// text reads a string of n bytes and its line end.
func (r *Reader) text(n int) (string, error) {
	if n < 0 || n > maxBytes {
		return "", ErrNotRESP
	}
	begin := r.raw.Len()
	if _, err := io.CopyN(&r.raw, r.from, int64(n)+2); err != nil {
		return "", err
	}
	return string(r.raw.Bytes()[begin : begin+n]), nil
}
