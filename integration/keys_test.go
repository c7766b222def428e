package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/transfer"
)

// keyedHandler writes a line for each delivery, works for a random time, and sometimes fails.
func keyedHandler(path string, longest time.Duration) bridge.Handler {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	return func(_ context.Context, m *bridge.Message) error {
		if _, err := fmt.Fprintf(file, "%s\n", m.ID); err != nil {
			return err
		}
		<-time.After(time.Duration(rand.Int64N(int64(longest) + 1)))
		if rand.IntN(50) == 0 {
			return errors.New("every fiftieth fails")
		}
		return nil
	}
}

const longestOfKeyed = 20 * time.Millisecond

// Handlers fail, workers and bridges are killed, and a foreign worker knows only XACK. Of messages with one key,
// never more than one is ready or pending, and they are delivered in due order. With DUESTREAM_TEST_FULL, 100 keys
// and 50,000 messages.
func TestOneMessageOfAKeyAtATime(t *testing.T) {
	t.Parallel()
	keys, each := 20, 25
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		keys, each = 100, 500
	}
	s := newStack(t, redistest.Own(t))
	s.groups("g")
	f := newFamily(t, s, child{part: "bridge"}, child{part: "bridge"}, child{part: "keyed", group: "g"},
		child{part: "keyed", group: "g"})
	log := filepath.Join(f.dir, "ledger-g")
	redistest.Eventually(t, 30*time.Second, func() (bool, string) { return s.alive() == 2, "two bridges" })

	var batch []bridge.NewMessage
	now := time.UnixMilli(s.serverNow()).Add(time.Duration(keys*each/5) * time.Millisecond) // after all are scheduled
	for i := range keys * each {
		key, n := i%keys, i/keys
		batch = append(batch, bridge.NewMessage{ID: fmt.Sprintf("%03d-%05d", key, n), Key: fmt.Sprint("key ", key),
			At: now.Add(time.Duration(n) * time.Millisecond)})
	}
	rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	s.send(batch)
	s.worker("g", 50, keyedHandler(log, longestOfKeyed))
	s.foreignKeyed(log)

	kills, looks, began := 0, 0, time.Now()
	next := time.Now().Add(time.Second)
	redistest.Eventually(t, 5*time.Minute, func() (bool, string) {
		looks++
		if twice := s.twoOfAKey(); twice != "" {
			t.Fatalf("after %s: %s", time.Since(began), twice)
		}
		if time.Now().After(next) {
			c := f.children[rand.IntN(len(f.children))]
			f.kill(c)
			f.start(c)
			kills++
			next = time.Now().Add(time.Second)
		}
		return s.empty("g")
	})
	t.Logf("%d messages of %d keys in %s, %d kills, %d looks", len(batch), keys, time.Since(began).Round(time.Millisecond), kills, looks)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := s.number("ZCARD", s.keys().Turns)
		return n == 0, fmt.Sprint(n, " turns left")
	})
	checkKeyOrder(t, log, keys, each)
	if n := s.number("XLEN", s.keys().Dead); n > 0 {
		t.Errorf("%d dead letters", n)
	}
}

// checkKeyOrder checks the order of deliveries for each key. Repeated deliveries of a message come before the next
// one.
func checkKeyOrder(t *testing.T, path string, keys, each int) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	last := map[string]int{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		key, text, _ := strings.Cut(lines.Text(), "-")
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("line %q", lines.Text())
		}
		before, seen := last[key]
		if !seen {
			before = -1
		}
		if n != before && n != before+1 {
			t.Fatalf("key %s: message %d was delivered behind message %d", key, n, before)
		}
		last[key] = n
	}
	for key, n := range last {
		if n != each-1 {
			t.Errorf("key %s: the last one is %d of %d", key, n, each)
		}
	}
	if len(last) != keys {
		t.Errorf("%d keys of %d", len(last), keys)
	}
}

// foreignKeyed runs a worker that knows only XREADGROUP and XACK.
func (s *stack) foreignKeyed(path string) {
	s.t.Helper()
	handle, k := keyedHandler(path, 0), s.keys()
	client := s.dial(s.server.URL()).Client
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			reply, err := client.Do(ctx, client.B().Xreadgroup().Group("g", "foreign").Count(1).
				Block(100).Streams().Key(k.Stream).
				Id(">").Build()).AsXRead()
			if err != nil {
				continue
			}
			for _, e := range reply[k.Stream] {
				m := bridge.Message{}
				m.ID = e.FieldValues["id"]
				if handle(ctx, &m) == nil { // else it is delivered again after the visibility timeout
					client.Do(ctx, client.B().Xack().Key(k.Stream).Group("g").Id(e.ID).Build())
				}
			}
		}
	})
	s.t.Cleanup(func() { cancel(); running.Wait() })
}

// twoOfAKey names two messages of one key in the stream that the group is not done with, or returns "".
func (s *stack) twoOfAKey() string {
	s.t.Helper()
	text, err := s.raw("EVAL", `
		local last = '0-0'
		local reply = redis.pcall('XINFO', 'GROUPS', KEYS[1])
		if reply.err then return '' end
		for _, g in ipairs(reply) do for i = 1, #g, 2 do if g[i] == 'last-delivered-id' then last = g[i + 1] end end end
		local pending, seen = {}, {}
		for _, p in ipairs(redis.call('XPENDING', KEYS[1], 'g', '-', '+', 100000)) do pending[p[1]] = true end
		for _, e in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
			local f = {}
			for i = 1, #e[2], 2 do f[e[2][i]] = e[2][i + 1] end
			if pending[e[1]] or e[1] > last then
				if seen[f.key] then return f.id .. ' (' .. e[1] .. ') beside ' .. seen[f.key] end
				seen[f.key] = f.id .. ' (' .. e[1] .. ')'
			end
		end
		return ''`, "1", s.keys().Stream).ToString()
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// In a queue with partitions, the key decides the partition. Messages are still found by their ID alone.
func TestKeyChoosesThePartition(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	ctx := context.Background()
	if _, err := s.operator().SetPartitions(ctx, s.queue, 8, nil); err != nil {
		t.Fatal(err)
	}
	s.bridge(quick())
	counts := lua.Counts{1, 8}
	for i := range 20 {
		key := fmt.Sprint("customer-", i)
		for n := range 3 {
			id := fmt.Sprint("m-", i, "-", n)
			if _, err := s.client.Schedule(ctx, s.queue, nil, bridge.WithID(id), bridge.Key(key),
				bridge.In(time.Hour)); err != nil {
				t.Fatal(err)
			}
			_, err := s.client.Schedule(ctx, s.queue, nil, bridge.WithID(id), bridge.Key(key))
			if !errors.Is(err, bridge.ErrDuplicate) {
				t.Fatalf("%s again: %v", id, err)
			}
			k := lua.NewKeys(s.prefix, lua.PartitionName(s.queue, counts.Of(key)))
			if s.number("EXISTS", k.Due) != 1 || s.number("HEXISTS", k.Meta, id) != 1 {
				t.Fatalf("%s of %s is not in partition %d", id, key, counts.Of(key))
			}
		}
		id := fmt.Sprint("m-", i, "-0")
		if _, err := s.client.Reschedule(ctx, s.queue, id, bridge.In(2*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := s.client.Cancel(ctx, s.queue, id); err != nil {
			t.Fatal(err)
		}
		if err := s.client.Cancel(ctx, s.queue, id); !errors.Is(err, bridge.ErrNotScheduled) {
			t.Fatal(err)
		}
	}
}

// An imported message goes to the partition of its key, as a scheduled one does.
func TestImportGoesByTheKey(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	ctx := context.Background()
	if _, err := s.operator().SetPartitions(ctx, s.queue, 4, nil); err != nil {
		t.Fatal(err)
	}
	im, err := transfer.NewImport(ctx, s.redis.Client, s.prefix, s.queue, "elsewhere", 0)
	if err != nil {
		t.Fatal(err)
	}
	var records []transfer.Record
	for i := range 8 {
		records = append(records, transfer.Record{Kind: transfer.RecordScheduled, ID: fmt.Sprint("m-", i), Attempt: 1,
			Due: time.Now().Add(time.Hour).UnixMilli(), Extra: map[string]string{lua.FieldKey: "customer"}})
	}
	if err := errors.Join(im.Write(ctx, records)...); err != nil {
		t.Fatal(err)
	}
	home := lua.NewKeys(s.prefix, lua.PartitionName(s.queue, lua.Counts{1, 4}.Of("customer")))
	if n := s.number("ZCARD", home.Due); n != 8 {
		t.Errorf("%d of 8 are where their key belongs", n)
	}
}

// The cost of keys: messages with as many free keys as messages in flight, against messages without keys.
func BenchmarkKeys(b *testing.B) {
	const n = 20_000
	for _, keys := range []int{0, 1000, n} {
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				s := newStack(b, redistest.Own(b))
				s.groups("g")
				batch := make([]bridge.NewMessage, n)
				for i := range batch {
					batch[i] = bridge.NewMessage{ID: fmt.Sprint("m", i), Payload: []byte("payload"), Delay: time.Millisecond}
					if keys > 0 {
						batch[i].Key = fmt.Sprint("k", i%keys)
					}
				}
				s.send(batch)
				b.StartTimer()
				began := time.Now()
				s.bridge(quick())
				w, stop := s.worker("g", 200, nil)
				for w.Stats().Acknowledged < n {
					<-time.After(time.Millisecond)
				}
				b.ReportMetric(n/time.Since(began).Seconds(), "msg/s")
				b.StopTimer()
				stop()
			}
		})
	}
}

// A client checks which bridges are alive before it writes a message with a key. While the master with the heartbeats
// hangs or is killed, messages with keys go on in the queues of other masters, for any number of callers.
func TestKeyedMessagesGoOnWhileTheMasterOfTheHeartbeatsIsAway(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*redistest.Server){
		"hanging": (*redistest.Server).Pause, "killed": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.Cluster(t, 3, 0)
			var s *stack
			var away *redistest.Server
			for {
				s = newStack(t, c.Server())
				globals := lua.NewGlobals(s.prefix)
				away = c.Owner(c.Slot(globals.Bridges))
				if c.Owner(c.Slot(s.keys().Due)) != away && c.Owner(c.Slot(globals.Queues)) != away {
					break
				}
			}
			if err := s.schedule1("before", bridge.In(time.Hour)); err != nil {
				t.Fatal(err)
			}
			leave(away)
			const callers, each = 20, 5
			errs := make(chan error, callers*each)
			began := time.Now()
			for caller := range callers {
				go func() {
					for i := range each {
						errs <- s.schedule1(fmt.Sprint(caller, "-", i), bridge.Key("k"), bridge.In(time.Hour))
					}
				}()
			}
			for range callers * each {
				select {
				case err := <-errs:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(30 * time.Second):
					t.Fatal("callers wait")
				}
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("%d messages took %v", callers*each, took)
			}
		})
	}
}
