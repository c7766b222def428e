package lmstfy

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// clusterRig is a Redis Cluster and one API server of lmstfy's API on it. The embedded server is that API server.
type clusterRig struct {
	t       *testing.T
	cluster *redistest.ClusterNodes
	redis   *bridge.Redis
	*server
}

const clusterPrefix = "masters"

func newClusterRig(t *testing.T) *clusterRig {
	t.Helper()
	m := &clusterRig{t: t, cluster: redistest.Cluster(t, 3, 0)}
	var err error
	if m.redis, err = bridge.Dial(t.Context(), m.cluster.URL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.redis.Close)
	m.server = m.startServer()
	return m
}

// startServer returns another API server on the same cluster. It has cached nothing about the queues yet, like a
// gateway that has just started.
func (m *clusterRig) startServer() *server {
	m.t.Helper()
	puller := redistest.Must(pull.New(pull.Config{Client: m.redis.Client, Blocking: m.redis.Blocking,
		Prefix: clusterPrefix}))
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { puller.Run(ctx) })
	m.t.Cleanup(func() { stop(); running.Wait() })
	op := redistest.Must(admin.New(m.redis, clusterPrefix))
	s := newServer(gateway.Parts{Redis: m.redis, Prefix: clusterPrefix, Admin: op, Puller: puller,
		Logger: slog.New(slog.DiscardHandler), Timeout: 10 * time.Second})
	if _, err := s.clock.now(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	return s
}

// owner returns the master that holds a key.
func (m *clusterRig) owner(key string) *redistest.Server { return m.cluster.Owner(m.cluster.Slot(key)) }

// queueOn returns the name of a queue on the given master.
func (m *clusterRig) queueOn(master *redistest.Server, name string) string {
	return m.queueWhose(name, func(owner *redistest.Server) bool { return owner == master })
}

// queueNotOn returns the name of a queue on any other master.
func (m *clusterRig) queueNotOn(master *redistest.Server, name string) string {
	return m.queueWhose(name, func(owner *redistest.Server) bool { return owner != master })
}

// queueWhose returns the first of the queues ns:NAME-0, ns:NAME-1, … whose master fits.
func (m *clusterRig) queueWhose(name string, fits func(owner *redistest.Server) bool) string {
	for i := 0; ; i++ {
		queue := fmt.Sprint("ns:", name, "-", i)
		if fits(m.owner(lua.NewKeys(clusterPrefix, queue).Stream)) {
			return queue
		}
	}
}

// publish adds jobs that are ready.
func (m *clusterRig) publish(queue string, ids ...string) {
	m.t.Helper()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: m.redis, Prefix: clusterPrefix})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, id := range ids {
		if _, err := client.Schedule(m.t.Context(), queue, nil, bridge.WithID(id)); err != nil {
			m.t.Fatal(err)
		}
	}
}

// expectJob checks that a request for these queues gets the job want within the time limit of a gateway. A healthy
// master may be so slow that it seems to hang, so expectJob repeats a request that got no job.
func (m *clusterRig) expectJob(s *server, what, want string, queues ...string) {
	m.t.Helper()
	redistest.Eventually(m.t, 40*time.Second, func() (bool, string) {
		ctx, cancel := context.WithTimeout(m.t.Context(), s.parts.Timeout)
		defer cancel()
		c := &call{server: s, Call: &gateway.Call{Ctx: ctx}}
		r := pull.Request{Queues: queues, Group: Group, Count: 1, Within: time.Minute}
		found, err := c.pull(ctx, r, time.Now())
		if err != nil || len(found) != 1 {
			return false, fmt.Sprint(what, ": ", len(found), " jobs, ", err)
		}
		return found[0].ID == want, what + ": " + found[0].ID
	})
}

// expireSettings backdates the last check of each queue's settings, so that the next request checks them again.
func (m *clusterRig) expireSettings() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.ensured {
		m.ensured[name] = time.Now().Add(-time.Hour)
	}
}

// Regression: a request checked the settings of its queues one after the other. Each queue whose master hung took five
// seconds, so no time was left for the other queues. Three queues are on the master that hangs, and one is on another.
func TestQueuesOfAMasterThatIsAwayDelayNoOthers(t *testing.T) {
	t.Parallel()
	m := newClusterRig(t)
	g := lua.NewGlobals(clusterPrefix)
	var master *redistest.Server // holds no key that all queues need
	for _, one := range m.cluster.Masters() {
		if one != m.owner(g.Queues) && one != m.owner(g.Defaults) {
			master = one
		}
	}
	here := m.queueNotOn(master, "here")
	queues := []string{m.queueOn(master, "away-0"), m.queueOn(master, "away-1"), m.queueOn(master, "away-2"), here}
	m.publish(here, "a", "b", "c")
	m.expectJob(m.server, "before the master hangs", "a", queues...)
	fresh := m.startServer()
	master.Pause()
	m.expireSettings()
	m.expectJob(m.server, "at a server that has seen the queues before", "b", queues...)
	m.expectJob(fresh, "at a server that has never seen the queues", "c", queues...)
}

// Regression: while the master of the defaults was away, every request was refused as soon as the last check of its
// queue's settings was a minute old.
func TestAQueueIsServedWhileTheMasterOfTheDefaultsIsAway(t *testing.T) {
	t.Parallel()
	m := newClusterRig(t)
	master := m.owner(lua.NewGlobals(clusterPrefix).Defaults)
	queue := m.queueNotOn(master, "here")
	m.publish(queue, "a", "b", "c")
	m.expectJob(m.server, "before the master hangs", "a", queue)
	master.Pause()
	m.expireSettings()
	m.expectJob(m.server, "while the master hangs", "b", queue)
	master.Kill()
	m.expireSettings()
	m.expectJob(m.server, "after the master was killed", "c", queue)
}
