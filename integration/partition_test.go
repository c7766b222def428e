package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// part returns a stack that works on one partition of the queue as if the partition were a queue.
func (s *stack) part(i int) *stack {
	one := *s
	one.queue = lua.PartitionName(s.queue, i)
	return &one
}

// partsEmpty does the same as empty for a queue of n partitions.
func (s *stack) partsEmpty(n int, groups ...string) (bool, string) {
	for i := range n {
		if ok, left := s.part(i).empty(groups...); !ok {
			return false, fmt.Sprintf("partition %d: %s", i, left)
		}
	}
	return true, ""
}

// awaitPartsSettled waits until group g has got everything, and nothing is left in n partitions.
func (s *stack) awaitPartsSettled(n int) redistest.Result {
	s.t.Helper()
	redistest.Eventually(s.t, 40*time.Second, func() (bool, string) {
		if r := s.ledger.Summary("g"); r.Lost > 0 {
			return false, r.String()
		}
		return s.partsEmpty(n, "g")
	})
	return s.ledger.Check(s.t, "g")
}

// plainWorker runs a worker until the test ends that uses only XREADGROUP and XACK, like a worker in another language.
// It acknowledges an entry unless handle returns an error.
func (s *stack) plainWorker(group string, handle func(lua.Entry) error) {
	s.t.Helper()
	c, key := s.redis.Client, s.keys().Stream
	s.run("plain worker", func(ctx context.Context) error {
		for ctx.Err() == nil {
			read := c.B().Xreadgroup().Group(group, "plain").Count(10).Streams().Key(key).Id(">").Build()
			found, err := c.Do(ctx, read).AsXReadSlices()
			if err != nil || len(found[key]) == 0 { // also NOGROUP, before the partition exists
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
				continue
			}
			for _, one := range found[key] {
				if handle(lua.ParseEntry(one.ID, one.FieldValues)) == nil {
					_ = c.Do(ctx, c.B().Xack().Key(key).Group(group).Id(one.ID).Build()).Error()
				}
			}
		}
		return nil
	})
}

// recordIn returns a handler for plainWorker that records the deliveries to the group in a ledger. It leaves out
// retries for other groups, which plain workers read too.
func recordIn(ledger *redistest.Ledger, group string) func(lua.Entry) error {
	return func(e lua.Entry) error {
		if e.For == "" || e.For == group {
			ledger.Delivered(group, e.ID, lua.EntryTime(e.EntryID).UnixMilli(), e.Due.UnixMilli())
		}
		return nil
	}
}

// No message is lost (guarantee G1) while a queue grows from one partition to two and then to eight. Producers learn of
// the growth at different times. One group uses plain commands in each partition, the other a worker that is killed and
// replaced twice. At the end, both groups have got every message, and all partitions are empty.
func TestG1QueueThatGrowsLosesNothing(t *testing.T) {
	t.Parallel()
	const most, producers, each = 8, 4, 1500
	s := newStack(t, redistest.Shared(t))
	s.bridge(quick())
	s.bridge(quick())
	s.groups("ours", "plain")
	var plain redistest.Ledger
	for i := range most {
		s.part(i).plainWorker("plain", recordIn(&plain, "plain"))
	}
	f := &family{t: t, s: s, dir: t.TempDir()}
	worker := &child{part: "worker", group: "ours"}
	f.start(worker)
	t.Cleanup(func() { f.kill(worker) })

	delay := spreadOver(100 * time.Millisecond)
	var sent atomic.Int64
	var all sync.WaitGroup
	for p := range producers {
		all.Go(func() {
			var client *bridge.Client
			for n := range each {
				// A new client reads the number of partitions anew. Each producer has another interval between new
				// clients.
				if n%(100*(p+1)) == 0 {
					var err error
					if client, err = bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix,
						Logger: s.log}); err != nil {
						t.Error(err)
						return
					}
					defer client.Close()
				}
				id := fmt.Sprintf("%d-%d", p, n)
				receipt, err := client.Schedule(t.Context(), s.queue, []byte(id), bridge.WithID(id), bridge.In(delay(n)))
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
	awaitSent := func(n int64) {
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
	awaitSent(producers * each / 6)
	grow(2)
	awaitSent(producers * each / 3)
	f.kill(worker)
	f.start(worker)
	all.Go(func() { grow(most) }) // two calls at the same time
	grow(most)
	awaitSent(producers * each * 2 / 3)
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
		return s.partsEmpty(most, "ours", "plain")
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
	// All processes of the worker append to one ledger file. A second file would be one that audit does not read.
	if names, _ := filepath.Glob(filepath.Join(f.dir, "ledger-*")); len(names) != 1 {
		t.Errorf("ledgers %v", names)
	}
}

// entriesAdded returns how many entries the stream has ever had, or 0 if there is no stream.
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
		slots    int // of the worker: fewer than two for each of the 9 partitions, more than that, and fewer than partitions
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
			var down *redistest.Server          // the master to take down: one that does not hold partition 0
			at := map[*redistest.Server][]int{} // partitions by their master
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
			// send sends a message to each partition whose master owners accepts, waits until all are delivered, and
			// returns how long that took.
			send := func(owners func(*redistest.Server) bool, patience time.Duration) (took time.Duration) {
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
				// In the first 6 s, reads from the lost master may still hold slots of the worker. After that the
				// worker has given up these reads, and the other partitions must be served at the usual pace.
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

// A queue is deleted while a producer still schedules. Its message comes to partition 3, which is already removed, and
// which a bridge still serves. The bridge must move the message to partition 0. Regression: the message became an entry
// in the stream of the removed partition, which has no group, and nothing moved it from there.
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
	c := &queuetest.BeforeScript{Client: s.redis.Client, Key: s.keys().Due, Run: func() { enqueue("late", "+0") }}
	// DeleteQueue removes partition 0 last. So partition 3 is removed when the first script for partition 0 runs, and
	// enqueue is called before that script.
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
