package conformance

import (
	"bufio"
	"context"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// tap is a proxy between one program and the server. Every connection through it belongs to the program or its
// children. It reports each command before the server gets it, and each reply before the program gets it. It can cut
// the network of this program alone.
type tap struct {
	addr   string
	dial   func(context.Context) (net.Conn, error)
	asked  func(*sent)        // called before a command reaches the server
	told   func(*sent, value) // called before its reply reaches the program
	listen net.Listener
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	gone    bool // the network is cut
	serving sync.WaitGroup
	fates   []*fate // fates of further commands
}

// sent is a command of a program.
type sent struct {
	program string
	conn    int // number of the connection, from 1
	at      time.Time
	args    []string // name in upper case, and arguments
	inMulti bool     // queued between MULTI and EXEC
	script  string   // inside this script or function

	reply    value // set when it has come; guarded by the watcher's lock
	answered bool
}

func (s *sent) name() string { return s.args[0] }

// is reports whether the command has this name, in upper case. Two words are a command and its subcommand.
func (s *sent) is(words string) bool {
	name, sub, two := strings.Cut(words, " ")
	return s.args[0] == name && (!two || len(s.args) > 1 && strings.EqualFold(s.args[1], sub))
}

// newTap listens on a port of its own, for one program. For each connection it calls asked and told one at a time;
// connections call them concurrently.
func newTap(dial func(context.Context) (net.Conn, error), asked func(*sent), told func(*sent, value)) (*tap, error) {
	t := &tap{dial: dial, asked: asked, told: told, conns: map[net.Conn]struct{}{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	var err error
	if t.listen, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	t.addr = t.listen.Addr().String()
	t.serving.Go(func() {
		for n := 1; ; n++ {
			conn, err := t.listen.Accept()
			if err != nil {
				return
			}
			t.serving.Go(func() { t.serve(conn, n) })
		}
	})
	return t, nil
}

// away cuts the network or restores it. While it is cut, open connections are closed and new ones reset. The port
// stays in use, so that the program cannot meet another tap there.
func (t *tap) away(away bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = away
	for conn := range t.conns {
		conn.Close()
	}
}

// end closes all connections, and returns when all goroutines of the tap have ended.
func (t *tap) end() {
	t.cancel()
	t.away(true)
	t.listen.Close()
	t.serving.Wait()
}

// hold registers a connection, so that away can close it. It returns false if the network is cut.
func (t *tap) hold(conn net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		conn.Close()
		return false
	}
	t.conns[conn] = struct{}{}
	return true
}

func (t *tap) letGo(conn net.Conn) {
	conn.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, conn)
}

func (t *tap) serve(client net.Conn, number int) {
	defer t.letGo(client)
	if !t.hold(client) {
		return
	}
	server, err := t.dial(t.ctx)
	if err != nil {
		return
	}
	defer t.letGo(server)
	if !t.hold(server) {
		return
	}
	c := &tapped{tap: t, number: number, ended: make(chan struct{})}
	var back sync.WaitGroup
	back.Go(func() {
		c.replies(server, client)
		close(c.ended)
		client.Close()
	})
	c.requests(client, server)
	server.Close()
	back.Wait()
}

// tapped is one connection through a tap.
type tapped struct {
	*tap
	number int
	ended  chan struct{} // closed when the server has sent its last reply

	mu     sync.Mutex
	open   []*sent // commands without a reply yet, in order
	multi  []*sent // commands queued since MULTI
	queued bool    // between MULTI and EXEC
	deaf   bool    // replies can no longer be matched to commands
	fated  fated
}

func (c *tapped) requests(from, to net.Conn) {
	w := &wire{from: bufio.NewReader(from)}
	for {
		args, err := w.request()
		if err != nil {
			return
		}
		if len(args) > 0 {
			args[0] = strings.ToUpper(args[0])
			s := &sent{conn: c.number, at: time.Now(), args: args}
			met := c.meets(s)
			if met == breakBefore {
				return
			}
			c.ask(s)
			if met == breakBehind || met == leaveBehind {
				c.sendAndBreak(to, w.raw.Bytes())
				return
			}
		}
		if _, err := to.Write(w.raw.Bytes()); err != nil {
			return
		}
		w.raw.Reset()
	}
}

func (c *tapped) ask(s *sent) {
	c.mu.Lock()
	switch s.name() {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC", "PSYNC", "CLIENT":
		c.deaf = c.deaf || s.name() != "CLIENT" || s.is("CLIENT REPLY")
	case "MULTI":
		c.queued = true
	case "EXEC", "DISCARD":
		c.queued = false
	default:
		s.inMulti = c.queued
	}
	c.open = append(c.open, s)
	c.mu.Unlock()
	c.asked(s)
}

func (c *tapped) replies(from, to net.Conn) {
	w := &wire{from: bufio.NewReader(from)}
	for {
		v, err := w.reply()
		if err != nil {
			return
		}
		if v.kind != '>' {
			c.tell(v)
		}
		if c.withheld() {
			w.raw.Reset()
			continue
		}
		if _, err := to.Write(w.raw.Bytes()); err != nil {
			return
		}
		w.raw.Reset()
	}
}

// tell matches a reply to its command. The reply of EXEC holds the replies of all queued commands.
func (c *tapped) tell(v value) {
	c.mu.Lock()
	if c.deaf || len(c.open) == 0 {
		c.mu.Unlock()
		return
	}
	s := c.open[0]
	c.open = c.open[1:]
	queued := c.multi
	switch {
	case s.inMulti && !v.isError(): // QUEUED
		c.multi = append(c.multi, s)
		c.mu.Unlock()
		return
	case s.is("EXEC"), s.is("DISCARD"):
		c.multi = nil
	}
	c.mu.Unlock()
	if s.is("EXEC") && len(v.list) == len(queued) {
		for i, q := range queued {
			c.told(q, v.list[i])
		}
	}
	c.told(s, v)
}

// tappable returns the reason why a program cannot be put behind a tap, or "".
func tappable(at string, c rueidis.Client, opt rueidis.ClientOption) string {
	switch {
	case !strings.HasPrefix(at, "redis://"):
		return "the URL is not redis://"
	case c.Mode() == rueidis.ClientModeCluster:
		return "a cluster tells its clients the addresses of its servers"
	case len(opt.InitAddress) != 1 || opt.Sentinel.MasterSet != "":
		return "the URL names no single server"
	case opt.TLSConfig != nil:
		return "the connection is encrypted"
	}
	return ""
}

// withAddress returns a URL with another host and port.
func withAddress(at, addr string) (string, error) {
	u, err := url.Parse(at)
	if err != nil {
		return "", err
	}
	u.Host = addr
	return u.String(), nil
}
