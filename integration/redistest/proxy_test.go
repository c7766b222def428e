package redistest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

func proxied(t *testing.T) (c, direct rueidis.Client, p *Proxy) {
	s := Own(t)
	p = s.Proxy(t)
	c = p.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.DisableRetry = true, true })
	return c, s.Client(t), p
}

func counter(t *testing.T, c rueidis.Client, key string) int64 {
	t.Helper()
	n, err := c.Do(ctxFor(t, 5*time.Second), c.B().Get().Key(key).Build()).AsInt64()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatal(err)
	}
	return n
}

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

func TestProxyCutsALargeRequestOnlyWhenItIsWhole(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t)
	ctx := ctxFor(t, 20*time.Second)
	p.CutAfterForward(1, "APPEND")
	if err := c.Do(ctx, c.B().Append().Key("big").Value(strings.Repeat("x", 3<<20)).Build()).Error(); err == nil {
		t.Fatal("the reply was not lost")
	}
	n, err := direct.Do(ctx, direct.B().Strlen().Key("big").Build()).AsInt64()
	if err != nil || n != 3<<20 {
		t.Fatalf("%d bytes, %v", n, err)
	}
}

func TestProxyCutsWithManyRequestsInFlight(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t)
	ctx := ctxFor(t, 30*time.Second)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ok := int64(0)
	p.CutAfterForward(5, "INCR")
	for range 200 {
		wg.Go(func() {
			if c.Do(ctx, c.B().Incr().Key("n").Build()).Error() == nil {
				mu.Lock()
				defer mu.Unlock()
				ok++
			}
		})
	}
	wg.Wait()
	if n := counter(t, direct, "n"); n < ok || n > 200 {
		t.Fatalf("%d confirmed, %d executed, 200 sent", ok, n)
	}
	if ok == 200 || p.Cuts() == 0 {
		t.Fatalf("%d confirmed, %d cuts", ok, p.Cuts())
	}
}

func TestProxyRefusesAndAcceptsAgain(t *testing.T) {
	t.Parallel()
	c, _, p := proxied(t)
	ctx := ctxFor(t, 20*time.Second)
	ping := func() error { return c.Do(ctx, c.B().Ping().Build()).Error() }
	p.Refuse(true)
	if err := ping(); err != nil {
		t.Fatalf("an open connection was refused: %v", err)
	}
	p.CutAll()
	Eventually(t, 5*time.Second, func() (bool, string) {
		err := ping()
		return err != nil && strings.Contains(err.Error(), "refused"), "ping: " + errText(err)
	})
	p.Refuse(false)
	Eventually(t, 5*time.Second, func() (bool, string) { err := ping(); return err == nil, errText(err) })
}

func TestProxyStallsUntilItIsTold(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t)
	incr := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return c.Do(ctx, c.B().Incr().Key("n").Build()).Error()
	}
	p.Stall(true)
	if err := incr(100 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a stalled path said %v", err)
	}
	if n := counter(t, direct, "n"); n != 0 {
		t.Fatalf("%d requests came through", n)
	}
	p.Stall(false)
	Eventually(t, 10*time.Second, func() (bool, string) { err := incr(time.Second); return err == nil, errText(err) })
}

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

func TestProxySlowsTrafficDown(t *testing.T) {
	t.Parallel()
	c, _, p := proxied(t)
	ctx := ctxFor(t, 20*time.Second)
	ping := func() time.Duration {
		begin := time.Now()
		if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	ping()
	const delay = 150 * time.Millisecond
	p.Slow(delay)
	if took := ping(); took < 2*delay {
		t.Errorf("slowed by %s each way, and there and back took %s", delay, took)
	}
	p.Slow(0)
	Eventually(t, 10*time.Second, func() (bool, string) { took := ping(); return took < delay, took.String() })
}

func TestProxyClosesWithItsServer(t *testing.T) {
	t.Parallel()
	s := Own(t)
	p := s.Proxy(t)
	c := p.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	if err := c.Do(ctxFor(t, 5*time.Second), c.B().Ping().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if p.Connections() == 0 {
		t.Fatal("the client does not go through the proxy")
	}
	s.Kill()
	Eventually(t, 5*time.Second, func() (bool, string) { return p.Connections() == 0, "connections stay open" })
}

func errText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}
