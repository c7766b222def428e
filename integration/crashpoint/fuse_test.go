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

// mode is the fault at a crash point.
type mode string

const (
	unsent  mode = "unsent"  // the connection breaks before the request is sent
	unheard mode = "unheard" // the connection breaks after the server has executed the request, before the reply
	dies    mode = "dies"    // the process dies before the request, and another one replaces it
	halfway mode = "halfway" // the connection breaks before the last command of a request, which the server never gets
	stops   mode = "stops"   // as unheard, and the process is told to stop when the connection breaks
)

// point is the n-th request of a kind. An empty kind counts all requests. The zero point is never reached.
type point struct {
	kind string
	n    int
}

// fuse is shared by the clients of one component: it counts their requests, and blows at a point. In mode dies, a
// component with a blown fuse never reaches the server again: its connections are closed, and it can open no new
// ones.
type fuse struct {
	mode  mode
	at    point
	first point         // a request whose reply is always lost, before the counting begins; zero = none
	blow  chan struct{} // closed when it has blown; in mode stops, after the server executed the request

	mu     sync.Mutex
	counts map[string]int
	armed  bool // the counting has begun
	hit    bool // the point was reached
	cut    bool // the component is dead
	conns  map[net.Conn]bool

	cold map[string]bool // not nil: the server seems to know no script; has the hashes that were asked for already
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

// judge counts a request, and returns its fault. "" means that the request is sent.
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

// kinds returns the number of requests of each kind.
func (f *fuse) kinds() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// chill replaces the first call of each script of a cold component by a call of an unknown script, so that the
// component has to send the source. It returns other commands as they are.
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

// dial is the dial function of the client library.
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

// redis returns a connection for one component, through the fuse.
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

var errBroken = rueidis.NewErrorResult(io.EOF) // as the client library reports a closed connection

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

// No part of duestream uses these. A new use must not bypass the fuse unnoticed.
func (c *fused) Dedicated(func(rueidis.DedicatedClient) error) error { panic("not behind the fuse") }
func (c *fused) Dedicate() (rueidis.DedicatedClient, func())         { panic("not behind the fuse") }
func (c *fused) DoCache(context.Context, rueidis.Cacheable, time.Duration) rueidis.RedisResult {
	panic("not behind the fuse")
}

// kindOf returns the kind of a request: a script's name, or "text of" and the name when its source is sent.
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
