package planner

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// spread is a bench on a cluster of three masters: the queue, the registry, and another partition are each on a master
// of their own.
type spread struct {
	*bench
	nodes *redistest.ClusterNodes
	all   rueidis.Client // client of the whole cluster; the client of bench is connected to the master of the queue alone
	far   string         // key of the schedule of the partition that is on its own master
	third lua.Keys       // keys of a further partition, on any master
}

func newSpread(t *testing.T) *spread {
	t.Helper()
	nodes := redistest.Cluster(t, 3, 0)
	r := queuetest.New(t, nodes.Server())
	owner := func(key string) *redistest.Server { return nodes.Owner(nodes.Slot(key)) }
	registry := owner(lua.NewGlobals(r.Prefix).Queues)
	for i := range 300 {
		one := r.On(fmt.Sprint("q", i*i*7919, r.Queue))
		own := owner(one.Keys.Due)
		for far := 1; far <= 3 && own != registry; far++ {
			if third := owner(one.Part(far).Keys.Due); third != own && third != registry {
				b := &bench{one, New(r.Client, r.Prefix, "", slog.New(slog.DiscardHandler)), nil}
				one.Client = own.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
				return &spread{b, nodes, r.Client, one.Part(far).Keys.Due, one.Part(far%3 + 1).Keys}
			}
		}
	}
	t.Fatal("no queue with a partition on a third master")
	return nil
}

// takeAway takes the server of a key away. Either the server hangs, or the slot of the key has no server any more, as
// CLUSTER SHARDS of Redis 8 reports it after a master failed. In the second case the planner gets a client that starts
// afterwards.
func (s *spread) takeAway(key, how string) {
	s.T.Helper()
	slot := s.nodes.Slot(key)
	if how == "hangs" {
		master := s.nodes.Owner(slot)
		master.Pause()
		s.T.Cleanup(master.Resume)
		return
	}
	for _, node := range s.nodes.Servers {
		node.Do(s.T, "CLUSTER", "DELSLOTS", strconv.Itoa(slot))
	}
	s.Planner = New(s.Server.Client(s.T), s.Prefix, "", slog.New(slog.DiscardHandler))
}

// sixPasses makes six passes that all have something to plan, and checks their time. Regression: each pass failed, or
// waited 5 s for the server that was away.
func (s *spread) sixPasses(q *Queue) {
	s.T.Helper()
	began := time.Now()
	for range 6 {
		s.Do("DEL", s.Keys.Due, s.Keys.Payload)
		s.storePlan(s.serverTime())
		s.pass(q)
	}
	if took := time.Since(began); took > 15*time.Second {
		s.T.Errorf("6 passes took %v", took)
	}
}

// The number of partitions is in the registry, on another master than the recurrences. If that master is away,
// occurrences must be planned all the same.
func TestARegistryThatIsAwayDelaysNoOccurrence(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"hangs", "has no server"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newSpread(t)
			s.put(recurrence.Spec{Every: time.Second, Overlap: recurrence.OverlapSkip})
			q := s.freshQueue()
			s.pass(q)
			s.takeAway(lua.NewGlobals(s.Prefix).Queues, how)
			if how != "hangs" {
				q = s.freshQueue()
			}
			s.sixPasses(q)
			redistest.Want(t, "planned", len(s.scheduled()), 1)
			s.sixPasses(s.freshQueue())
			redistest.Want(t, "planned by a bridge that has just started", len(s.scheduled()), 1)
		})
	}
}

// An occurrence that is far away must wait for a partition that does not answer. The other recurrences of the queue
// must not wait.
func TestAPartitionThatIsAwayDelaysNoOtherRecurrence(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"hangs", "has no server"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newSpread(t)
			queuetest.PublishCount(t, s.all, s.Prefix, s.Rig.Queue, 4)
			s.put(recurrence.Spec{Every: 5 * time.Second, Missed: recurrence.MissedSkip})
			far := recurrence.Spec{Name: "far", Queue: s.Rig.Queue, Every: 240 * time.Hour}
			if _, err := s.Put(t.Context(), far); err != nil {
				t.Fatal(err)
			}
			s.Do("HDEL", s.Keys.Planned, "far")
			s.takeAway(s.far, how)
			s.sixPasses(s.freshQueue())
			if all := s.scheduled(); len(all) < 2 || strings.Contains(fmt.Sprint(all), "far@") {
				t.Errorf("planned: %v", all)
			}
		})
	}
}

// A user's message with the ID of an occurrence takes the place of the occurrence. This must hold for a message in a
// partition that answers, also while another partition has no server.
func TestAPartitionWithoutAServerHidesNoOther(t *testing.T) {
	t.Parallel()
	s := newSpread(t)
	queuetest.PublishCount(t, s.all, s.Prefix, s.Rig.Queue, 4)
	const every = 240 * time.Hour
	at := s.serverTime().Add(8 * time.Second)
	s.put(recurrence.Spec{Every: every, Phase: time.Duration(at.UnixMilli()%every.Milliseconds()) * time.Millisecond})
	s.Do("DEL", s.Keys.Due, s.Keys.Payload)
	own := []lua.Item{{ID: lua.OccurrenceID("r", at), When: lua.After(time.Hour), Payload: []byte("own")}}
	if _, err := lua.Enqueue(t.Context(), s.all, s.third, lua.Token{}, own, lua.Durability{}); err != nil {
		t.Fatal(err)
	}
	s.storePlan(at.Add(-time.Minute))
	s.takeAway(s.far, "has no server")
	s.pass(s.freshQueue())
	redistest.Want(t, "planned beside the user's message", strings.Join(s.scheduled(), " "), "")
	redistest.Want(t, "occurrences used", s.storedPlan().Used, 2)
}
