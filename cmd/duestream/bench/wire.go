package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/resp"
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

// countedConn counts the requests in the bytes written.
type countedConn struct {
	net.Conn
	wire *wire
	part []byte // the written part of a request whose end is not written yet
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.part = append(c.part, p...)
	requests, whole := resp.NewReader(bytes.NewReader(c.part)), 0
	for {
		if _, err := requests.Command(); err != nil {
			break // the end of the request is not written yet
		}
		whole += len(requests.Raw())
		c.wire.requests.Add(1)
	}
	c.part = append(c.part[:0], c.part[whole:]...)
	return c.Conn.Write(p)
}
