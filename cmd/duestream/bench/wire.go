package bench

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// wire counts the requests that a client sends to the network. The server's own counters include the commands inside
// scripts.
type wire struct{ requests atomic.Int64 }

// count is an option for bridge.Dial.
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

// countedConn counts the requests in the bytes written. A request is an array of strings, `*2\r\n$3\r\nGET\r\n…`.
type countedConn struct {
	net.Conn
	wire *wire
	line []byte // the unfinished line
	skip int    // bytes left of a string and its line end
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
		p = p[1:]
		if b != '\n' {
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
