package conformance

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/resp"
)

// tap is a proxy between one program and the server. Every connection through it belongs to the program or its
// children. It reports each command before the server gets it, and each reply before the program gets it. It can cut
// the network of this program alone.
type tap struct {
	addr   string
	dial   func(context.Context) (net.Conn, error)
	listen net.Listener
	ctx    context.Context
	cancel context.CancelFunc

	onCommand func(*sent)             // called before a command reaches the server
	onReply   func(*sent, resp.Value) // called before its reply reaches the program

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	gone    bool // the network is cut
	serving sync.WaitGroup
	faults  []*netFault // network faults whose commands have not come yet
}

// sent is a command of a program.
type sent struct {
	program string
	conn    int // number of the connection, from 1
	at      time.Time
	args    []string // name in upper case, and arguments
	inMulti bool     // queued between MULTI and EXEC

	reply    resp.Value // set when it has come; guarded by the watcher's lock
	answered bool
}

func (s *sent) name() string { return s.args[0] }

// arg returns an argument, from 1, or "".
func (s *sent) arg(i int) string {
	if i < len(s.args) {
		return s.args[i]
	}
	return ""
}

// isScript reports whether the command calls a script or a function.
func (s *sent) isScript() bool {
	return slices.Contains([]string{"EVAL", "EVALSHA", "FCALL"}, s.name())
}

// keys returns the keys of a call of a script or function.
func (s *sent) keys() []string {
	n, err := strconv.Atoi(s.arg(2))
	if err != nil || n < 0 || n > len(s.args)-3 {
		return nil
	}
	return s.args[3 : 3+n]
}

// is reports whether the command has this name, in upper case. Two words are a command and its subcommand.
func (s *sent) is(words string) bool {
	name, sub, two := strings.Cut(words, " ")
	return s.args[0] == name && (!two || len(s.args) > 1 && strings.EqualFold(s.args[1], sub))
}

// newTap listens on a port of its own, for one program. Each connection calls onCommand for one command after another,
// and onReply for one reply after another. All else may be concurrent: a call of onCommand with one of onReply, and the
// calls of several connections.
func newTap(
	dial func(context.Context) (net.Conn, error), onCommand func(*sent), onReply func(*sent, resp.Value),
) (*tap, error) {
	t := &tap{dial: dial, onCommand: onCommand, onReply: onReply, conns: map[net.Conn]struct{}{}}
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

// letGo closes a connection, and forgets it.
func (t *tap) letGo(conn net.Conn) {
	conn.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, conn)
}

// serve connects a program to the server, until one of them closes the connection.
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
	state  faultState
}

// requests forwards commands to the server, after it has reported them and applied network faults.
func (c *tapped) requests(client, server net.Conn) {
	from := resp.NewReader(client)
	for {
		args, err := from.Command()
		if err != nil {
			return
		}
		if len(args) > 0 {
			args[0] = strings.ToUpper(args[0])
			s := &sent{conn: c.number, at: time.Now(), args: args}
			fault := c.faultFor(s)
			if fault == breakBeforeCommand {
				return
			}
			c.ask(s)
			if fault == breakBeforeReply || fault == cutBeforeReply {
				c.sendAndBreak(server, from.Raw())
				return
			}
		}
		if _, err := server.Write(from.Raw()); err != nil {
			return
		}
	}
}

// ask reports a command, and remembers it until its reply comes.
func (c *tapped) ask(s *sent) {
	c.mu.Lock()
	switch s.name() {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC", "PSYNC":
		c.deaf = true
	case "CLIENT":
		if s.is("CLIENT REPLY") {
			c.deaf = true
		}
	case "MULTI":
		c.queued = true
	case "EXEC", "DISCARD":
		c.queued = false
	default:
		s.inMulti = c.queued
	}
	c.open = append(c.open, s)
	c.mu.Unlock()
	c.onCommand(s)
}

// replies forwards replies to the program, after it has reported them and applied network faults.
func (c *tapped) replies(server, client net.Conn) {
	from := resp.NewReader(server)
	for {
		v, err := from.Reply()
		if err != nil {
			return
		}
		if v.Kind != '>' { // a push message is no reply
			c.tell(v)
		}
		if c.withheld() {
			continue
		}
		if _, err := client.Write(from.Raw()); err != nil {
			return
		}
	}
}

// tell matches a reply to its command. The reply of EXEC holds the replies of all queued commands.
func (c *tapped) tell(v resp.Value) {
	c.mu.Lock()
	if c.deaf || len(c.open) == 0 {
		c.mu.Unlock()
		return
	}
	s := c.open[0]
	c.open = c.open[1:]
	queued := c.multi
	switch {
	case s.inMulti && !v.IsError(): // QUEUED
		c.multi = append(c.multi, s)
		c.mu.Unlock()
		return
	case s.is("EXEC"), s.is("DISCARD"):
		c.multi = nil
	}
	c.mu.Unlock()
	if s.is("EXEC") && len(v.List) == len(queued) {
		for i, q := range queued {
			c.onReply(q, v.List[i])
		}
	}
	c.onReply(s, v)
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

// dialServer opens a connection to the only server of the options.
func dialServer(ctx context.Context, opt rueidis.ClientOption) (net.Conn, error) {
	if opt.DialCtxFn != nil {
		return opt.DialCtxFn(ctx, opt.InitAddress[0], &opt.Dialer, opt.TLSConfig)
	}
	return opt.Dialer.DialContext(ctx, "tcp", opt.InitAddress[0])
}
