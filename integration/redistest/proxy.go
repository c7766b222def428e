package redistest

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Proxy forwards TCP connections to a server and breaks them on demand. All methods are safe for concurrent use. The
// proxy and all its connections are closed when the test ends.
type Proxy struct {
	t      testing.TB
	server *Server
	addr   string
	wg     sync.WaitGroup // accept loops and links

	mu       sync.Mutex
	listener net.Listener // nil while it refuses connections
	closed   bool
	links    map[*link]struct{}
	stalled  bool
	arms     map[fate]arm  // requests that are still to be cut, by the way to cut them
	cuts     map[fate]int  // number of connections that were cut, by the way of the cut
	delay    time.Duration // of every piece of traffic, in each direction
}

// arm says which requests are still to be cut in one way: the next n with these commands.
type arm struct {
	n        int
	commands []string // in upper case; empty means all commands
}

// Proxy starts a proxy in front of the server. It works for plain TCP, and not for TLS or Unix sockets.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	if s.opt.TLSConfig != nil || s.opt.DialCtxFn != nil {
		t.Fatalf("redistest: the proxy speaks plain TCP only, %s does not", s.Name())
	}
	p := &Proxy{t: t, server: s, links: map[*link]struct{}{}, arms: map[fate]arm{}, cuts: map[fate]int{}}
	for p.listener == nil {
		port, err := freePort()
		if err != nil {
			t.Fatalf("redistest: proxy: %v", err)
		}
		// If another process has taken the port meanwhile, try the next one.
		p.listener, _ = net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	}
	p.addr = p.listener.Addr().String()
	p.wg.Add(1)
	go p.accept(p.listener)
	t.Cleanup(p.close)
	return p
}

// Addr returns the host:port to connect to.
func (p *Proxy) Addr() string { return p.addr }

// URL returns the server's URL with the proxy's address.
func (p *Proxy) URL() string { return strings.Replace(p.server.url, p.server.Addr(), p.addr, 1) }

// Client returns a client as [Server.Client] does, with all its connections through the proxy.
func (p *Proxy) Client(t testing.TB, opts ...func(*rueidis.ClientOption)) rueidis.Client {
	t.Helper()
	opt := p.server.opt
	opt.InitAddress = []string{p.addr}
	return newClient(t, opt, opts)
}

// CutAll closes every connection that is open now. New ones are accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// CutAfterForward makes the outcome of the next n requests unknown to the client. Each is forwarded completely and
// executed by the server. Its reply is dropped, and then the connection is closed. With names, only requests of those
// commands count ("EVALSHA"). Without names, every request counts, including those with which a client opens a
// connection. Earlier requests on the same connection are executed too, and their replies may be lost. A call
// replaces the rest of an earlier call; n = 0 disarms.
func (p *Proxy) CutAfterForward(n int, commands ...string) { p.arm(cut, n, commands) }

// CutBeforeForward makes the next n requests fail for certain. The connection is closed and the request is dropped,
// so that the server never sees it. The names are as for CutAfterForward. A call replaces the rest of an earlier
// call; n = 0 disarms.
func (p *Proxy) CutBeforeForward(n int, commands ...string) { p.arm(drop, n, commands) }

// CutMidReply forwards the next n requests, passes on the first half of what the server sends next, and closes the
// connection. The client gets part of a reply to this request or to an earlier one on the same connection. The names
// are as for CutAfterForward. A call replaces the rest of an earlier call; n = 0 disarms.
func (p *Proxy) CutMidReply(n int, commands ...string) { p.arm(tear, n, commands) }

func (p *Proxy) arm(f fate, n int, commands []string) {
	upper := make([]string, len(commands))
	for i, c := range commands {
		upper[i] = strings.ToUpper(c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arms[f] = arm{n, upper}
}

// Cuts returns how many connections CutAfterForward has closed. A connection counts after the server has executed the
// request.
func (p *Proxy) Cuts() int { return p.cutsOf(cut) }

// Drops returns how many connections CutBeforeForward has closed.
func (p *Proxy) Drops() int { return p.cutsOf(drop) }

// Tears returns how many connections CutMidReply has closed.
func (p *Proxy) Tears() int { return p.cutsOf(tear) }

func (p *Proxy) cutsOf(f fate) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts[f]
}

// Slow delays every piece of traffic by d in each direction, as a slow network does. A piece waits for the one before
// it, so the throughput sinks too. Zero ends the delay.
func (p *Proxy) Slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Refuse makes the proxy's port refuse new connections, or accept them again. Open connections stay open; CutAll closes
// them.
func (p *Proxy) Refuse(refuse bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case refuse && p.listener != nil:
		p.listener.Close()
		p.listener = nil
	case !refuse && p.listener == nil && !p.closed:
		l, err := net.Listen("tcp", p.addr)
		if err != nil {
			p.t.Errorf("redistest: proxy: listen again: %v", err)
			return
		}
		p.listener = l
		p.wg.Add(1)
		go p.accept(l)
	}
}

// Stall makes the proxy drop every byte in both directions, while connections stay open and new ones are accepted, as
// in a dead network. Stall(false) closes the connections that lost bytes and lets the others continue.
func (p *Proxy) Stall(stall bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = stall
	if stall {
		return
	}
	for l := range p.links {
		if l.lost.Load() {
			l.close()
		}
	}
}

// Connections returns how many connections are open.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (p *Proxy) accept(l net.Listener) {
	defer p.wg.Done()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			p.serve(c.(*net.TCPConn))
		}()
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// fate says what happens to a request.
type fate int

const (
	pass    fate = iota // forwarded
	swallow             // dropped, and the connection stays open
	cut                 // forwarded; its reply is dropped, and the connection is closed
	drop                // dropped, and the connection is closed
	tear                // forwarded; half of what the server sends next is passed on, and the connection is closed
)

// judge decides what happens to a request with this command, and counts it against the arm that it matches.
func (p *Proxy) judge(command string) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled {
		return swallow
	}
	for _, f := range []fate{drop, cut, tear} {
		if a := p.arms[f]; a.n > 0 && (len(a.commands) == 0 || slices.Contains(a.commands, command)) {
			p.arms[f] = arm{a.n - 1, a.commands}
			return f
		}
	}
	return pass
}

func (p *Proxy) isStalled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stalled
}

func (p *Proxy) addCut(f fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts[f]++
}

// linger waits for the delay that Slow has set, or until the link is closed.
func (p *Proxy) linger(l *link) {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay == 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.closed:
	}
}
