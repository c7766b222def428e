package bridge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// sniffTimeout bounds the look at one address.
const sniffTimeout = time.Second

// wrongScheme says that a server speaks TLS and the URL does not, or the other way round: the client library sees a connection that breaks, or
// one that never answers. Nil: no address shows that. The error is an ErrUntrusted.
func wrongScheme(ctx context.Context, opt rueidis.ClientOption) error {
	if opt.DialCtxFn != nil { // a socket, or a way of the caller's own
		return nil
	}
	for _, addr := range opt.InitAddress {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sniffTimeout)
		defer cancel()
		switch {
		case opt.TLSConfig != nil && speaksPlainly(ctx, addr):
			return fmt.Errorf("%w: %s does not speak TLS: use redis:// instead of rediss://, or the port for TLS", lua.ErrUntrusted, addr)
		case opt.TLSConfig == nil && speaksTLS(ctx, addr):
			return fmt.Errorf("%w: %s speaks TLS, and the URL does not: use rediss:// instead of redis://", lua.ErrUntrusted, addr)
		}
	}
	return nil
}

// speaksPlainly reports whether a server answers to words that are no TLS. Any answer does: it may ask for a password.
func speaksPlainly(ctx context.Context, addr string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	first := make([]byte, 1)
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	_, err = conn.Read(first)
	return err == nil && (first[0] == '+' || first[0] == '-')
}

// speaksTLS reports whether a server answers to a TLS handshake, whomever it trusts.
func speaksTLS(ctx context.Context, addr string) bool {
	config := &tls.Config{InsecureSkipVerify: true} // nothing is said on this connection
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", addr)
	if err == nil {
		conn.Close()
		return true
	}
	var alert tls.AlertError
	return errors.As(err, &alert)
}
