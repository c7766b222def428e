package bench

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// wire counts the requests that a client sends, as they leave for the network. The server's own counters cannot tell: they count
// what scripts call, too.
type wire struct{ requests atomic.Int64 }

// count is an option of bridge.Dial.
func (w *wire) count(opt *rueidis.ClientOption) {
	dial := opt.DialCtxFn
	if dial == nil {
		dial = func(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
			if t != nil {
				return (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", addr)
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, t)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: conn, wire: w}, nil
	}
}

// countedConn reads along: a request is an array of strings, `*2\r\n$3\r\nGET\r\n…`.
type countedConn struct {
	net.Conn
	wire *wire
	line []byte // begun, not ended
	skip int    // bytes of a string, with its end
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.read(p)
	return c.Conn.Write(p)
}

func (c *countedConn) read(p []byte) {
	for len(p) > 0 {
		if n := min(c.skip, len(p)); n > 0 {
			c.skip, p = c.skip-n, p[n:]
			continue
		}
		b := p[0]
		if p = p[1:]; b != '\n' {
			c.line = append(c.line, b)
			continue
		}
		switch line := c.line; {
		case len(line) > 2 && line[0] == '*':
			c.wire.requests.Add(1)
		case len(line) > 2 && line[0] == '$':
			n, _ := strconv.Atoi(string(line[1 : len(line)-1]))
			c.skip = n + len("\r\n")
		}
		c.line = c.line[:0]
	}
}
