package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// part returns the stack of one partition of the queue.
func (s *stack) part(i int) *stack {
	one := *s
	one.queue = lua.PartitionName(s.queue, i)
	return &one
}

// plainReader reads one partition with XREADGROUP and acknowledges with XACK until the test ends, as a worker in
// another language does.
func (s *stack) plainReader(group string, ledger *redistest.Ledger) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.t.Cleanup(func() { cancel(); <-done })
	c, key := s.redis.Client, s.keys().Stream
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			read := c.B().Xreadgroup().Group(group, "plain").Count(10).Streams().Key(key).Id(">").Build()
			found, err := c.Do(ctx, read).AsXRead()
			if err != nil || len(found[key]) == 0 { // also NOGROUP, before the partition exists
				timer := time.NewTimer(10 * time.Millisecond)
				select {
				case <-ctx.Done():
				case <-timer.C:
				}
				continue
			}
			for _, entry := range found[key] {
				if e := lua.ParseEntry(entry.ID, fieldValues(entry)); e.For == "" || e.For == group {
					ledger.Delivered(group, e.ID, lua.EntryTime(entry.ID).UnixMilli(), e.Due.UnixMilli())
				}
				_ = c.Do(ctx, c.B().Xack().Key(key).Group(group).Id(entry.ID).Build()).Error()
			}
		}
	}()
}

func fieldValues(entry rueidis.XRangeEntry) (list []rueidis.XRangeFieldValue) {
	for field, value := range entry.FieldValues {
		list = append(list, rueidis.XRangeFieldValue{Field: field, Value: value})
	}
	return list
}

// G1 while a queue grows from one partition to two and then to eight. Producers learn of the growth at different
// times. One group uses plain commands in each partition, the other a worker that is killed and replaced in the
// middle. No partition loses anything, and all are empty at the end.
func TestG1QueueThatGrowsLosesNothing(t *testing.T) {
	t.Parallel()
	const most, producers, each = 8, 4, 1500
	s := newStack(t, redistest.Shared(t))
	s.bridge(quick())
	s.bridge(quick())
	s.groups("ours", "plain")
	var plain redistest.Ledger
	for i := range most {
		s.part(i).plainReader("plain", &plain)
	}
	f := &family{t: t, s: s, dir: t.TempDir()}
	worker := &child{part: "worker", group: "ours"}
	f.start(worker)
	t.Cleanup(func() { f.kill(worker) })

	var sent atomic.Int64
	var all sync.WaitGroup
	for p := range producers {
		all.Go(func() {
			var client *bridge.Client
			for n := range each {
				if n%(100*(p+1)) == 0 { // a producer keeps what it knows of the partitions for this long
					var err error
					if client, err = bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix,
						Logger: s.log}); err != nil {
						t.Error(err)
						return
					}
					defer client.Close()
				}
				id := fmt.Sprintf("%d-%d", p, n)
				receipt, err := client.Schedule(t.Context(), s.queue, []byte(id), bridge.WithID(id),
					bridge.In(within(100*time.Millisecond)(n)))
				if err != nil {
					t.Error(err)
					return
				}
				due := receipt.Due.UnixMilli()
				s.ledger.Sent(id, due)
				plain.Sent(id, due)
				sent.Add(1)
			}
		})
	}
	reached := func(n int64) {
		redistest.Eventually(t, 30*time.Second, func() (bool, string) {
			return sent.Load() >= n,
				fmt.Sprint(sent.Load(), " sent")
		})
	}
	grow := func(n int) {
		if _, err := s.operator().SetPartitions(t.Context(), s.queue, n, nil); err != nil {
			t.Error(err)
		}
	}
	reached(producers * each / 6)
	grow(2)
	reached(producers * each / 3)
	f.kill(worker)
	f.start(worker)
	all.Go(func() { grow(most) }) // two calls at the same time
	grow(most)
	reached(producers * each * 2 / 3)
	f.kill(worker)
	f.start(worker)
	all.Wait()

	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		f.audit("ours")
		if r := s.ledger.Summary("ours"); r.Lost > 0 {
			return false, fmt.Sprintf("ours: %+v, missing %v", r, s.ledger.Missing("ours", 5))
		}
		if r := plain.Summary("plain"); r.Lost > 0 {
			return false, fmt.Sprintf("plain: %+v, missing %v", r, plain.Missing("plain", 5))
		}
		for i := range most {
			if ok, left := s.part(i).empty("ours", "plain"); !ok {
				return false, fmt.Sprintf("partition %d: %s", i, left)
			}
		}
		return true, ""
	})
	for i := range most {
		if n := s.part(i).entriesAdded(); n < producers*each/50 {
			t.Errorf("only %d entries went through partition %d", n, i)
		}
	}
	s.ledger.Check(t, "ours")
	if r := plain.Check(t, "plain"); r.Duplicated > 0 {
		t.Errorf("the plain workers got %d twice", r.Duplicated)
	}
	if names, _ := filepath.Glob(filepath.Join(f.dir, "ledger-*")); len(names) != 1 {
		t.Errorf("ledgers %v", names)
	}
}

func (s *stack) entriesAdded() int64 {
	info, err := s.raw("XINFO", "STREAM", s.keys().Stream).AsMap()
	if err != nil {
		return 0
	}
	added := info["entries-added"]
	n, _ := added.AsInt64()
	return n
}

// One of three masters is killed or hangs. A worker continues with the partitions of the other masters at the usual
// pace, and takes up those of the lost master when it is back.
func TestPartitionsOfOtherMastersGoOnWhileOneIsAway(t *testing.T) {
	t.Parallel()
	for _, away := range []struct {
		name     string
		slots    int // fewer than twice the number of partitions, and more
		go_, end func(*redistest.Server)
	}{
		{"killed", 12, (*redistest.Server).Kill, (*redistest.Server).Start},
		{"hanging", 40, (*redistest.Server).Pause, (*redistest.Server).Resume},
		{"hanging, few slots", 2, (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(away.name, func(t *testing.T) {
			t.Parallel()
			const partitions = 9
			c := redistest.Cluster(t, 3, 0, "--appendonly", "yes", "--appendfsync", "always")
			s := newStack(t, c.Server())
			if err := s.operator().WriteDefaults(t.Context(), bridge.DefaultPolicy()); err != nil {
				t.Fatal(err)
			}
			s.groups("g")
			if _, err := s.operator().SetPartitions(t.Context(), s.queue, partitions, nil); err != nil {
				t.Fatal(err)
			}
			var down *redistest.Server
			at := map[*redistest.Server][]int{}
			for i := range partitions {
				owner := c.Owner(c.Slot(s.part(i).keys().Stream))
				at[owner] = append(at[owner], i)
				if i > 0 && owner != c.Owner(c.Slot(s.keys().Stream)) {
					down = owner
				}
			}
			if down == nil {
				t.Fatalf("all partitions are on one master: %v", at)
			}
			var got sync.Map // by ID: when it was delivered
			s.worker("g", away.slots, func(_ context.Context, m *bridge.Message) error {
				got.Store(m.ID, time.Now())
				return nil
			})
			sent := 0
			// send sends a message to each of the partitions, and waits until all are delivered.
			send := func(owners func(*redistest.Server) bool, patience time.Duration) (slowest time.Duration) {
				began := time.Now()
				var ids []string
				for owner, list := range at {
					if !owners(owner) {
						continue
					}
					for _, i := range list {
						sent++
						id := fmt.Sprintf("%d-in-%d", sent, i)
						receipts, err := lua.Enqueue(t.Context(), s.redis.Client, s.part(i).keys(), lua.Token{},
							[]lua.Item{{ID: id, When: lua.After(0), Dedup: lua.Refuse}}, lua.Durability{})
						if err != nil {
							t.Fatal(err)
						}
						s.ledger.Sent(id, receipts[0].Due.UnixMilli())
						ids = append(ids, id)
					}
				}
				redistest.Eventually(t, patience, func() (bool, string) {
					var missing []string
					for _, id := range ids {
						if _, ok := got.Load(id); !ok {
							missing = append(missing, id)
						}
					}
					return len(missing) == 0, "missing: " + strings.Join(missing, ", ")
				})
				return time.Since(began)
			}
			all := func(*redistest.Server) bool { return true }
			others := func(owner *redistest.Server) bool { return owner != down }
			send(all, 15*time.Second)
			away.go_(down)
			gone := time.Now()
			var slowest time.Duration
			for time.Since(gone) < 11*time.Second {
				// By then, every read that was under way has been given up, and its slots are free.
				late := time.Since(gone) > 6*time.Second
				patience := 8 * time.Second
				if late {
					patience = 1500 * time.Millisecond
				}
				if took := send(others, patience); late {
					slowest = max(slowest, took)
				}
			}
			t.Logf("%d partitions of %d are away; a round over the others took %v at most", len(at[down]), partitions,
				slowest.Round(time.Millisecond))
			away.end(down)
			redistest.Eventually(t, 20*time.Second, func() (bool, string) {
				err := s.part(at[down][0]).raw("EXISTS", s.part(at[down][0]).keys().Stream).Error()
				return err == nil, fmt.Sprint(err)
			})
			send(all, 20*time.Second)
			s.ledger.Check(t, "g")
		})
	}
}

// lateClient is a client that calls run once, before the first script that is called with a key.
type lateClient struct {
	rueidis.Client
	key  string
	run  func()
	once sync.Once
}

func (c *lateClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if words := cmd.Commands(); strings.HasPrefix(words[0], "EVAL") && slices.Contains(words, c.key) {
		c.once.Do(c.run)
	}
	return c.Client.Do(ctx, cmd)
}

// A queue is deleted while a producer goes on. Its message comes to a partition that is already removed, and which a
// bridge still serves. Regression: it became an entry of a stream without a group, from which nothing moves entries.
func TestAMessageThatComesWhileItsQueueIsDeletedIsDelivered(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.bridge(quick())
	s.groups("g")
	if _, err := s.operator().SetPartitions(t.Context(), s.queue, 4, nil); err != nil {
		t.Fatal(err)
	}
	removed := s.part(3)
	enqueue := func(id, when string) {
		t.Helper()
		items := []lua.Item{{ID: id, When: lua.When(when)}}
		_, err := lua.Enqueue(t.Context(), s.redis.Client, removed.keys(), lua.Token{}, items, lua.Durability{})
		if err != nil {
			t.Fatal(err)
		}
	}
	enqueue("first", "+10")
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return s.number("XLEN", removed.keys().Stream) == 1, "the bridge does not serve the partition"
	})
	s.raw("XTRIM", removed.keys().Stream, "MAXLEN", "0")
	c := &lateClient{Client: s.redis.Client, key: s.keys().Due, run: func() { enqueue("late", "+0") }}
	// Partition 0 is the last one.
	if had, err := stream.DeleteQueue(t.Context(), c, s.prefix, s.queue, false); err != nil {
		t.Fatal(had, err)
	}
	s.groups("g")
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return s.number("XLEN", s.keys().Stream) == 1, fmt.Sprintf("%d are scheduled in partition 3, and %d are ready there",
			s.number("ZCARD", removed.keys().Due), s.number("XLEN", removed.keys().Stream))
	})
	read := s.redis.Client.B().Xreadgroup().Group("g", "c").Streams().Key(s.keys().Stream).Id(">").Build()
	found, err := s.redis.Client.Do(t.Context(), read).AsXRead()
	redistest.Want(t, "delivered", fmt.Sprint(len(found[s.keys().Stream]), err), "1 <nil>")
}
