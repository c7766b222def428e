package campaign

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/lmstfy"
)

// gatewayPatience is the time for requests in flight when a gateway is told to stop.
const gatewayPatience = 15 * time.Second

// socketOf returns the socket of a gateway process.
func socketOf(dir, name string) string { return filepath.Join(dir, name+".sock") }

// answer runs a gateway as `duestream gateway` does, on a socket that only its front uses.
func (p part) answer(ctx context.Context, r *bridge.Redis, log *slog.Logger) error {
	store, err := access.Open(access.Config{Client: r.Client, Prefix: p.Prefix, Log: log})
	if err != nil {
		return err
	}
	g, err := gateway.New(gateway.Config{Redis: r, Prefix: p.Prefix, Access: store, Logger: log,
		Durability: bridge.Replicated(p.Replicas)})
	if err != nil {
		return err
	}
	if err := lmstfy.Mount(g); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = g.Run(ctx) })
	socket, err := net.Listen("unix", socketOf(filepath.Dir(p.Ledger), p.Name))
	if err != nil {
		return errors.Join(err, g.Close())
	}
	server := gateway.NewServer(g)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(socket) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		late, cancel := context.WithTimeout(context.Background(), gatewayPatience)
		defer cancel()
		err = server.Shutdown(late)
	}
	return errors.Join(err, g.Close())
}

// tokenForAll creates the token of all clients of gateways. Gateways of the previous release refuse a token with the
// verb inspect.
func tokenForAll(ctx context.Context, r *bridge.Redis) (string, error) {
	verbs := []access.Verb{access.Publish, access.Consume, access.Operate}
	return access.Add(ctx, r.Client, prefix, access.Token{Name: "campaign", Verbs: verbs, Queues: []string{"*"}})
}

// front is the permanent address of a gateway, which its processes share one after another. It cuts connections on
// demand.
type front struct {
	target   func() string // socket of the current process
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	closed bool
	links  map[net.Conn]struct{} // connections of both sides
	tears  int                   // number of replies to cut
}

func newFront(t testing.TB, target func() string) (*front, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{target: target, listener: listener, links: map[net.Conn]struct{}{}}
	f.wg.Go(func() {
		for {
			c, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				f.wg.Go(func() { f.serve(c) })
			}
		}
	})
	t.Cleanup(f.close)
	return f, nil
}

func (f *front) url() string { return "http://" + f.listener.Addr().String() }

func (f *front) serve(client net.Conn) {
	defer client.Close()
	server, err := net.DialTimeout("unix", f.target(), time.Second)
	if err != nil {
		return // no process listens
	}
	defer server.Close()
	if !f.link(client, server) {
		return
	}
	defer f.unlink(client, server)
	f.wg.Go(func() {
		defer server.Close()
		defer client.Close()
		pass(server, client, func(n int) int { return n })
	})
	pass(client, server, f.torn)
}

// pass copies bytes until one side is closed. limit returns how many of n bytes it may copy; if these are fewer than n,
// pass ends.
func pass(to, from net.Conn, limit func(n int) int) {
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		m := limit(n)
		if _, failed := to.Write(piece[:m]); failed != nil || err != nil || m < n {
			return
		}
	}
}

// torn returns how many of n bytes of a reply are passed on.
func (f *front) torn(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n > 0 && f.tears > 0 {
		f.tears--
		return n / 2
	}
	return n
}

// tear makes the front cut the next n replies in the middle.
func (f *front) tear(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tears = n
}

// cut closes all connections at once.
func (f *front) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.links {
		_ = c.Close()
	}
}

func (f *front) link(both ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range both {
		f.links[c] = struct{}{}
	}
	return !f.closed
}

func (f *front) unlink(both ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range both {
		delete(f.links, c)
	}
}

func (f *front) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	_ = f.listener.Close()
	f.cut()
	f.wg.Wait()
}

// openGateways gives each gateway its front, and returns the addresses and the token for clients.
func (c *controller) openGateways(ctx context.Context, r *bridge.Redis) (addresses []string, secret string, err error) {
	for _, s := range c.family.of(roleGateway) {
		f, err := newFront(c.t, func() string { return socketOf(c.cfg.Dir, s.current()) })
		if err != nil {
			return nil, "", err
		}
		s.front = f
		addresses = append(addresses, f.url())
	}
	secret, err = tokenForAll(ctx, r)
	return addresses, secret, err
}

// stalledGateway returns a fault that stalls a gateway for one or two visibility timeouts.
func stalledGateway(kind string, visibility time.Duration, set func(s *slot, stall bool)) card {
	return card{kind, func(a *attacker) ([]string, string, error) {
		s := a.pick(roleGateway)
		set(s, true)
		a.wait(visibility, 2*visibility)
		set(s, false)
		return []string{s.current()}, "", nil
	}}
}

// cutGatewayCard cuts off a gateway from the server. It needs the gateway's proxy.
func cutGatewayCard(visibility time.Duration) card {
	return stalledGateway(faultCutGateway, visibility, func(s *slot, stall bool) { s.proxy.Stall(stall) })
}

// gatewayCards are the faults of gateways that need no proxy.
func gatewayCards(visibility time.Duration) []card {
	return []card{
		stalledGateway(faultStopGateway, visibility, func(s *slot, stall bool) { s.freeze(stall) }),
		{faultTearHTTP, func(a *attacker) ([]string, string, error) {
			s := a.pick(roleGateway)
			s.front.tear(1 + a.random.IntN(5))
			a.wait(500*time.Millisecond, time.Second)
			s.front.tear(0)
			s.front.cut()
			return []string{s.current()}, "", nil
		}},
	}
}
