package scheduler

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
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
