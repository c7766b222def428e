package redistest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// proxied starts a server behind a proxy. c is a client through the proxy that uses one connection and does not repeat
// requests; direct is a client of the server.
func proxied(t *testing.T) (c, direct rueidis.Client, p *Proxy) {
	s := Own(t)
	p = s.Proxy(t)
	c = p.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.DisableRetry = true, true })
	return c, s.Client(t), p
}

// counter returns the integer at a key, or 0 if there is none.
func counter(t *testing.T, c rueidis.Client, key string) int64 {
	t.Helper()
	n, err := c.Do(ctxFor(t, 5*time.Second), c.B().Get().Key(key).Build()).AsInt64()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatal(err)
	}
	return n
}

// After CutAfterForward, the server has executed each request, also the three whose replies are lost.
func TestProxyCutsAfterTheServerExecuted(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t)
	ctx := ctxFor(t, 20*time.Second)
	p.CutAfterForward(3, "incr")
	failed := int64(0)
	for i := range int64(10) {
		if err := c.Do(ctx, c.B().Incr().Key("n").Build()).Error(); err != nil {
			failed++
		}
		if n := counter(t, direct, "n"); n != i+1 {
			t.Fatalf("the server executed %d of %d", n, i+1)
		}
	}
	if failed != 3 || p.Cuts() != 3 {
		t.Fatalf("%d replies lost, %d cuts", failed, p.Cuts())
	}
}

// After CutBeforeForward, the server has executed exactly the requests that were confirmed.
func TestProxyCutsBeforeTheServerSees(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t)
	ctx := ctxFor(t, 20*time.Second)
	p.CutBeforeForward(3, "incr")
	done := int64(0)
	for range 10 {
		if c.Do(ctx, c.B().Incr().Key("n").Build()).Error() == nil {
			done++
		}
		if n := counter(t, direct, "n"); n != done {
			t.Fatalf("%d confirmed, the server executed %d", done, n)
		}
	}
	if done != 7 || p.Drops() != 3 {
		t.Fatalf("%d done, %d cuts", done, p.Drops())
	}
}

// CutMidReply tears a large reply, and one of a few bytes. The client returns an error for both, although the server
// has executed the requests. Later requests work.
func TestProxyCutsInTheMiddleOfAReply(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t)
	ctx := ctxFor(t, 20*time.Second)
	big := strings.Repeat("x", 3<<20)
	if err := direct.Do(ctx, direct.B().Set().Key("big").Value(big).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	p.CutMidReply(2, "GET", "INCR")
	if s, err := c.Do(ctx, c.B().Get().Key("big").Build()).ToString(); err == nil {
		t.Fatalf("a reply that was cut gave %d bytes", len(s))
	}
	if err := c.Do(ctx, c.B().Incr().Key("n").Build()).Error(); err == nil {
		t.Fatal("half of a small reply was taken for a whole one")
	}
	if n := counter(t, direct, "n"); n != 1 || p.Tears() != 2 {
		t.Fatalf("%d executed, %d cuts", n, p.Tears())
	}
	if s, err := c.Do(ctx, c.B().Get().Key("big").Build()).ToString(); err != nil || s != big {
		t.Fatalf("afterwards: %d bytes, %v", len(s), err)
	}
}
