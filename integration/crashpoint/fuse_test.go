package crashpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// mode is what happens at a crash point.
type mode string

const (
	unsent  mode = "unsent"  // the connection breaks before the request has left
	unheard mode = "unheard" // the server executes the request, and the connection breaks before the reply arrives
	dies    mode = "dies"    // the process ends before the request, and another takes its place
	halfway mode = "halfway" // the connection breaks before the last command of a request, which the server never sees
	stops   mode = "stops"   // as unheard, and the process is told to stop at that moment
)

// point is the n-th request of a kind; with an empty kind all requests count. The zero point is never reached.
type point struct {
	kind string
	n    int
}

// fuse is what the clients of one component share: it counts their requests, and blows at a point. A component whose fuse blew in
// mode dies reaches the server no more: its connections are closed and it can make no new ones.
type fuse struct {
	mode  mode
	at    point
	first point         // a reply that is lost in any case, before the counting begins
	blow  chan struct{} // closed when it has blown; in mode stops once the server has executed the request

	mu     sync.Mutex
	counts map[string]int
	armed  bool
	hit    bool
	cut    bool // dead
	conns  map[net.Conn]bool

	cold map[string]bool // scripts that a server that knew none was asked for; nil: it knows all
}

func newFuse(m mode, at, first point) *fuse {
	return &fuse{mode: m, at: at, first: first, armed: first.n == 0, blow: make(chan struct{}), counts: map[string]int{},
		conns: map[net.Conn]bool{}}
}

func (f *fuse) blown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hit
}

// judge counts a request, and says what becomes of it; "" = it passes.
func (f *fuse) judge(kind string) mode {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return unsent
	}
	f.counts[kind]++
	f.counts[""]++
	if !f.armed {
		if f.counts[f.first.kind] == f.first.n {
			f.armed = true
			clear(f.counts)
			return unheard
		}
		return ""
	}
	if f.at.n == 0 || f.counts[f.at.kind] != f.at.n || f.at.kind != "" && f.at.kind != kind || f.hit {
		return ""
	}
	f.hit = true
	if f.mode == stops {
		return stops
	}
	close(f.blow)
	if f.mode != dies {
		return f.mode
	}
	f.cut = true
	for c := range f.conns {
		c.Close()
	}
	return unsent
}

// kinds returns how many requests of each kind were counted.
func (f *fuse) kinds() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// chill asks for a script that the server does not know, the first time a cold component asks for one.
func (f *fuse) chill(c rueidis.Client, cmd rueidis.Completed) rueidis.Completed {
	words := cmd.Commands()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cold == nil || words[0] != "EVALSHA" || f.cold[words[1]] {
		return cmd
	}
	f.cold[words[1]] = true
	return c.B().Arbitrary("EVALSHA", shaOf("")).Args(words[2:]...).Build()
}

// dial is for the client library.
func (f *fuse) dial(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		c.Close()
		return nil, errors.New("this process is dead")
	}
	f.conns[c] = true
	return c, nil
}

// redis connects a component of its own to the server, through the fuse.
func (f *fuse) redis(t testing.TB, server *redistest.Server) *bridge.Redis {
	t.Helper()
	r, err := bridge.Dial(context.Background(), server.URL(), func(o *rueidis.ClientOption) { o.DialCtxFn = f.dial })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &bridge.Redis{Client: &fused{r.Client, f}, Blocking: &fused{r.Blocking, f}}
}

// fused is a client with a fuse.
type fused struct {
	rueidis.Client
	f *fuse
}

var errBroken = rueidis.NewErrorResult(io.EOF) // as the client library reports a connection that was closed

func (c *fused) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	cmd = c.f.chill(c.Client, cmd)
	switch c.f.judge(kindOf(cmd)) {
	case unsent, halfway:
		return errBroken
	case unheard:
		c.Client.Do(ctx, cmd)
		return errBroken
	case stops:
		c.Client.Do(ctx, cmd)
		close(c.f.blow)
		return errBroken
	}
	return c.Client.Do(ctx, cmd)
}

func (c *fused) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	kinds := make([]string, len(multi))
	broken := make([]rueidis.RedisResult, len(multi))
	for i, cmd := range multi {
		multi[i] = c.f.chill(c.Client, cmd)
		kinds[i], broken[i] = kindOf(cmd), errBroken
	}
	switch c.f.judge(strings.Join(slices.Compact(kinds), " + ")) {
	case unsent:
		return broken
	case halfway:
		c.Client.DoMulti(ctx, multi[:len(multi)-1]...)
		return broken
	case unheard:
		c.Client.DoMulti(ctx, multi...)
		return broken
	case stops:
		c.Client.DoMulti(ctx, multi...)
		close(c.f.blow)
		return broken
	}
	return c.Client.DoMulti(ctx, multi...)
}

func (c *fused) Nodes() map[string]rueidis.Client {
	nodes := maps.Clone(c.Client.Nodes())
	for addr, node := range nodes {
		nodes[addr] = &fused{node, c.f}
	}
	return nodes
}

// The parts of duestream use none of these; a new use must not go past the fuse unnoticed.
func (c *fused) Dedicated(func(rueidis.DedicatedClient) error) error { panic("not behind the fuse") }
func (c *fused) Dedicate() (rueidis.DedicatedClient, func())         { panic("not behind the fuse") }
func (c *fused) DoCache(context.Context, rueidis.Cacheable, time.Duration) rueidis.RedisResult {
	panic("not behind the fuse")
}

// kindOf names a request: a script by its own name, the sending of its text apart.
func kindOf(cmd rueidis.Completed) string {
	words := cmd.Commands()
	switch words[0] {
	case "EVALSHA":
		return cmp.Or(scriptOf()[words[1]], "unknown script")
	case "EVAL":
		return "text of " + scriptOf()[shaOf(words[1])]
	}
	return words[0]
}

var scriptOf = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	for _, name := range scriptNames() {
		names[shaOf(lua.Source(name))] = name
	}
	return names
})
