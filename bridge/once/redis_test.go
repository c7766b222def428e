package once

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// claims is a Redis under test, with the keys of queue q.
type claims struct {
	*testing.T
	*Redis
	client rueidis.Client
	keys   lua.Keys
}

func newClaims(t *testing.T, s *redistest.Server, change func(cfg *RedisConfig)) *claims {
	t.Helper()
	client := s.Client(t)
	cfg := RedisConfig{Redis: &bridge.Redis{Client: client}, Prefix: s.Prefix(t), Keep: time.Hour}
	if change != nil {
		change(&cfg)
	}
	return &claims{t, redistest.Must(NewRedis(cfg)), client, lua.NewKeys(cfg.Prefix, "q")}
}

func (c *claims) do(words ...string) rueidis.RedisMessage {
	c.Helper()
	return redistest.Must(c.client.Do(c.Context(), c.client.B().Arbitrary(words...).Build()).ToMessage())
}

// deliver delivers a message, with an effect that succeeds. It returns whether the effect was called, and its token.
func (c *claims) deliver(m bridge.Message) (called bool, token int64) {
	c.Helper()
	called, err := c.Do(c.Context(), &m, func(_ context.Context, t int64) error {
		token = t
		return nil
	})
	if err != nil {
		c.Fatal(err)
	}
	return called, token
}

// waits delivers a message whose effect another attempt holds.
func (c *claims) waits(m bridge.Message) {
	c.Helper()
	called, err := c.Do(c.Context(), &m, func(context.Context, int64) error { return nil })
	outcome := bridge.OutcomeOf(err)
	if called || outcome.Action != bridge.ActionSnooze || outcome.Delay <= 0 || outcome.Delay > c.cfg.Hold {
		c.Errorf("called %v, %v", called, err)
	}
}

var message = bridge.Message{ID: "a", Queue: "q", Group: "g"}

// Of all deliveries of a message to a group, one has the effect, also if the message comes again in another partition
// after growth. Other groups, queues, prefixes and keys have effects of their own.
func TestRedisAnEffectHappensOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := newClaims(t, s, func(cfg *RedisConfig) {
			cfg.Key = func(m *bridge.Message) string { return m.ID + m.Headers["version"] }
		})
		for _, d := range []struct {
			m      bridge.Message
			called bool
		}{
			{message, true}, {message, false},
			{bridge.Message{ID: "a", Queue: "q", Group: "g", Attempt: 2, Partition: 3, EntryID: "9-9", For: "g"}, false},
			{bridge.Message{ID: "a", Queue: "q", Group: "h"}, true}, {bridge.Message{ID: "a", Queue: "r", Group: "g"}, true},
			{bridge.Message{ID: "a", Queue: "q", Group: "g", Headers: map[string]string{"version": "2"}}, true},
			{bridge.Message{ID: "b:c", Queue: "q", Group: "a"}, true}, {bridge.Message{ID: "c", Queue: "q", Group: "a:b"}, true},
		} {
			called, token := c.deliver(d.m)
			redistest.Want(t, d.m.Queue+"/"+d.m.Group+"/"+d.m.ID, called, d.called)
			redistest.Want(t, "token", token > 0, d.called)
		}
		other := newClaims(t, s, nil)
		called, _ := other.deliver(message)
		redistest.Want(t, "another prefix", called, true)
	})
}

// While one attempt holds the claim, the others are snoozed. A holder that fails or panics gives the claim back, and
// its outcome is that of its effect. The next token is higher.
func TestRedisOneHolder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := newClaims(t, s, nil)
		var first int64
		handler := c.Handler(func(_ context.Context, token int64, m *bridge.Message) error {
			first = token
			c.waits(*m)
			return bridge.RetryAfter(time.Hour, errors.New("the bank is closed"))
		})
		outcome := bridge.OutcomeOf(handler(t.Context(), &message))
		redistest.Want(t, "outcome", outcome.Action, bridge.ActionRetry)
		redistest.Want(t, "delay", outcome.Delay, time.Hour)
		func() {
			defer func() { redistest.Want(t, "panic", recover(), any("boom")) }()
			_, _ = c.Do(t.Context(), &message, func(_ context.Context, token int64) error {
				redistest.Want(t, "the token grows", token > first, true)
				first = token
				panic("boom")
			})
		}()
		called, token := c.deliver(message)
		redistest.Want(t, "after the panic", called && token > first, true)
	})
}

// A worker that was paused for longer than its claim gets ErrStale. It cannot record its effect or give back the claim
// of another attempt. Its tokens are lower, so the store of the program can refuse them.
func TestRedisStaleHolder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := newClaims(t, s, nil)
		key := c.keys.Once("g", "a")
		var tokens []int64
		for _, fails := range []error{nil, errors.New("fails")} {
			_, err := c.Do(t.Context(), &message, func(_ context.Context, paused int64) error {
				// The claim ends by the clock of the server. Here the test ends it.
				c.do("SET", key, fmt.Sprint(paused, " 1 paused"))
				next, _, err := lua.Claim(t.Context(), c.client, key, "next", time.Minute, time.Hour)
				tokens = append(tokens, paused, next)
				return errors.Join(err, fails)
			})
			redistest.Want(t, "the error is ErrStale", errors.Is(err, ErrStale), fails == nil)
			c.waits(message) // the next one still holds it
			c.do("DEL", key)
		}
		redistest.Want(t, "the next token is higher", tokens[1] > tokens[0] && tokens[3] > tokens[2], true)
	})
}

// If Redis loses a claim in a failover, the effect is still recorded, and not repeated.
func TestRedisALostClaimIsRecorded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := newClaims(t, s, nil)
		for _, want := range []bool{true, false} {
			called, err := c.Do(t.Context(), &message, func(context.Context, int64) error {
				c.do("DEL", c.keys.Once("g", "a"))
				return nil
			})
			redistest.Want(t, "error", err, nil)
			redistest.Want(t, "called", called, want)
		}
	})
}

// late returns the first reply only after a while, as if the process had been paused.
type late struct {
	rueidis.Client
	wait func()
	once sync.Once
}

func (l *late) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	reply := l.Client.Do(ctx, cmd)
	l.once.Do(l.wait)
	return reply
}

// An attempt that was paused until the end of its claim does not begin its effect.
func TestRedisAPausedAttemptDoesNotBegin(t *testing.T) {
	t.Parallel()
	c := newClaims(t, redistest.Shared(t), nil)
	c.deliver(bridge.Message{ID: "other", Queue: "q", Group: "g"}) // the server knows the script
	untilItEnds := func() {
		redistest.Eventually(t, time.Minute, func() (bool, string) {
			token, _, err := lua.Claim(t.Context(), c.client, c.keys.Once("g", "a"), "next", time.Minute, time.Hour)
			return err == nil && token > 0, "still held"
		})
	}
	paused := &late{Client: c.client, wait: untilItEnds}
	c.cfg.Redis, c.cfg.Hold = &bridge.Redis{Client: paused}, time.Second
	called, err := c.Do(t.Context(), &message, func(context.Context, int64) error { return nil })
	redistest.Want(t, "called", called, false)
	redistest.Want(t, "the error is ErrStale", errors.Is(err, ErrStale), true)
}

// refusing refuses the first call and the third, as a server does during a failover.
type refusing struct {
	rueidis.Client
	calls atomic.Int64
}

func (r *refusing) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if n := r.calls.Add(1); n == 1 || n == 3 {
		return r.Client.Do(ctx, r.B().Eval().Script("return redis.error_reply('CLUSTERDOWN')").Numkeys(0).Build())
	}
	return r.Client.Do(ctx, cmd)
}

// A failover prevents neither a claim nor the record of an effect, and costs no attempt.
func TestRedisAFailover(t *testing.T) {
	t.Parallel()
	c := newClaims(t, redistest.Shared(t), nil)
	c.deliver(bridge.Message{ID: "other", Queue: "q", Group: "g"}) // the server knows the script
	c.cfg.Redis = &bridge.Redis{Client: &refusing{Client: c.client}}
	for _, want := range []bool{true, false} {
		called, _ := c.deliver(message)
		redistest.Want(t, "called", called, want)
	}
}

// The context of an effect ends before its claim does, and tells why.
func TestRedisEffectEndsWithItsClaim(t *testing.T) {
	t.Parallel()
	c := newClaims(t, redistest.Shared(t), func(cfg *RedisConfig) { cfg.Hold = 2 * time.Second })
	_, err := c.Do(t.Context(), &message, func(ctx context.Context, _ int64) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	redistest.Want(t, "cause", errors.Is(err, ErrStale), true)
	called, _ := c.deliver(message)
	redistest.Want(t, "given back", called, true)
}

// dying fails all calls after the first ones, as if the process had died there.
type dying struct {
	rueidis.Client
	left atomic.Int64
}

var errDied = errors.New("the process died")

func (d *dying) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if d.left.Add(-1) < 0 {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return d.Client.Do(ended, cmd)
	}
	return d.Client.Do(ctx, cmd)
}

// A process may die between any two steps. Before the claim, nothing happened. After it, the message waits for the end
// of the claim, and its effect happens then; if it had happened before, it is repeated. After the record, it never
// happens again.
func TestRedisAProcessDiesBetweenTheSteps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := newClaims(t, s, nil)
		c.deliver(bridge.Message{ID: "other", Queue: "q", Group: "g"}) // the server knows the script
		for calls, want := range []struct{ before, after int }{{0, 1}, {1, 2}, {1, 1}} {
			m := message
			m.ID = strings.Repeat("x", calls+1)
			d := &dying{Client: c.client}
			d.left.Store(int64(calls))
			died := redistest.Must(NewRedis(RedisConfig{Redis: &bridge.Redis{Client: d}, Prefix: c.cfg.Prefix,
				Hold: 2 * time.Second}))
			effects := 0
			effect := func(context.Context, int64) error {
				effects++
				return nil
			}
			_, err := died.Do(t.Context(), &m, effect)
			redistest.Want(t, "it died", err != nil, calls < 2)
			redistest.Want(t, "effects before", effects, want.before)
			if calls == 1 {
				c.waits(m)
			}
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				_, err := c.Do(t.Context(), &m, effect)
				return err == nil, "still held"
			})
			redistest.Want(t, "effects after", effects, want.after)
		}
	})
}

// Records expire, and the memory returns. Each change keeps the record for as long again.
func TestRedisRecordsExpire(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := newClaims(t, s, func(cfg *RedisConfig) { cfg.Hold, cfg.Keep = 2*time.Second, 2001*time.Millisecond })
		fails := bridge.Message{ID: "fails", Queue: "q", Group: "g"}
		c.deliver(message)
		if _, err := c.Do(t.Context(), &fails, func(context.Context, int64) error { return errDied }); err == nil {
			t.Error("the effect did not fail")
		}
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			left := c.do("EXISTS", c.keys.Once("g", "a"), c.keys.Once("g", "fails"))
			n, err := left.AsInt64()
			return err == nil && n == 0, "records are left"
		})
		called, _ := c.deliver(message)
		redistest.Want(t, "called after the record is gone", called, true)
	})
}

// A full server still takes claims and records, so its messages can be acknowledged.
func TestRedisOnAFullServer(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := newClaims(t, s, nil)
	s.Do(t, "CONFIG", "SET", "maxmemory", "1")
	t.Cleanup(func() { s.Do(t, "CONFIG", "SET", "maxmemory", "0") })
	_, err := c.Do(t.Context(), &message, func(context.Context, int64) error { return errDied })
	redistest.Want(t, "the handler's error", err, errDied)
	for _, want := range []bool{true, false} {
		called, _ := c.deliver(message)
		redistest.Want(t, "called", called, want)
	}
}

// On a cluster, the record is in the slot of its queue.
func TestRedisOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	c := newClaims(t, nodes.Server(), nil)
	for _, want := range []bool{true, false} {
		called, _ := c.deliver(bridge.Message{ID: "}{x}", Queue: "q", Group: "{g}"})
		redistest.Want(t, "called", called, want)
	}
	redistest.Want(t, "slot", nodes.Slot(c.keys.Once("{g}", "}{x}")), nodes.Slot(c.keys.Due))
}

// serve runs a bridge and a worker of group g and queue q until the test ends. It returns a client.
func (c *claims) serve(s *redistest.Server, mux *bridge.Mux) *bridge.Client {
	c.Helper()
	r := redistest.Must(bridge.Dial(c.Context(), s.URL()))
	c.Cleanup(r.Close)
	client := redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: c.cfg.Prefix}))
	b := redistest.Must(bridge.NewBridge(bridge.Config{Redis: r, Prefix: c.cfg.Prefix}))
	w := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: c.cfg.Prefix, Group: "g", Mux: mux}))
	ctx, stop := context.WithCancel(c.Context())
	ended := make(chan error, 2)
	go func() { ended <- b.Run(ctx) }()
	go func() { ended <- w.Run(ctx) }()
	c.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, <-ended, client.Close()); err != nil {
			c.Error(err)
		}
	})
	return client
}

// handled returns the next message that was handled, as "<ID> <attempt>".
func handled(t *testing.T, from chan string) string {
	t.Helper()
	select {
	case one := <-from:
		return one
	case <-time.After(time.Minute):
		t.Fatal("not handled")
		return ""
	}
}

var charge = bridge.Kind[string]{Name: "charge", Queue: "q"}

// A message whose claim another attempt holds comes again when the claim ends, with the same attempt. The messages
// behind it with the same key wait.
func TestRedisAWaitCostsNoAttempt(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c := newClaims(t, s, nil)
	var deliveries atomic.Int64
	done := make(chan string, 10)
	mux := &bridge.Mux{}
	charge.Handle(mux, func(ctx context.Context, d *bridge.Delivery[string]) error {
		if deliveries.Add(1) == 1 {
			c.claimByADeadAttempt(d.ID)
		}
		_, err := c.Do(ctx, d.Message, func(context.Context, int64) error {
			done <- fmt.Sprint(d.ID, " ", d.Attempt)
			return nil
		})
		return err
	})
	client := c.serve(s, mux)
	for _, id := range []string{"a", "b"} {
		redistest.Must(charge.Schedule(t.Context(), client, "", bridge.WithID(id), bridge.Key("account")))
	}
	for _, want := range []string{"a 1", "b 1"} {
		redistest.Want(t, "handled", handled(t, done), want)
	}
	redistest.Want(t, "deliveries", deliveries.Load(), 3)
}

// claimByADeadAttempt claims the effect of a message for 2 s, and does not record it.
func (c *claims) claimByADeadAttempt(id string) {
	c.Helper()
	token, _, err := lua.Claim(c.Context(), c.client, c.keys.Once("g", id), "dead", 2*time.Second, time.Hour)
	if err != nil || token == 0 {
		c.Fatal(token, err)
	}
}

// Each delivery of a batch has a claim of its own: one waits, and the other is done.
func TestRedisInABatch(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c := newClaims(t, s, nil)
	var isClaimed atomic.Bool
	done := make(chan string, 10)
	mux := &bridge.Mux{}
	charge.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: 100 * time.Millisecond},
		func(ctx context.Context, all []*bridge.Delivery[string]) []error {
			results := make([]error, len(all))
			for i, d := range all {
				if d.ID == "a" && !isClaimed.Swap(true) {
					c.claimByADeadAttempt("a")
				}
				_, results[i] = c.Do(ctx, d.Message, func(context.Context, int64) error {
					done <- fmt.Sprint(d.ID, " ", d.Attempt)
					return nil
				})
			}
			return results
		})
	client := c.serve(s, mux)
	for _, id := range []string{"a", "b"} {
		redistest.Must(charge.Schedule(t.Context(), client, "", bridge.WithID(id)))
	}
	for _, want := range []string{"b 1", "a 1"} {
		redistest.Want(t, "handled", handled(t, done), want)
	}
}

// NewRedis names all faults at once, and Do refuses a key that cannot be recorded.
func TestRedisRefuses(t *testing.T) {
	t.Parallel()
	_, err := NewRedis(RedisConfig{Prefix: "{", Hold: time.Millisecond, Keep: time.Microsecond})
	for _, field := range []string{"prefix", "hold", "keep", "redis"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not in %v", field, err)
		}
	}
	_, err = NewRedis(RedisConfig{Redis: &bridge.Redis{}})
	redistest.Want(t, "without a client", errors.Is(err, bridge.ErrInvalid), true)
	c := newClaims(t, redistest.Shared(t), func(cfg *RedisConfig) {
		cfg.Key = func(m *bridge.Message) string { return m.Headers["key"] }
	})
	for _, key := range []string{"", "a\x00", strings.Repeat("k", 1001)} {
		m := message
		m.Headers = map[string]string{"key": key}
		_, err := c.Do(t.Context(), &m, func(context.Context, int64) error { return nil })
		redistest.Want(t, "key", errors.Is(err, bridge.ErrInvalid), true)
	}
}
