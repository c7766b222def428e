package lmstfy

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// masters is a cluster, and a Server for it.
type masters struct {
	t       *testing.T
	cluster *redistest.ClusterNodes
	redis   *bridge.Redis
	*Server
}

const prefixOfMasters = "masters"

func newMasters(t *testing.T) *masters {
	t.Helper()
	m := &masters{t: t, cluster: redistest.Cluster(t, 3, 0)}
	var err error
	if m.redis, err = bridge.Dial(t.Context(), m.cluster.URL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.redis.Close)
	m.Server = m.server()
	return m
}

// server returns another Server, like that of a gateway that starts.
func (m *masters) server() *Server {
	m.t.Helper()
	puller := redistest.Must(pull.New(pull.Config{Client: m.redis.Client, Blocking: m.redis.Blocking,
		Prefix: prefixOfMasters}))
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { puller.Run(ctx) })
	m.t.Cleanup(func() { stop(); running.Wait() })
	op := redistest.Must(admin.New(m.redis, prefixOfMasters))
	s := newServer(Config{Redis: m.redis, Prefix: prefixOfMasters, Admin: op, Puller: puller,
		Timeout: 10 * time.Second})
	if _, err := s.clock.now(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	return s
}

func (m *masters) owner(key string) *redistest.Server { return m.cluster.Owner(m.cluster.Slot(key)) }

// queue returns the name of a queue on the given master. If is is false, the queue is on another master.
func (m *masters) queue(name string, at *redistest.Server, is bool) string {
	for i := 0; ; i++ {
		one := fmt.Sprint("ns:", name, "-", i)
		if (m.owner(lua.NewKeys(prefixOfMasters, one).Stream) == at) == is {
			return one
		}
	}
}

// publish adds jobs that are ready.
func (m *masters) publish(queue string, ids ...string) {
	m.t.Helper()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: m.redis, Prefix: prefixOfMasters})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, id := range ids {
		if _, err := client.Schedule(m.t.Context(), queue, nil, bridge.WithID(id)); err != nil {
			m.t.Fatal(err)
		}
	}
}

// gives checks that a request for these queues gets a job within the time limit of a gateway. It repeats the request if
// a healthy master was so slow that it seemed away.
func (m *masters) gives(s *Server, what, want string, queues ...string) {
	m.t.Helper()
	redistest.Eventually(m.t, 40*time.Second, func() (bool, string) {
		ctx, cancel := context.WithTimeout(m.t.Context(), s.cfg.Timeout)
		defer cancel()
		c := &call{Server: s, ctx: ctx}
		r := pull.Request{Queues: queues, Group: Group, Count: 1, Within: time.Minute}
		found, err := c.pull(ctx, r, time.Now())
		if err != nil || len(found) != 1 {
			return false, fmt.Sprint(what, ": ", len(found), " jobs, ", err)
		}
		return found[0].ID == want, what + ": " + found[0].ID
	})
}

// old makes the last check of all queues' settings so old that the next request checks them again.
func (m *masters) old() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.ensured {
		m.ensured[name] = time.Now().Add(-time.Hour)
	}
}

// Regression: a request checked the settings of its queues one after the other. Each queue whose master hung took five
// seconds, so no time was left for the other queues.
func TestQueuesOfAMasterThatIsAwayDelayNoOthers(t *testing.T) {
	t.Parallel()
	m := newMasters(t)
	g := lua.NewGlobals(prefixOfMasters)
	var master *redistest.Server
	for _, one := range m.cluster.Masters() {
		if one != m.owner(g.Queues) && one != m.owner(g.Defaults) {
			master = one
		}
	}
	queues := make([]string, 4)
	for i := range 3 {
		queues[i] = m.queue(fmt.Sprint("away-", i), master, true)
	}
	queues[3] = m.queue("here", master, false)
	m.publish(queues[3], "a", "b", "c")
	m.gives(m.Server, "before", "a", queues...)
	fresh := m.server()
	master.Pause()
	m.old()
	m.gives(m.Server, "known before", "b", queues...)
	m.gives(fresh, "never seen before", "c", queues...)
}

// Regression: while the master of the defaults was away, every request was refused as soon as the last check of its
// queue's settings was a minute old.
func TestAQueueIsServedWhileTheMasterOfTheDefaultsIsAway(t *testing.T) {
	t.Parallel()
	m := newMasters(t)
	master := m.owner(lua.NewGlobals(prefixOfMasters).Defaults)
	queue := m.queue("here", master, false)
	m.publish(queue, "a", "b", "c")
	m.gives(m.Server, "before", "a", queue)
	master.Pause()
	m.old()
	m.gives(m.Server, "it hangs", "b", queue)
	master.Kill()
	m.old()
	m.gives(m.Server, "it is gone", "c", queue)
}
