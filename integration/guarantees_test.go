package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// No accepted message is lost (guarantee G1): every message reaches both groups, although a bridge and a worker stop
// and others start later, and every fiftieth call of the handlers of group a fails.
func TestG1NothingAcceptedIsLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := newStack(t, server)
		s.groups("a", "b")
		s.bridge(quick())
		stopBridge := s.bridge(quick())
		var calls atomic.Int64
		flaky := func(context.Context, *bridge.Message) error {
			if calls.Add(1)%50 == 0 {
				return errors.New("every fiftieth fails")
			}
			return nil
		}
		s.worker("a", 20, flaky)
		_, stopWorker := s.worker("a", 20, flaky)
		s.worker("b", 20, nil)
		s.schedule(1000, "early-", spreadOver(0))
		s.schedule(2000, "m-", spreadOver(3*time.Second))
		stopBridge()
		stopWorker()
		s.worker("a", 20, flaky)
		s.bridge(quick())
		s.schedule(1000, "late-", spreadOver(time.Second))
		s.awaitSettled(30*time.Second, "a", "b")
	})
}

// The result of Cancel is definite (guarantee G1): a cancelled message is never delivered, and a message whose Cancel
// returned ErrNotScheduled is delivered.
func TestG1CancelAnswersDefinitely(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := newStack(t, server)
		s.groups("g")
		s.bridge(quick())
		s.worker("g", 50, nil)
		const n = 1000
		batch := make([]bridge.NewMessage, n)
		for i := range batch {
			batch[i] = bridge.NewMessage{ID: fmt.Sprint("c", i), Delay: spreadOver(800 * time.Millisecond)(i)}
		}
		s.send(batch)
		var cancelled atomic.Int64
		var group sync.WaitGroup
		for part := range 4 {
			group.Go(func() {
				for i := part; i < n; i += 4 {
					switch err := s.client.Cancel(context.Background(), s.queue, batch[i].ID); {
					case err == nil:
						s.ledger.NotExpected(batch[i].ID)
						cancelled.Add(1)
					case !errors.Is(err, bridge.ErrNotScheduled):
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		s.awaitSettled(20*time.Second, "g")
		if c := cancelled.Load(); c == 0 {
			t.Errorf("no cancellation came in time: this run proves nothing")
		}
	})
}

// No message is delivered before it is due by the server's clock (guarantee G2): messages with a relative time,
// messages with an absolute time, and messages whose due time has a fraction of a millisecond, as another client may
// write it.
func TestG2NeverEarly(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := newStack(t, server)
		s.groups("g")
		s.bridge(quick())
		s.worker("g", 100, nil)
		s.schedule(1500, "relative-", spreadOver(1500*time.Millisecond))
		var batch []bridge.NewMessage
		for i := range 500 {
			batch = append(batch, bridge.NewMessage{ID: fmt.Sprint("absolute-", i),
				At: time.Now().Add(time.Duration(i*3) * time.Millisecond)})
		}
		s.send(batch)
		for i := range 200 {
			due := time.Now().Add(time.Duration(i*7) * time.Millisecond).UnixMilli()
			id := fmt.Sprint("fraction-", i)
			s.raw("ZADD", s.keys().Due, fmt.Sprintf("%d.001", due), id)
			s.ledger.Sent(id, due+1) // not due before the next whole millisecond
		}
		s.awaitSettled(20*time.Second, "g")
	})
}

// A delivery has one owner (guarantee G3). In each round, an acknowledgement, a retry and a reclaim of the same entries
// race. Exactly one of the three settles an entry, so a message never has two deliveries of the same attempt: in round
// n, each message that is left is in attempt n.
func TestG3OneOwnerOfADelivery(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := newStack(t, server)
		s.groups("g")
		k := s.keys()
		const n = 200
		items := make([]lua.Item, n)
		for i := range items {
			items[i] = lua.Item{ID: fmt.Sprint("m", i), When: lua.After(0), Dedup: lua.Refuse}
		}
		ctx, c := context.Background(), s.redis.Client
		receipts, err := lua.Enqueue(ctx, c, k, lua.Token{}, items, lua.Durability{})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range receipts {
			s.ledger.Sent(items[i].ID, r.Due.UnixMilli())
		}
		for round := 1; ; round++ {
			drainUntilIdle(t, s)
			read, err := c.Do(ctx, c.B().Xreadgroup().Group("g",
				"one").Count(n).Streams().Key(k.Stream).Id(">").Build()).AsXReadSlices()
			entries := read[k.Stream]
			if err != nil || len(entries) == 0 {
				break
			}
			settled := raceForEntries(t, s, round, entries)
			if settled != len(entries) {
				t.Fatalf("round %d: %d entries were settled %d times", round, len(entries), settled)
			}
			for _, e := range entries {
				m := lua.ParseEntry(e.ID, e.FieldValues)
				if m.Attempt != round {
					t.Fatalf("%s: attempt %d in round %d: two chains", m.ID, m.Attempt, round)
				}
				s.ledger.Delivered("g", m.ID, lua.EntryTime(e.ID).UnixMilli(), m.Due.UnixMilli())
			}
		}
		s.awaitSettled(5*time.Second, "g")
	})
}

// drainUntilIdle drains until the schedule is empty.
func drainUntilIdle(t *testing.T, s *stack) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		d, err := lua.Drain(context.Background(), s.redis.Client, s.keys(), 500, 1<<20)
		return err == nil && d.Wait < 0, fmt.Sprint(d, err)
	})
}

// raceForEntries acknowledges, retries and reclaims the same entries concurrently, and returns how often an entry was
// settled: as often as there are entries, if each has one owner.
func raceForEntries(t *testing.T, s *stack, round int, entries []entry) int {
	attempts := lua.Attempts{Max: 3, Delays: []time.Duration{time.Millisecond}}
	held := make([]lua.Held, len(entries))
	failures := make([]lua.Failure, len(entries))
	for i, e := range entries {
		held[i] = lua.Held{Entry: e.ID}
		failures[i] = lua.Failure{Held: held[i], Action: lua.ActionRetry, Delay: -1, Reason: lua.ReasonMaxAttempts,
			Error: "raced"}
	}
	var settled atomic.Int64
	var racers sync.WaitGroup
	ctx, c, k := context.Background(), s.redis.Client, s.keys()
	racers.Go(func() {
		for i := range held {
			won, err := lua.Ack(ctx, c, k, "g", held[i:i+1])
			if err != nil {
				t.Error(err)
			} else if won[0] {
				settled.Add(1)
			}
		}
	})
	racers.Go(func() {
		for i := len(failures) - 1; i >= 0; i-- {
			outcome, err := lua.Retry(ctx, c, k, "g", attempts, failures[i:i+1])
			if err != nil {
				t.Error(err)
			} else if outcome[0] > 0 {
				settled.Add(1)
			}
		}
	})
	racers.Go(func() {
		for range len(entries) {
			got, err := lua.Reclaim(ctx, c, k, lua.ReclaimArgs{Group: "g", Attempts: attempts, Limit: 3, MaxBytes: 1 << 20})
			if err != nil {
				t.Error(err)
			}
			settled.Add(int64(got.Retried + got.Dead))
		}
	})
	racers.Wait()
	return int(settled.Load())
}

// Groups are independent (guarantee G4). Two of three groups always fail. The third gets each message exactly once, and
// each failing group gets exactly one dead letter for each message. A retry is an entry for the failing group alone, so
// each message makes one entry, and one more for each retry of a group.
func TestG4GroupsAreIndependent(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := newStack(t, server)
		const n, attempts = 100, 5
		policy := quick()
		policy.MaxAttempts, policy.RetryMin, policy.RetryMax = attempts, 5*time.Millisecond, 20*time.Millisecond
		s.groups("fine", "bad", "worse")
		s.bridge(policy)
		var fine atomic.Int64
		s.worker("fine", 20, func(context.Context, *bridge.Message) error { fine.Add(1); return nil })
		s.worker("bad", 20, func(context.Context, *bridge.Message) error { return errors.New("bad luck") })
		s.worker("worse", 20, func(context.Context, *bridge.Message) error { return errors.New("worse luck") })
		s.schedule(n, "m", spreadOver(0))
		redistest.Eventually(t, 30*time.Second, func() (bool, string) {
			dead := s.number("XLEN", s.keys().Dead)
			return dead == 2*n, fmt.Sprint(dead, " dead letters")
		})
		s.awaitSettled(20*time.Second, "fine", "bad", "worse")
		if fine.Load() != n {
			t.Errorf("the group that never fails was called %d times for %d messages", fine.Load(), n)
		}
		letters, err := s.raw("XRANGE", s.keys().Dead, "-", "+").AsXRange()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, l := range letters {
			f := l.FieldValues
			seen[f["id"]+" "+f["group"]]++
			if f["reason"] != lua.ReasonMaxAttempts || f["error"] != f["group"]+" luck" || f["attempt"] != fmt.Sprint(attempts) {
				t.Fatalf("dead letter %v", f)
			}
		}
		for i := range n {
			for _, group := range []string{"bad", "worse"} {
				if id := fmt.Sprintf("m%06d %s", i, group); seen[id] != 1 {
					t.Errorf("%s: %d dead letters", id, seen[id])
				}
			}
		}
		added := entriesEverAdded(t, s)
		if most := int64(n * (1 + 2*(attempts-1))); added > most {
			t.Errorf("%d entries were added for %d messages; one chain per failing group makes %d", added, n, most)
		}
		t.Logf("entries added: %d for %d messages, 3 groups, 2 failing, %d attempts", added, n, attempts)
	})
}

// entriesEverAdded returns how many entries the queue's stream has ever had.
func entriesEverAdded(t *testing.T, s *stack) int64 {
	info, err := s.raw("XINFO", "STREAM", s.keys().Stream).AsMap()
	if err != nil {
		t.Fatal(err)
	}
	field := info["entries-added"]
	added, err := field.AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return added
}

// Nothing is dropped silently (guarantee G5). A message that has malformed metadata or is expired becomes exactly one
// dead letter; a malformed one keeps its payload and metadata byte for byte. All other messages are delivered.
func TestG5NothingIsDroppedSilently(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := newStack(t, server)
		k := s.keys()
		s.groups("g")
		malformed := map[string]string{ // by message ID: its metadata
			"null": `{"a":null}`, "nested": `{"a":{"b":"c"}}`, "array": `["a"]`, "number": `{"a":1}`, "broken": `{"a":`,
			"scalar":          `"text"`,
			"payload-in-meta": `{"payload":"x"}`, "attempt": `{"attempt":"abc"}`, "not-utf8": "{\"a\":\"\xff\"}",
		}
		now := time.Now().UnixMilli()
		for id, meta := range malformed {
			s.raw("HSET", k.Payload, id, "raw \x00\xff "+id)
			s.raw("HSET", k.Meta, id, meta)
			s.raw("ZADD", k.Due, fmt.Sprint(now), id)
		}
		s.raw("HSET", k.Meta, "expired", `{"expires_ms":"1000000000000"}`)
		s.raw("ZADD", k.Due, fmt.Sprint(now), "expired")
		s.bridge(quick())
		s.worker("g", 10, nil)
		s.schedule(100, "fine-", spreadOver(100*time.Millisecond))
		redistest.Eventually(t, 15*time.Second, func() (bool, string) {
			n := s.number("XLEN", k.Dead)
			return n == int64(len(malformed))+1, fmt.Sprint(n, " dead letters")
		})
		s.awaitSettled(20*time.Second, "g")
		letters, err := s.raw("XRANGE", k.Dead, "-", "+").AsXRange()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range letters {
			f := l.FieldValues
			if f["id"] == "expired" {
				if f["reason"] != lua.ReasonExpired {
					t.Errorf("expired: %v", f)
				}
				continue
			}
			if f["reason"] != lua.ReasonMalformed || f["payload"] != "raw \x00\xff "+f["id"] || f["meta"] != malformed[f["id"]] ||
				f["error"] == "" {
				t.Errorf("malformed: %q", f)
			}
		}
		if n := s.number("XLEN", k.Dead); n != int64(len(malformed))+1 {
			t.Errorf("%d dead letters in the end", n)
		}
	})
}
