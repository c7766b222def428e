package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/resp"
)

const rawTimeout = 2 * time.Second

// rawConn is a plain RESP2 connection to one server. It is used where a client library would repeat, redirect or hide
// something: for MONITOR, to wait until a server is ready, and to ask one node of a topology.
type rawConn struct {
	net.Conn
	replies *resp.Reader
}

// serverError is an error reply without the leading dash.
type serverError string

func (e serverError) Error() string { return string(e) }

// dialRaw connects and authenticates within rawTimeout.
func dialRaw(opt rueidis.ClientOption) (*rawConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), rawTimeout)
	defer cancel()
	addr := opt.InitAddress[0]
	var nc net.Conn
	var err error
	switch {
	case opt.DialCtxFn != nil:
		nc, err = opt.DialCtxFn(ctx, addr, &opt.Dialer, opt.TLSConfig)
	case opt.TLSConfig != nil:
		nc, err = (&tls.Dialer{Config: opt.TLSConfig}).DialContext(ctx, "tcp", addr)
	default:
		nc, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	c := &rawConn{Conn: nc, replies: resp.NewReader(nc)}
	if opt.Password != "" {
		args := []string{"AUTH", opt.Password}
		if opt.Username != "" {
			args = []string{"AUTH", opt.Username, opt.Password}
		}
		if _, err := c.call(args...); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// call sends one command and returns its reply as text. It does not support lists.
func (c *rawConn) call(args ...string) (string, error) {
	if err := c.SetDeadline(time.Now().Add(rawTimeout)); err != nil {
		return "", err
	}
	if _, err := c.Write(resp.Command(args...)); err != nil {
		return "", err
	}
	reply, err := c.replies.Reply()
	switch {
	case err != nil:
		return "", err
	case reply.IsError():
		return "", serverError(reply.Text)
	case reply.Null, strings.IndexByte("*~%>", reply.Kind) >= 0:
		return "", fmt.Errorf("reply %q", c.replies.Raw())
	}
	return reply.Text, nil
}

// info returns the fields of an INFO section.
func (c *rawConn) info(section string) (map[string]string, error) {
	text, err := c.call("INFO", section)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[k] = v
		}
	}
	return fields, nil
}

// awaitReady waits until the server answers PING with PONG, which a server that still loads its data does not do. After
// the timeout, or when gone is closed, it returns an error. If pid is positive, the server must have this process ID,
// because another server may have taken the port first.
func awaitReady(opt rueidis.ClientOption, pid int, timeout time.Duration, gone <-chan struct{}) error {
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(opt, pid)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer from %s after %v: %w", opt.InitAddress[0], timeout, err)
		}
		select {
		case <-gone:
			return errors.New("the server ended by itself")
		case <-tick.C:
		}
	}
}

// probe returns nil if a server answers PONG and, if pid is positive, has this process ID.
func probe(opt rueidis.ClientOption, pid int) error {
	c, err := dialRaw(opt)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.call("PING"); err != nil {
		return err
	}
	if pid <= 0 {
		return nil
	}
	f, err := c.info("server")
	if err != nil {
		return err
	}
	if f["process_id"] != strconv.Itoa(pid) {
		return fmt.Errorf("process %s answers instead of %d", f["process_id"], pid)
	}
	return nil
}

// identify fills in product and version. They stay empty if the server forbids INFO.
func (s *Server) identify() error {
	c, err := dialRaw(s.opt)
	if err != nil {
		return err
	}
	defer c.Close()
	f, err := c.info("server")
	if err != nil {
		var se serverError
		if errors.As(err, &se) {
			return nil
		}
		return err
	}
	s.product, s.version = "redis", f["redis_version"]
	if v := f["valkey_version"]; v != "" {
		s.product, s.version = "valkey", v
	}
	return nil
}
