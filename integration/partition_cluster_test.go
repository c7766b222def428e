package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// parted is a stack whose queue has partitions on all masters of a cluster.
type parted struct {
	*stack
	counts   lua.Counts
	owners   []*redistest.Server // the owners of 8 partitions
	registry *redistest.Server   // the owner of the registry
}

// newParted makes a queue with this many partitions and the group g. Its prefix is one under which 8 partitions are
// spread over all three masters, and the registry is on another master than partitions 0 and 1 and on the same as
// partition 3: TestPartitionsWhileAMasterIsAway needs that.
func newParted(t *testing.T, c *redistest.ClusterNodes, count int) *parted {
	t.Helper()
	p := &parted{}
	for {
		p.stack, p.owners = newStack(t, c.Server()), nil
		owner := func(key string) *redistest.Server { return c.Owner(c.Slot(key)) }
		different := map[*redistest.Server]bool{}
		for i := range 8 {
			p.owners = append(p.owners, owner(p.keysOf(i).Due))
			different[p.owners[i]] = true
		}
		p.registry = owner(lua.NewGlobals(p.prefix).Queues)
		if len(different) == 3 && p.owners[0] != p.registry && p.owners[1] != p.registry && p.owners[3] == p.registry {
			break
		}
	}
	p.grow(count)
	return p
}

func (p *parted) keysOf(partition int) lua.Keys { return p.part(partition).keys() }

// grow adds partitions to the queue, up to count. It creates the group in each new partition before it publishes the
// count, so that the group gets every message.
func (p *parted) grow(count int) {
	p.t.Helper()
	from := p.counts.Latest()
	if p.counts == nil {
		from = 0
	}
	p.counts = p.counts.With(count)
	for i := from; i < count; i++ {
		if err := p.raw("XGROUP", "CREATE", p.keysOf(i).Stream, "g", "0", "MKSTREAM").Error(); err != nil {
			p.t.Fatal(err)
		}
	}
	counts := map[string]lua.Counts{p.queue: p.counts}
	if _, err := lua.RegisterCounts(context.Background(), p.redis.Client, lua.NewGlobals(p.prefix), counts); err != nil {
		p.t.Fatal(err)
	}
}

// producer returns a new client, which has not read the registry yet.
func (p *parted) producer() *bridge.Client {
	p.t.Helper()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: p.redis, Prefix: p.prefix, Logger: p.log,
		RetryTimeout: time.Second})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { client.Close() })
	return client
}

// readers runs one worker for each partition that uses only XREADGROUP and XACK, like a worker in another language.
// Each message must be in partition 0, or in the partition that follows from its ID and one of the queue's counts.
func (p *parted) readers() {
	for i := range p.counts.Latest() {
		p.run("reader", func(ctx context.Context) error {
			c, stream := p.redis.Blocking, p.keysOf(i).Stream
			for ctx.Err() == nil {
				call, cancel := context.WithTimeout(ctx, 5*time.Second)
				read, err := c.Do(call, c.B().Xreadgroup().Group("g",
					"reader").Count(100).Block(500).Streams().Key(stream).Id(">").Build()).AsXReadSlices()
				cancel()
				if err != nil {
					continue // there is nothing to read, or the test ends
				}
				for _, one := range read[stream] {
					e := lua.ParseEntry(one.ID, one.FieldValues)
					p.ledger.Delivered("g", e.ID, lua.EntryTime(one.ID).UnixMilli(), e.Due.UnixMilli())
					belongs := func(count int) bool { return lua.Counts{count}.Of(e.ID) == i }
					if !slices.ContainsFunc(p.counts, belongs) && i != 0 {
						p.t.Errorf("%s is in partition %d, where no count of %v puts it", e.ID, i, p.counts)
					}
					// This does not use the context of the loop, so that every entry that was read is acknowledged.
					if n, err := p.redis.Client.Do(context.Background(),
						c.B().Xack().Key(stream).Group("g").Id(one.ID).Build()).AsInt64(); n != 1 {
						p.t.Errorf("XACK of %s: %d, %v", e.ID, n, err)
					}
				}
			}
			return nil
		})
	}
}

// awaitAllOnce waits until everything was delivered and freed, and checks that nothing was delivered twice.
func (p *parted) awaitAllOnce() {
	p.t.Helper()
	if r := p.awaitPartsSettled(p.counts.Latest()); r.Duplicated > 0 {
		p.t.Errorf("%d deliveries too many", r.Duplicated)
	}
}

// No message of a queue with 8 partitions on three masters is lost (guarantee G1). With two bridges, each message is
// delivered once, in the partition that follows from its ID, and all memory is freed.
func TestG1PartitionsOfAClusterAreDrained(t *testing.T) {
	t.Parallel()
	p := newParted(t, redistest.Cluster(t, 3, 0), 8)
	p.bridge(patient())
	p.bridge(patient())
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := p.number("ZCARD", p.prefix+":bridges")
		return n == 2, fmt.Sprint(n, " bridges live")
	})
	p.readers()
	var all sync.WaitGroup
	for caller := range 4 {
		all.Go(func() {
			delay := spreadOver(2 * time.Second)
			for round := range 10 {
				batch := make([]bridge.NewMessage, 50)
				for i := range batch {
					batch[i] = bridge.NewMessage{Payload: []byte("x"), Delay: delay(round*50 + i)}
					if i%2 == 0 { // the client chooses the IDs of the other messages
						batch[i].ID = fmt.Sprintf("m-%d-%d-%d", caller, round, i)
					}
				}
				p.send(batch)
			}
		})
	}
	all.Wait()
	p.awaitAllOnce()
}

// A queue on a cluster grows from 2 to 8 partitions and loses nothing (guarantee G1). Messages that were scheduled
// before the growth can still be rescheduled and cancelled, their IDs are still refused as duplicates, and those that
// were not cancelled are delivered. This holds for a producer that knows of the growth and for one that does not.
func TestG1PartitionsGrowOnACluster(t *testing.T) {
	t.Parallel()
	p := newParted(t, redistest.Cluster(t, 3, 0), 2)
	p.bridge(patient())
	p.bridge(patient())
	const n = 40
	ctx, old := t.Context(), p.producer()
	id := func(kind string, i int) string { return fmt.Sprint(kind, "-", i) }
	schedule := func(by *bridge.Client, id string, want error, options ...bridge.Option) {
		t.Helper()
		r, err := by.Schedule(ctx, p.queue, nil, append(options, bridge.WithID(id))...)
		if !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Errorf("schedule %s: %v, want %v", id, err, want)
		} else if err == nil {
			p.ledger.Sent(id, r.Due.UnixMilli())
		}
	}
	for i := range n {
		schedule(old, id("before", i), nil, bridge.In(time.Hour))
		schedule(old, id("window", i), nil, bridge.Dedup(time.Hour))
	}
	p.grow(8)
	fresh := p.producer()
	producers := []*bridge.Client{fresh, old}
	for i := range n {
		by := producers[i%2]
		schedule(fresh, id("before", i), bridge.ErrDuplicate)
		schedule(fresh, id("window", i), bridge.ErrDuplicate, bridge.Dedup(time.Hour))
		schedule(fresh, id("after", i), nil, bridge.In(time.Hour))
		for _, kind := range []string{"before", "after"} {
			if i%4 < 2 { // with i%2 above: each producer cancels half of its messages, and reschedules the others
				if err := by.Cancel(ctx, p.queue, id(kind, i)); err != nil {
					t.Error(err)
				}
				p.ledger.NotExpected(id(kind, i))
				if err := by.Cancel(ctx, p.queue, id(kind, i)); !errors.Is(err, bridge.ErrNotScheduled) {
					t.Errorf("cancel again: %v", err)
				}
			} else {
				due, err := by.Reschedule(ctx, p.queue, id(kind, i), bridge.In(time.Second))
				if err != nil {
					t.Error(err)
				}
				p.ledger.Sent(id(kind, i), due.UnixMilli())
			}
		}
	}
	p.readers()
	p.awaitAllOnce()
}

// The master of the registry is down. A producer that never read the registry puts messages into partition 0 if the
// caller chose neither a key nor an ID, and refuses an ID that the caller chose. It does not say of a message that it
// finds nowhere that it is not scheduled, and it does not say of a cancellation that it is complete, because the
// message may be in a partition that it does not know or cannot reach. When the registry is back, the producer finds
// everything.
func TestPartitionsWhileAMasterIsAway(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0, "--appendonly", "yes", "--appendfsync", "always")
	p := newParted(t, c, 2)
	p.grow(8)
	ctx, knows := t.Context(), p.producer()
	// idIn returns an ID that belongs to this partition of 8.
	idIn := func(what string, partition int) string {
		for i := 0; ; i++ {
			if id := fmt.Sprint(what, "-", i); p.counts.Of(id) == partition {
				return id
			}
		}
	}
	// An ID of partition 3 of 8 belonged to partition 1 when there were two. Partition 3 is on the master that goes
	// down.
	elsewhere, inOld, unknown := idIn("elsewhere", 1), idIn("in-old", 3), idIn("unknown", 3)
	if _, err := knows.Schedule(ctx, p.queue, nil, bridge.WithID(elsewhere), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	// A client that knew of two partitions put this message into partition 1.
	if err := p.raw("ZADD", p.keysOf(1).Due, "9999999999999", inOld).Error(); err != nil {
		t.Fatal(err)
	}
	p.registry.Kill()
	began := time.Now()
	fresh := p.producer()
	zero, err := fresh.Schedule(ctx, p.queue, nil, bridge.In(time.Hour))
	if took := time.Since(began); err != nil || took > 3*time.Second {
		t.Errorf("with the registry away: %v after %v", err, took)
	}
	c0 := p.redis.Client
	if err := c0.Do(ctx, c0.B().Zscore().Key(p.keysOf(0).Due).Member(zero.ID).Build()).Error(); err != nil {
		t.Errorf("not in partition 0: %v", err)
	}
	if _, err := fresh.Schedule(ctx, p.queue, nil, bridge.WithID(elsewhere)); !errors.Is(err, bridge.ErrUnavailable) ||
		errors.Is(err, bridge.ErrUncertain) {
		t.Errorf("an ID that another partition holds, with the registry away: %v", err)
	}
	for who, client := range map[string]*bridge.Client{"knows nothing": fresh, "knows the counts": knows} {
		for _, id := range []string{unknown, "never heard of"} {
			if err := client.Cancel(ctx, p.queue, id); !errors.Is(err, bridge.ErrUnavailable) ||
				errors.Is(err, bridge.ErrNotScheduled) {
				t.Errorf("a client that %s says of %s: %v", who, id, err)
			}
		}
	}
	if err := fresh.Cancel(ctx, p.queue, elsewhere); !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("a client that knows nothing says of a message in another partition: %v", err)
	}
	// A message that can be reached is changed. The call still returns an error, because a message with the same ID may
	// be on the server that does not answer.
	score := func(partition int, id string) float64 {
		at, _ := c0.Do(ctx, c0.B().Zscore().Key(p.keysOf(partition).Due).Member(id).Build()).AsFloat64()
		return at
	}
	if err := fresh.Cancel(ctx, p.queue, zero.ID); !errors.Is(err, bridge.ErrUnavailable) || score(0, zero.ID) != 0 {
		t.Errorf("a message in partition 0: %v", err)
	}
	if due, err := knows.Reschedule(ctx, p.queue, inOld, bridge.In(2*time.Hour)); !errors.Is(err, bridge.ErrUnavailable) ||
		float64(due.UnixMilli()) != score(1, inOld) {
		t.Errorf("a message in an older partition: %v, %v", due, err)
	}
	if err := knows.Cancel(ctx, p.queue, inOld); !errors.Is(err, bridge.ErrUnavailable) || score(1, inOld) != 0 {
		t.Errorf("a message in an older partition: %v", err)
	}
	p.registry.Start()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		err := fresh.Cancel(ctx, p.queue, elsewhere)
		return err == nil, fmt.Sprint(err)
	})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		err := fresh.Cancel(ctx, p.queue, unknown)
		return errors.Is(err, bridge.ErrNotScheduled), fmt.Sprint(err)
	})
}

// A new group is created in all partitions that can be reached, also while the registry cannot be read. Regression: it
// was created only in partition 0. Messages that became ready in the other partitions were freed when the other groups
// had acknowledged them, so the new group never got them.
func TestANewGroupIsInAllPartitionsWhileTheRegistryIsAway(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*redistest.Server){
		"killed": (*redistest.Server).Kill, "hanging": (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.Cluster(t, 3, 0)
			p := newParted(t, c, 8)
			for c.Owner(c.Slot(lua.NewGlobals(p.prefix).Defaults)) == p.registry { // a new worker needs the defaults
				p = newParted(t, c, 8)
			}
			if err := p.raw("XADD", p.keysOf(0).Stream, "*", "payload", "x").Error(); err != nil {
				t.Fatal(err)
			}
			leave(p.registry)
			got := make(chan string, 10)
			p.worker("new", 1, func(_ context.Context, m *bridge.Message) error {
				got <- m.EntryID
				return nil
			})
			receive(t, got)
			for i, owner := range p.owners {
				if owner == p.registry {
					continue
				}
				at := p.keysOf(i).Stream
				var groups []view.GroupInfo
				if err := view.Ask(t.Context(), p.redis.Client, view.GroupsOf(p.redis.Client, at, &groups)); err != nil {
					t.Fatal(err)
				}
				has := slices.ContainsFunc(groups, func(g view.GroupInfo) bool { return g.Name == "new" })
				redistest.Want(t, fmt.Sprintf("partition %d has the new group", i), has, true)
			}
		})
	}
}
