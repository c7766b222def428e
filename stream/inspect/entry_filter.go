package inspect

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/rueidis"
)

// newFilterClient returns a client for XRANGE and XREVRANGE only, with connections of its own. Its replies hold only
// those entries of a page in which an ID, field or value is the message's ID, and a last entry with the summary of the
// page: see summaryOf. To find one message among a hundred thousand entries, the server sends them all. Parsing a reply
// into a dozen strings per entry takes twice as long as sending it. So these connections drop the other entries before
// the client library parses them.
func newFilterClient(options rueidis.ClientOption, id string) (rueidis.Client, error) {
	dial := options.DialCtxFn
	if dial == nil {
		dial = dialPlainly
	}
	options.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, dialer, config)
		if err != nil {
			return nil, err
		}
		return &filterConn{Conn: conn, filter: entryFilter{id: []byte(id)}}, nil
	}
	options.ReadBufferEachConn, options.WriteBufferEachConn, options.RingScaleEachConn = 64<<10, 4<<10, 6
	options.PipelineMultiplex = -1
	return rueidis.NewClient(options)
}

func dialPlainly(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config != nil {
		return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", addr)
	}
	return dialer.DialContext(ctx, "tcp", addr)
}

const (
	filterBuffer = 128 << 10
	summaryField = "\x1fsummary" // no field of a queue has this name
)

// filterConn is the reading side of a connection. It passes every reply on unchanged, except lists of entries.
type filterConn struct {
	net.Conn
	in     []byte // the beginning of a reply, perhaps with more behind it
	out    []byte // ready to be read
	filter entryFilter
}

func (s *filterConn) Read(p []byte) (int, error) {
	for len(s.out) == 0 {
		done, err := s.filter.reply(s.in)
		switch {
		case err != nil:
			return 0, err
		case done > 0:
			s.pass(s.in[:done])
			s.in = s.in[:copy(s.in, s.in[done:])]
			s.filter = entryFilter{id: s.filter.id, keep: s.filter.keep[:0]}
		default:
			if err := s.fill(); err != nil {
				return 0, err
			}
		}
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// fill reads more of the reply.
func (s *filterConn) fill() error {
	if cap(s.in)-len(s.in) < filterBuffer/4 {
		s.in = append(make([]byte, 0, max(filterBuffer, 2*cap(s.in))), s.in...)
	}
	n, err := s.Conn.Read(s.in[len(s.in):cap(s.in)])
	s.in = s.in[:len(s.in)+n]
	if n > 0 {
		return nil // the next Read returns the error again
	}
	return err
}

// pass outputs a reply: whole, or of a list the kept entries and the summary.
func (s *filterConn) pass(reply []byte) {
	s.out = s.out[:0]
	if s.filter.other || s.filter.count == 0 {
		s.out = append(s.out, reply...)
		return
	}
	s.out = fmt.Appendf(s.out, "*%d\r\n", len(s.filter.keep)+1)
	for _, k := range s.filter.keep {
		s.out = append(s.out, reply[k.from:k.to]...)
	}
	first, last := reply[s.filter.first.from:s.filter.first.to], reply[s.filter.last.from:s.filter.last.to]
	size := fmt.Sprint(s.filter.count, " ", len(reply))
	s.out = fmt.Appendf(s.out, "*2\r\n%s*4\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n$5\r\nfirst\r\n%s", last, len(summaryField), summaryField,
		len(size), size, first)
}

// summaryOf parses the last entry of a filterConn's page: the number of entries that the page had, their bytes, and the
// IDs of the first and the last one.
func summaryOf(entry rueidis.XRangeSlice) (p streamPage, ok bool) {
	if len(entry.FieldValues) != 2 || entry.FieldValues[0].Field != summaryField {
		return streamPage{}, false
	}
	n, _ := fmt.Sscan(entry.FieldValues[0].Value, &p.entries, &p.bytes)
	p.first, p.last = entry.FieldValues[1].Value, entry.ID
	return p, n == 2
}

type byteRange struct{ from, to int }

// entryFilter scans one reply, which may arrive in parts: it continues at the entry where it stopped.
type entryFilter struct {
	id []byte

	at, left    int       // start of the next entry, and entries left; at = 0: nothing read yet
	other       bool      // the reply is not a list of entries (pairs of an ID and a list)
	count       int       // entries
	first, last byteRange // their IDs, as on the wire
	keep        []byteRange
}

var errNotRESP = errors.New("the server's reply does not parse")

// reply returns the length of the reply at the beginning of b, or 0 while b is incomplete.
func (s *entryFilter) reply(b []byte) (int, error) {
	if s.at == 0 && !s.other {
		kind, n, body, err := replyHeader(b, 0)
		if err != nil || body == 0 {
			return 0, err
		}
		s.at, s.left, s.other = body, n, kind != '*'
	}
	for s.left > 0 && !s.other {
		if more, err := s.entry(b); !more || err != nil {
			return 0, err
		}
	}
	if !s.other {
		return s.at, nil
	}
	end, _, err := s.value(b, 0)
	return end, err
}

// entry scans the next entry. It returns false while b is incomplete.
func (s *entryFilter) entry(b []byte) (whole bool, err error) {
	kind, n, id, err := replyHeader(b, s.at)
	if err != nil || id == 0 {
		return false, err
	}
	isPair := kind == '*' && n == 2
	kind, n, body, err := replyHeader(b, id)
	if err != nil || body == 0 {
		return false, err
	}
	fields := body + n + 2
	switch {
	case !isPair || kind != '$' || n < 0 || fields < len(b) && b[fields] != '*':
		s.other = true
		return true, nil
	case fields >= len(b):
		return false, nil
	}
	end, hit, err := s.value(b, s.at)
	if err != nil || end == 0 {
		return false, err
	}
	s.last = byteRange{id, fields}
	if s.count == 0 {
		s.first = s.last
	}
	s.count++
	if hit {
		s.keep = append(s.keep, byteRange{s.at, end})
	}
	s.at, s.left = end, s.left-1
	return true, nil
}

// value returns the end of the value at a position, or 0 while b is incomplete, and whether the value contains the
// message's ID.
func (s *entryFilter) value(b []byte, at int) (end int, hit bool, err error) {
	for todo := 1; todo > 0; todo-- {
		kind, n, body, err := replyHeader(b, at)
		if err != nil || body == 0 {
			return 0, false, err
		}
		switch at = body; kind {
		case '$', '!', '=':
			if n < 0 {
				continue
			}
			if at += n + 2; at > len(b) {
				return 0, false, nil
			}
			hit = hit || n == len(s.id) && bytes.Equal(b[body:body+n], s.id)
		case '*', '~', '>':
			todo += max(0, n)
		case '%':
			todo += 2 * n
		case '|': // an attribute is not a value: its value follows
			todo += 2*n + 1
		}
	}
	return at, hit, nil
}

// replyHeader parses the first line of a value: its kind, and its length or number of elements, -1 for null. body is
// the end of the line, 0 while b is incomplete.
func replyHeader(b []byte, at int) (kind byte, n, body int, err error) {
	if at == len(b) {
		return 0, 0, 0, nil
	}
	kind = b[at]
	hasLength := strings.IndexByte("$!=*~>%|", kind) >= 0
	end := at + 1
	for ; hasLength && end < len(b) && b[end]-'0' <= 9 && n < 1<<40; end++ {
		n = 10*n + int(b[end]-'0')
	}
	if end > at+1 && end+1 < len(b) && b[end] == '\r' { // the usual case
		return kind, n, end + 2, nil
	}
	end = at + bytes.IndexByte(b[at:], '\n')
	switch {
	case end < at && len(b)-at <= 64<<10:
		return 0, 0, 0, nil
	case end < at+2, hasLength && string(b[at+1:end-1]) != "-1":
		return 0, 0, 0, errNotRESP
	}
	return kind, -1, end + 1, nil
}
