// Package ndjson reads files with one JSON object per line: lines of any length in bounded memory, and objects
// strictly, so that a user's mistake is reported.
package ndjson

import (
	"bufio"
	"bytes"
	"io"
)

// MaxLine is how long a line may be, in bytes: the largest payload as base64, and room for the rest.
const MaxLine = 24 << 20

// Reader reads lines of any length in bounded memory.
type Reader struct {
	r      *bufio.Reader
	Number int   // number of the last line, from 1
	Max    int   // how long a line may be, in bytes: MaxLine unless changed
	Bytes  int64 // bytes read so far, up to the end of the last line
}

// NewReader returns a reader of the lines of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 64<<10), Max: MaxLine} }

// Next returns the next line without its end; the caller may keep it. A line above Max is skipped, and tooLong is set
// instead.
func (l *Reader) Next() (line []byte, tooLong bool, err error) {
	for {
		part, err := l.r.ReadSlice('\n')
		l.Bytes += int64(len(part))
		if tooLong = tooLong || len(line)+len(part) > l.Max; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && len(line) == 0 && !tooLong:
			return nil, false, io.EOF
		case err != nil && err != io.EOF:
			return nil, false, err
		}
		l.Number++
		return bytes.TrimRight(line, "\r\n"), tooLong, nil
	}
}

// Buffered reports whether Next will return without waiting.
func (l *Reader) Buffered() bool {
	part, _ := l.r.Peek(l.r.Buffered())
	return bytes.IndexByte(part, '\n') >= 0
}
