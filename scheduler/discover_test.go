package scheduler

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// unregistering is a client whose calls of the script register fail while broken is set.
type unregistering struct {
	rueidis.Client
	sha    string
	broken *atomic.Bool
}

func (c unregistering) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if c.broken.Load() && slices.Contains(cmd.Commands(), c.sha) {
		return rueidis.NewErrorResult(io.EOF)
	}
	return c.Client.Do(ctx, cmd)
}

func (unregistering) Mode() rueidis.ClientMode { return rueidis.ClientModeStandalone }

// A bridge must register a queue that it finds before it serves the queue, and must keep the queue in mind until then.
// Regression: a bridge drained an unregistered queue, and died before it could register the queue. The queue had no
// schedule any more, so no other bridge could find it. Its entries were never freed or reclaimed.
func TestQueueIsRegisteredBeforeItIsServed(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	sum := sha1.Sum([]byte(lua.Source("register"))) // EVALSHA names a script by its SHA-1
	client := unregistering{c, hex.EncodeToString(sum[:]), &atomic.Bool{}}
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, "stray").Due, "1", "a")
	sch, err := New(Config{Client: client, Blocking: c, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); sch.loops.Wait() }()
	sch.owners.live = []string{sch.owners.self}
	client.broken.Store(true)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		err := sch.Discover(ctx)
		return err != nil, "the queue was not found"
	})
	if sch.owners.drainer("stray") != nil {
		t.Error("the queue is served, and is not registered")
	}
	client.broken.Store(false)
	if err := sch.Discover(ctx); err != nil || sch.owners.drainer("stray") == nil {
		t.Errorf("with the registry back: %v, served %t", err, sch.owners.drainer("stray") != nil)
	}
	if registered, err := Queues(ctx, c, prefix); err != nil || !slices.Equal(registered, []string{"stray"}) {
		t.Errorf("registered are %v, %v", registered, err)
	}
}

// Bridges register the queues again that the registry lost. Regression: this brought a deleted queue back within a
// second. A queue that still has keys must be registered again all the same.
func TestADeletedQueueIsNotRegisteredAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	queues := lua.NewGlobals(prefix).Queues
	queuetest.Do(t, c, "HSET", queues, "deleted", "1", "kept", "1,2")
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, "kept/1").Due, "1e13", "a")
	sched := start(t, s, prefix)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return sched.Status().Queues == 2,
			"the bridge does not know both"
	})
	// Set this field first: a registry without the field counts as lost, and the bridges would register all queues
	// again.
	queuetest.Do(t, c, "HSET", queues, lua.RegistryDeleted, "deleted")
	queuetest.Do(t, c, "HDEL", queues, "deleted", "kept")
	queuetest.Do(t, c, "XADD", lua.NewGlobals(prefix).Wake, "MAXLEN", "1", "*", "queues", "1")
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return queuetest.Integer(t, c, "HLEN", queues) > 1, "the queue with a message is not registered again"
	})
	queuetest.EventuallyRegistered(t, c, prefix, "kept", "1,2")
	if n := queuetest.Integer(t, c, "HEXISTS", queues, "deleted"); n != 0 {
		t.Error("the deleted queue is back")
	}
}

// Regression: a bridge remembered the partition counts of a deleted queue, and registered them when the queue was
// created again. Messages of the new queue went to partitions without groups and settings.
func TestAQueueThatIsMadeAnewHasNoneOfItsOldPartitions(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	g := lua.NewGlobals(prefix)
	// Whether the bridge reads the registry while the queue is not there.
	for _, readsBetween := range []bool{true, false} {
		t.Run(fmt.Sprint(readsBetween), func(t *testing.T) {
			queue := redistest.Queue(t)
			queuetest.PublishCount(t, c, prefix, queue, 4)
			sched := start(t, s, prefix, seldom)
			waitUntilBridgeKnows := func(want string) {
				t.Helper()
				redistest.Eventually(t, 20*time.Second, func() (bool, string) {
					sched.owners.mu.Lock()
					defer sched.owners.mu.Unlock()
					known := sched.owners.counts[queue].String()
					return known == want, fmt.Sprintf("the bridge knows %q, want %q", known, want)
				})
			}
			waitUntilBridgeKnows("1,4")
			if err := lua.Unregister(t.Context(), c, g, queue, lua.Counts{1, 4}); err != nil {
				t.Fatal(err)
			}
			if readsBetween {
				if err := sched.syncRegistry(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			queuetest.Do(t, c, "HSETNX", g.Queues, queue, "1")
			queuetest.Do(t, c, "XADD", g.Wake, "MAXLEN", "1", "*", "queues", "1")
			waitUntilBridgeKnows("1")
			queuetest.EventuallyRegistered(t, c, prefix, queue, "1")
			redistest.Eventually(t, 20*time.Second, func() (bool, string) {
				st := sched.Status()
				return st.Partitions == 1 && st.Owned == 1, fmt.Sprintf("%+v", st)
			})
			if err := lua.Unregister(t.Context(), c, g, queue, lua.Counts{1}); err != nil { // for the next bridge
				t.Fatal(err)
			}
		})
	}
}

// A queue may grow while a bridge checks whether the queue was deleted. The bridge must then learn the new count, and
// must not restore an old one.
func TestAGrowthBesideALookAtADeletedQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	grows := &hookedClient{Client: c, before: "EVALSHA"}
	grows.run = func() { queuetest.PublishCount(t, c, prefix, queue, 16) }
	b := bridgeOfRecreatedQueue(t, grows, prefix, queue)
	grows.armed.Store(true)
	if err := b.syncRegistry(t.Context()); err != nil { // the queue grows during this call
		t.Fatal(err)
	}
	if err := b.syncRegistry(t.Context()); err != nil { // this call reads the new count
		t.Fatal(err)
	}
	redistest.Want(t, "known", b.owners.counts[queue].String(), "1,16")
}

// hookedClient calls run before the next command with the name `before`, once after armed has been set.
type hookedClient struct {
	rueidis.Client
	before string
	run    func()
	armed  atomic.Bool
}

func (c *hookedClient) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if command.Commands()[0] == c.before && c.armed.Swap(false) {
		c.run()
	}
	return c.Client.Do(ctx, command)
}

// bridgeOfRecreatedQueue returns a bridge that knows four partitions of a queue. The queue has since been deleted, and
// created again with one partition.
func bridgeOfRecreatedQueue(t *testing.T, c rueidis.Client, prefix, queue string) *Scheduler {
	t.Helper()
	b, err := New(Config{Client: c, Blocking: c, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		cancel()
		b.loops.Wait()
	})
	queuetest.PublishCount(t, c, prefix, queue, 4)
	if err := b.syncRegistry(ctx); err != nil {
		t.Fatal(err)
	}
	if err := lua.Unregister(ctx, c, b.globals, queue, lua.Counts{1, 4}); err != nil {
		t.Fatal(err)
	}
	queuetest.Do(t, c, "HSETNX", b.globals.Queues, queue, "1")
	return b
}

// Regression: producers that still knew the partitions of a deleted queue put messages into them. A bridge that forgot
// these partitions found the messages by a scan of all keys only: on a large server hours late.
func TestPartitionsOfADeletedQueueAreWatchedForAMinute(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	first, third := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/3")
	b := bridgeOfRecreatedQueue(t, c, prefix, queue)
	b.owners.live = []string{b.owners.self}
	if err := b.syncRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	queuetest.Do(t, c, "HSET", third.Policy, "held", "1") // as after a message that came while the queue was being deleted
	for _, id := range []string{"m-1", "m-2"} {
		queuetest.Do(t, c, "ZADD", third.Due, later, id)
		b.discovery.lost.emptyAll(t.Context())
		redistest.Want(t, id+" is moved", queuetest.Text(t, c, "ZSCORE", first.Due, id), later)
		redistest.Want(t, "held, as another message may come", queuetest.Text(t, c, "HGET", third.Policy, "held"), "1")
	}
	for i := range 3 { // as if a minute had passed
		b.discovery.lost.known[lua.PartitionName(queue, i+1)].watchedUntil = time.Now()
	}
	b.discovery.lost.emptyAll(t.Context())
	redistest.Want(t, "lost partitions", len(b.discovery.lost.known), 0)
	redistest.Want(t, "held after a minute", queuetest.Text(t, c, "HGET", third.Policy, "held"), "")
}

// Only the first live bridge watches the partitions of a deleted queue.
func TestABridgeThatIsNotTheFirstWatchesNoPartitions(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	b := bridgeOfRecreatedQueue(t, s.Client(t), s.Prefix(t), redistest.Queue(t))
	b.owners.live = []string{"another", b.owners.self}
	if err := b.syncRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "partitions dropped", len(b.owners.dropped), 3)
	if err := b.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "partitions watched", len(b.owners.dropped)+len(b.discovery.lost.known), 0)
}

// failsOnce is a client that fails the next call with the fragile key as an argument. If fragile is nil, no call fails.
type failsOnce struct {
	rueidis.Client
	fragile atomic.Pointer[string]
}

func (c *failsOnce) fails(command rueidis.Completed) bool {
	key := c.fragile.Load()
	return key != nil && slices.Contains(command.Commands(), *key) && c.fragile.CompareAndSwap(key, nil)
}

func (c *failsOnce) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if c.fails(command) {
		return rueidis.NewErrorResult(io.EOF)
	}
	return c.Client.Do(ctx, command)
}

func (c *failsOnce) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	if !slices.ContainsFunc(commands, c.fails) {
		return c.Client.DoMulti(ctx, commands...)
	}
	replies := make([]rueidis.RedisResult, len(commands))
	for i := range replies {
		replies[i] = rueidis.NewErrorResult(io.EOF)
	}
	return replies
}

func (*failsOnce) Mode() rueidis.ClientMode { return rueidis.ClientModeStandalone }

// Regression: when one look at a lost partition failed, the scheduler forgot that partition, and the partitions found
// after it, until the scan had seen all keys again: on a large server for hours.
func TestAFailedLookAtALostPartitionIsRepeated(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	for what, fragile := range map[string]func(queue string) string{
		"the counts of deleted queues": lua.DeletedCounts,
		"the settings of a partition":  func(queue string) string { return lua.NewKeys(prefix, queue+"/5").Policy },
	} {
		queue := redistest.Queue(t)
		queuetest.PublishCount(t, c, prefix, queue, 2)
		recreateQueue(t, c, prefix, queue, lua.Counts{1, 2})
		client := &failsOnce{Client: c}
		b, err := New(Config{Client: client, Blocking: c, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); b.loops.Wait() }()
		b.owners.live = []string{b.owners.self}
		if err := b.syncRegistry(ctx); err != nil {
			t.Fatal(err)
		}
		// From here on the scan finds no keys. So only a repeated look can find the partitions.
		b.discovery.scan.prefix = prefix + "-without-keys"
		key := fragile(queue)
		client.fragile.Store(&key)
		first := b.sortIn(ctx, []string{queue + "/5", queue + "/6"})
		if first == nil {
			t.Errorf("%s: the look did not fail", what)
		}
		if strings.HasPrefix(what, "the settings") {
			redistest.Want(t, what+": the other partition is known", b.discovery.lost.known[queue+"/6"] != nil, true)
		}
		queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queue+"/5").Due, "9e14", "m")
		redistest.Want(t, what+": the next look", b.Discover(ctx), nil)
		redistest.Want(t, what+": messages left", queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, queue+"/5").Due), 0)
	}
}
