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
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// keyedHandler writes a line for each delivery, works for a random time up to longest, and fails one call in fifty.
func keyedHandler(path string, longest time.Duration) bridge.Handler {
	record := appendTo(path)
	return func(_ context.Context, m *bridge.Message) error {
		if err := record("%s", m.ID); err != nil {
			return err
		}
		<-time.After(time.Duration(rand.Int64N(int64(longest) + 1)))
		if rand.IntN(50) == 0 {
			return errors.New("every fiftieth fails")
		}
		return nil
	}
}

const longestOfKeyed = 20 * time.Millisecond // longest time that handlers work on a message

// Of the messages with one ordering key, never more than one is ready or pending, and they are delivered in the order
// of their due times. This holds although handlers fail, workers and bridges are killed, and one worker uses only plain
// commands. With DUESTREAM_TEST_FULL, there are 100 keys and 50,000 messages.
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
	redistest.Eventually(t, 30*time.Second, func() (bool, string) { return s.liveBridges() == 2, "two bridges" })

	var batch []bridge.NewMessage
	// The first one is due after all are scheduled, also on a busy machine.
	now := time.UnixMilli(s.serverNow()).Add(2*time.Second + time.Duration(keys*each/5)*time.Millisecond)
	for i := range keys * each {
		key, n := i%keys, i/keys
		batch = append(batch, bridge.NewMessage{ID: fmt.Sprintf("%03d-%05d", key, n), Key: fmt.Sprint("key ", key),
			At: now.Add(time.Duration(n) * time.Millisecond)})
	}
	rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	s.send(batch)
	s.worker("g", 50, keyedHandler(log, longestOfKeyed))
	handle := keyedHandler(log, 0)
	s.plainWorker("g", func(e lua.Entry) error {
		var m bridge.Message
		m.ID = e.ID
		return handle(t.Context(), &m)
	})

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

// checkKeyOrder checks the order of deliveries for each key, from lines of the form "key-number". A message may be
// delivered several times, but only before the next message of its key.
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

// twoOfAKey names two messages of one ordering key that are ready or pending at the same time, or returns "". Its
// script sees the stream and the pending entries at one moment.
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

// BenchmarkKeys measures how fast messages are delivered without ordering keys, with 1,000 keys, and with a key for
// each message.
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

// A client reads the heartbeats before it writes a message with an ordering key. While the master of the heartbeats
// hangs or is killed, callers can still schedule messages with keys in the queues of other masters. This also holds
// for many callers at once: 100 calls take less than 20 s.
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
			if err := s.scheduleOne("before", bridge.In(time.Hour)); err != nil {
				t.Fatal(err)
			}
			leave(away)
			const callers, each = 20, 5
			errs := make(chan error, callers*each)
			began := time.Now()
			for caller := range callers {
				go func() {
					for i := range each {
						errs <- s.scheduleOne(fmt.Sprint(caller, "-", i), bridge.Key("k"), bridge.In(time.Hour))
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
