package scheduler

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
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

// A bridge found an unregistered queue, drained it, and died before it could register it. The queue had no schedule any
// more, so no other bridge could find it: its entries were never freed or reclaimed. So a queue is registered before it
// is served, and is kept until then.
func TestQueueIsRegisteredBeforeItIsServed(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	sum := sha1.Sum([]byte(lua.Source("register")))
	client := unregistering{c, hex.EncodeToString(sum[:]), &atomic.Bool{}}
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, "stray").Due, "1", "a")
	sch, err := New(Config{Client: client, Blocking: c, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); sch.loops.Wait() }()
	sch.live = []string{sch.members.id}
	client.broken.Store(true)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		err := sch.Discover(ctx)
		return err != nil, "the queue was not found"
	})
	if sch.loop("stray") != nil {
		t.Error("the queue is served, and is not registered")
	}
	client.broken.Store(false)
	if err := sch.Discover(ctx); err != nil || sch.loop("stray") == nil {
		t.Errorf("with the registry back: %v, served %t", err, sch.loop("stray") != nil)
	}
	if registered, err := Queues(ctx, c, prefix); err != nil || !slices.Equal(registered, []string{"stray"}) {
		t.Errorf("registered are %v, %v", registered, err)
	}
}

// Bridges register again the queues that the registry lost. That used to bring a deleted queue back within a second.
// They must still do so for a queue with keys.
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
	queuetest.Do(t, c, "HSET", queues, lua.RegistryDeleted, "deleted") // first: a registry without this field was lost
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
	for _, read := range []bool{true, false} { // whether the bridge reads the registry while the queue is not there
		t.Run(fmt.Sprint(read), func(t *testing.T) {
			queue := redistest.Queue(t)
			queuetest.PublishCount(t, c, prefix, queue, 4)
			sched := start(t, s, prefix, seldom)
			knows := func(want string) {
				t.Helper()
				redistest.Eventually(t, 20*time.Second, func() (bool, string) {
					sched.mu.Lock()
					defer sched.mu.Unlock()
					known := sched.counts[queue].String()
					return known == want, fmt.Sprintf("the bridge knows %q, want %q", known, want)
				})
			}
			knows("1,4")
			if err := lua.Unregister(t.Context(), c, g, queue, lua.Counts{1, 4}); err != nil {
				t.Fatal(err)
			}
			if read {
				if err := sched.syncRegistry(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			queuetest.Do(t, c, "HSETNX", g.Queues, queue, "1")
			queuetest.Do(t, c, "XADD", g.Wake, "MAXLEN", "1", "*", "queues", "1")
			knows("1")
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

// A queue may grow while a bridge checks whether the queue was deleted.
func TestAGrowthBesideALookAtADeletedQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	grows := &hookedClient{Client: c, before: "EVALSHA"}
	grows.run = func() { queuetest.PublishCount(t, c, prefix, queue, 16) }
	b := madeAnew(t, grows, prefix, queue)
	grows.armed.Store(true)
	if err := b.syncRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.syncRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "known", b.counts[queue].String(), "1,16")
}

// hookedClient runs a function once before a command.
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

// madeAnew returns a bridge that knows four partitions of a queue. The queue was then deleted, and created again
// with one partition.
func madeAnew(t *testing.T, c rueidis.Client, prefix, queue string) *Scheduler {
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
	own, third := lua.NewKeys(prefix, queue), lua.NewKeys(prefix, queue+"/3")
	b := madeAnew(t, c, prefix, queue)
	b.live = []string{b.members.id}
	if err := b.syncRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	queuetest.Do(t, c, "HSET", third.Policy, "held", "1") // a message came while the queue was being deleted
	for _, id := range []string{"m-1", "m-2"} {
		queuetest.Do(t, c, "ZADD", third.Due, later, id)
		b.moveStrays(t.Context())
		redistest.Want(t, id+" is moved", textOf(t, c, "ZSCORE", own.Due, id), later)
		redistest.Want(t, "held, as another message may come", textOf(t, c, "HGET", third.Policy, "held"), "1")
	}
	for i := range 3 {
		b.strays[lua.PartitionName(queue, i+1)].watched = time.Now()
	}
	b.moveStrays(t.Context())
	redistest.Want(t, "strays", len(b.strays), 0)
	redistest.Want(t, "held after a minute", textOf(t, c, "HGET", third.Policy, "held"), "")
}

// Only the first live bridge watches them.
func TestABridgeThatIsNotTheFirstWatchesNoPartitions(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	b := madeAnew(t, s.Client(t), s.Prefix(t), redistest.Queue(t))
	b.live = []string{"another", b.members.id}
	if err := b.syncRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "forgotten", len(b.dropped), 3)
	if err := b.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "kept", len(b.dropped)+len(b.strays), 0)
}
