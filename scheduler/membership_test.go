package scheduler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

func TestAssignmentIsStableAndEven(t *testing.T) {
	t.Parallel()
	live := []string{"01A", "01B", "01C", "01D"}
	count, moved := map[string]int{}, 0
	const queues = 10_000
	for i := range queues {
		queue := fmt.Sprint("queue-", i)
		before := owner(live, queue)
		count[before]++
		if after := owner(live[:3], queue); after != before {
			moved++
			if before != "01D" {
				t.Fatalf("%s moved from %s to %s although its owner lives", queue, before, after)
			}
		}
	}
	for bridge, n := range count {
		if n < queues/4*8/10 || n > queues/4*12/10 {
			t.Errorf("%s owns %d of %d queues", bridge, n, queues)
		}
	}
	if moved != count["01D"] {
		t.Errorf("%d queues moved, the bridge that left had %d", moved, count["01D"])
	}
	// Schedulers of different versions must agree on the hash. Otherwise two of them own a queue, or none does.
	if got := weight("01A", "emails"); got != wantWeight {
		t.Errorf("the hash has changed: %#x", got)
	}
	if owner(nil, "emails") != "" {
		t.Error("with nobody alive nobody owns a queue")
	}
}

// With thousands of bridges a heartbeat returns only some of them, and the caller. The owner among all of them must
// find itself the owner in any such subset; otherwise the queue has no owner.
func TestOwnerKnowsItselfInAnySubset(t *testing.T) {
	t.Parallel()
	live := make([]string, 1500)
	for i := range live {
		live[i] = fmt.Sprintf("%04d", i)
	}
	for i := range 200 {
		queue := fmt.Sprint("queue-", i)
		all := owner(live, queue)
		for from := 0; from < len(live); from += 300 {
			if got := owner(append(slices.Clone(live[from:from+300]), all), queue); got != all {
				t.Fatalf("%s: %s is the owner among all bridges, but names %s in a subset", queue, all, got)
			}
		}
	}
}

// wantWeight is the hash of the bridge "01A" and the queue "emails", as all versions compute it.
const wantWeight = uint64(0x2730b153faa3a8b6)

// A bridge ends its pauses after a heartbeat that came too late (here 3 s after the last), and after a step of the
// server's clock. A step is a difference of more than clockJump (1 s) that slow calls do not explain.
func TestGapOrJump(t *testing.T) {
	t.Parallel()
	at, server := time.Now(), time.UnixMilli(1_900_000_000_000)
	for name, c := range map[string]struct {
		after time.Duration // from the first heartbeat until the second is sent
		took  time.Duration // from sending until the reply
		clock time.Duration // advance of the server's clock between the two
		want  bool
	}{
		"as usual":                            {time.Second, time.Millisecond, time.Second, false},
		"a slow reply":                        {time.Second, 2 * time.Second, 2900 * time.Millisecond, false},
		"a slow request":                      {time.Second, 1900 * time.Millisecond, 1100 * time.Millisecond, false},
		"a gap":                               {3100 * time.Millisecond, time.Millisecond, 3100 * time.Millisecond, true},
		"clock forward by more than a second": {time.Second, time.Millisecond, 2100 * time.Millisecond, true},
		"clock back by more than a second":    {time.Second, time.Millisecond, -100 * time.Millisecond, true},
		"clock forward by less than a second": {time.Second, time.Millisecond, 1900 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			first := heartbeat{sent: at, received: at, server: server}
			sent := at.Add(c.after)
			if got := first.hasGapOrJumpTo(heartbeat{sent, sent.Add(c.took), server.Add(c.clock)},
				3*time.Second); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// A heartbeat removes the members whose heartbeats are too old or too far in the future. A bridge whose clock is a
// second fast stays.
func TestMembershipIgnoresHeartbeatsOfTheFuture(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, prefix, fast := s.Client(t), s.Prefix(t), "01ZZZZZZZZZZZZZZZZZZZZZZZZ web-1 7 v1"
		now := queuetest.Now(t, c).UnixMilli()
		queuetest.Do(t, c, "ZADD", lua.NewGlobals(prefix).Bridges, fmt.Sprint(now+3_600_000), "future", fmt.Sprint(now-10_000),
			"past", fmt.Sprint(now+1000), fast, "-inf", "odd")
		var live []string
		m := newMembership(Config{Client: c, Prefix: prefix}.withDefaults(), func(_ context.Context, l []string, fresh bool) {
			if !fresh {
				t.Error("the first heartbeat is not reported as the first")
			}
			live = l
		})
		if err := m.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprint([]string{m.id, fast}); fmt.Sprint(live) != want {
			t.Errorf("live: %v, want %s", live, want)
		}
		m.leave() // "fast" is left: the heartbeat has removed the others
		if n := queuetest.Integer(t, c, "ZCARD", lua.NewGlobals(prefix).Bridges); n != 1 {
			t.Errorf("%d members after leaving", n)
		}
	})
}

// A member of the heartbeat set that is not the name of a bridge must own nothing. Otherwise the hash would give it
// queues, and nobody would drain these queues before they are overdue. A bridge of an older version has a bare ULID as
// its name, and a later version may add fields. Both own queues, by the whole name.
func TestForeignMembersOwnNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, prefix := s.Client(t), s.Prefix(t)
		now, key := fmt.Sprint(queuetest.Now(t, c).UnixMilli()), lua.NewGlobals(prefix).Bridges
		older, later := "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW db-1 9 v9.9.9 blue"
		queuetest.Do(t, c, "ZADD", key, now, older, now, later, now, "me", now, "", now, "\x1b[2J", now, "\xff", now,
			strings.Repeat("x", 1<<20), now, strings.ToLower(older))
		var live []string
		m := newMembership(Config{Client: c, Prefix: prefix}.withDefaults(), func(_ context.Context, l []string,
			_ bool) {
			live = l
		})
		if err := m.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []string{older, later, m.id}; !slices.Equal(live, want) {
			t.Errorf("live: %.300q, want %q", live, want)
		}
		if host, err := os.Hostname(); err == nil {
			if self, ok := lua.ParseIdentity(m.id); !ok || self.Host != lua.NewIdentity(host, 1, "v").Host ||
				self.PID != os.Getpid() {
				t.Errorf("this is %+v", self)
			}
		}
	})
}

// A bridge that cannot heartbeat keeps its queues, and logs that once.
func TestOutageKeepsTheAssignment(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	b := start(t, proxy, prefix, func(c *Config) {
		c.HeartbeatInterval, c.HeartbeatTimeout = 100*time.Millisecond,
			300*time.Millisecond
	})
	p := newProducer(t, c, prefix)
	if _, err := p.Schedule(t.Context(), queue, producer.Message{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) { return b.owns(queue) && b.healthy(), "not assigned" })

	waitForBeats := func(n int) {
		t.Helper()
		for range n {
			last := b.Status().LastHeartbeat
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				return b.Status().LastHeartbeat.After(last),
					"no heartbeat"
			})
		}
	}
	// Only the blocked connection breaks: the heartbeat finds the same server.
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		for client := range strings.Lines(queuetest.Text(t, c, "CLIENT", "LIST")) {
			if strings.Contains(client, "cmd=xread") {
				id, _, _ := strings.Cut(strings.TrimPrefix(client, "id="), " ")
				_ = c.Do(t.Context(), c.B().Arbitrary("CLIENT", "KILL", "ID", id).Build()).Error() // it may have gone
			}
		}
		return b.log.count("wait for tokens is failing") > 0, "the broken connection is not logged"
	})
	waitForBeats(2)

	proxy.Refuse(true)
	proxy.CutAll()
	redistest.Eventually(t, 5*time.Second, func() (bool, string) { return !b.healthy(), "still healthy" })
	if !b.owns(queue) {
		t.Error("the queue was given up in an outage")
	}
	// The bridge's loop keeps turning, so it does not look hung, and a supervisor does not restart it.
	for range 2 {
		turned := b.Status().Turned
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return b.Status().Turned.After(turned),
				"no turn without a server"
		})
	}
	proxy.Refuse(false)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return b.healthy(), "not back" })
	waitForBeats(1)
	if failing, works := b.log.count("heartbeat is failing"), b.log.count("heartbeat works again"); failing != 1 || works != 1 {
		t.Errorf("%d and %d lines about one outage:\n%s", failing, works, b.log)
	}
	if n := b.log.count("drain is failing"); n != 0 {
		t.Errorf("%d lines about the queue: the heartbeat's is enough", n)
	}
}

func TestRunStartsWithoutAServer(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	p := newProducer(t, c, prefix)
	if _, err := p.Schedule(t.Context(), queue, producer.Message{Delay: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	b := start(t, proxy, prefix, func(c *Config) {
		proxy.Refuse(true) // the clients exist, but the server has gone
		proxy.CutAll()
	})
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return b.log.count("heartbeat is failing") == 1,
			"the failing heartbeat is not logged"
	})
	if b.healthy() {
		t.Error("healthy without a server")
	}
	proxy.Refuse(false)
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		return len(queuetest.Entries(t, c, prefix, queue)) == 1,
			"not delivered"
	})
	b.stop()
	if err := b.Run(t.Context()); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a second Run: %v", err)
	}
}

// Each bridge has a rank of its own for a queue, and the owner has rank 0.
func TestRanksAreDistinct(t *testing.T) {
	var live []string
	for i := range 20 {
		live = append(live, fmt.Sprint("bridge-", i))
	}
	seen := map[int]bool{}
	for _, bridge := range live {
		n := rank(live, "q", bridge)
		if seen[n] || n == 0 && bridge != owner(live, "q") {
			t.Errorf("%s has rank %d", bridge, n)
		}
		seen[n] = true
	}
	redistest.Want(t, "ranks", len(seen), 20)
}
