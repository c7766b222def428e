package inspect

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"

	"github.com/redis/rueidis"
)

// newFilterClient returns a client for XRANGE and XREVRANGE alone, with connections of its own, whose replies hold of each page
// only the entries in which some ID, field or value is the message's ID, and behind them one more as a summary: see summaryOf.
// Whoever looks for one message in a hundred thousand entries has them all sent, and taking each reply apart into a dozen strings
// per entry takes twice as long as the server needs to send them. Here the others are dropped while they are still bytes of the
// connection.
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
	summaryField = "\x1fsummary" // no entry of a queue is called so
)

// filterConn is the reading side of a connection. It passes every reply on as it came, but for lists of entries.
type filterConn struct {
	net.Conn
	in     []byte // the beginning of a reply, and perhaps what follows
	out    []byte // to be handed on
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
			s.filter = entryFilter{id: s.filter.id, open: s.filter.open[:0], keep: s.filter.keep[:0]}
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
		return nil // an error that came with it comes again
	}
	return err
}

// pass hands a whole reply on, or what is to be kept of it.
func (s *filterConn) pass(reply []byte) {
	s.out = s.out[:0]
	if !s.filter.entries || s.filter.count == 0 {
		s.out = append(s.out, reply...)
		return
	}
	s.out = append(strconv.AppendInt(append(s.out, '*'), int64(len(s.filter.keep)+1), 10), "\r\n"...)
	for _, k := range s.filter.keep {
		s.out = append(s.out, reply[k.from:k.to]...)
	}
	first, last := reply[s.filter.first.from:s.filter.first.to], reply[s.filter.last.from:s.filter.last.to]
	s.out = append(s.out, "*2\r\n"...)
	s.out = append(s.out, last...)
	s.out = append(s.out, "*4\r\n"...)
	s.out = appendBulk(s.out, summaryField)
	s.out = appendBulk(s.out, strconv.Itoa(s.filter.count)+" "+strconv.Itoa(len(reply)))
	s.out = appendBulk(s.out, "first")
	s.out = append(s.out, first...)
}

func appendBulk(b []byte, text string) []byte {
	b = append(strconv.AppendInt(append(b, '$'), int64(len(text)), 10), "\r\n"...)
	return append(append(b, text...), "\r\n"...)
}

// summaryOf returns what the last entry of a page says that came through a filterConn: how many entries it had, their bytes, the
// ID of the first one and of the last one.
func summaryOf(entry rueidis.XRangeSlice) (p streamPage, ok bool) {
	if len(entry.FieldValues) != 2 || entry.FieldValues[0].Field != summaryField {
		return streamPage{}, false
	}
	entries, size, _ := bytes.Cut([]byte(entry.FieldValues[0].Value), []byte(" "))
	var failed, failedToo error
	p.entries, failed = strconv.Atoi(string(entries))
	p.bytes, failedToo = strconv.Atoi(string(size))
	p.first, p.last = entry.FieldValues[1].Value, entry.ID
	return p, failed == nil && failedToo == nil
}

type byteRange struct{ from, to int }

// entryFilter is a walk through one reply, which may arrive in parts: it goes on where it stopped.
type entryFilter struct {
	id []byte

	at      int   // looked at so far
	open    []int // values to come, of each aggregate that is open, outermost first
	entries bool  // it is a list, and everything in it so far an entry: a list of an ID and a list
	count   int   // entries

	entry       byteRange // that is open
	hit         bool
	first, last byteRange // IDs, as they are on the wire
	keep        []byteRange
}

var errNotRESP = errors.New("the server's reply does not parse")

// reply returns the length of the reply at the beginning of b, or 0 while b does not hold all of it.
func (s *entryFilter) reply(b []byte) (int, error) {
	for s.at < len(b) {
		if len(s.open) == 3 {
			s.fields(b)
			if s.at == len(b) {
				return 0, nil
			}
		}
		end := bytes.IndexByte(b[s.at:], '\n')
		if end < 0 {
			if len(b)-s.at > 64<<10 {
				return 0, errNotRESP
			}
			return 0, nil
		}
		from, body := s.at, s.at+end+1
		if end < 2 {
			return 0, errNotRESP
		}
		switch kind := b[from]; kind {
		case '$', '!', '=':
			n, err := bulkLength(b[from+1 : body-2])
			if err != nil {
				return 0, err
			}
			if n >= 0 {
				if len(b) < body+n+2 {
					return 0, nil
				}
				if n == len(s.id) && bytes.Equal(b[body:body+n], s.id) {
					s.hit = true
				}
				body += n + 2
			}
			s.value(kind, from, body)
		case '*', '~', '>', '%', '|':
			n, err := bulkLength(b[from+1 : body-2])
			if err != nil {
				return 0, err
			}
			if kind == '%' || kind == '|' {
				n *= 2
			}
			s.aggregate(kind, n, from, body)
			if kind == '|' { // an attribute is not a value: what it belongs to comes behind it
				s.open[len(s.open)-1]++
			}
		default:
			s.value(kind, from, body)
		}
		s.at = body
		if len(s.open) == 0 {
			return s.at, nil
		}
	}
	return 0, nil
}

// fields goes through the fields of an entry as far as they are there and plain, and leaves the last one: nearly everything that
// comes through here is one.
func (s *entryFilter) fields(b []byte) {
	left := s.open[2]
	for at := s.at; left > 1 && at < len(b) && b[at] == '$'; left-- {
		n := 0
		for at++; at < len(b) && b[at]-'0' <= 9 && n < 1<<40; at++ {
			n = 10*n + int(b[at]-'0')
		}
		body := at + 2
		if body+n+2 > len(b) || b[at] != '\r' {
			break
		}
		if n == len(s.id) && bytes.Equal(b[body:body+n], s.id) {
			s.hit = true
		}
		at = body + n + 2
		s.at = at
	}
	s.open[2] = left
}

func bulkLength(b []byte) (int, error) {
	if len(b) == 2 && b[0] == '-' && b[1] == '1' {
		return -1, nil
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' || n > 1<<40 {
			return 0, errNotRESP
		}
		n = 10*n + int(c-'0')
	}
	if len(b) == 0 {
		return 0, errNotRESP
	}
	return n, nil
}

// value notes one value that has nothing below it.
func (s *entryFilter) value(kind byte, from, to int) {
	switch len(s.open) {
	case 1:
		s.entries = false
	case 2:
		if s.open[1] == 2 { // an entry's ID
			s.entries = s.entries && kind == '$'
			if s.last = (byteRange{from, to}); s.count == 0 {
				s.first = s.last
			}
		} else {
			s.entries = false
		}
	}
	s.ended(to)
}

// aggregate notes the beginning of one.
func (s *entryFilter) aggregate(kind byte, n, from, to int) {
	switch len(s.open) {
	case 0:
		s.entries = kind == '*' && n >= 0
	case 1:
		s.entries = s.entries && kind == '*' && n == 2
		s.entry.from, s.hit = from, false
	case 2:
		s.entries = s.entries && kind == '*' && s.open[1] == 1
	}
	if n > 0 {
		s.open = append(s.open, n)
		return
	}
	if kind == '|' {
		s.open = append(s.open, 0)
	} else {
		s.ended(to)
	}
}

// ended notes that a value is complete, and with it perhaps those around it.
func (s *entryFilter) ended(to int) {
	for len(s.open) > 0 {
		if s.open[len(s.open)-1]--; s.open[len(s.open)-1] > 0 {
			return
		}
		if len(s.open) == 2 {
			s.count++
			if s.hit {
				s.keep = append(s.keep, byteRange{s.entry.from, to})
			}
		}
		s.open = s.open[:len(s.open)-1]
	}
}
