package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// To the schedulers each partition is a queue: exactly one of them must own it, wake for it and drain it.
func TestPartitionsAreSharedAndDrained(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		bridges := []running{start(t, s, prefix, seldom), start(t, s, prefix, seldom)}
		p := newProducer(t, c, prefix)
		if _, err := p.Schedule(t.Context(), queue, producer.Message{ID: "before", Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		const count = 16
		counts := lua.Counts{1, count}
		queuetest.PublishCount(t, c, prefix, queue, count)
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			status := fmt.Sprintf("%+v %+v", bridges[0].Status(), bridges[1].Status())
			for _, b := range bridges {
				if st := b.Status(); st.Queues != 1 || st.Partitions != count || len(st.Live) != 2 {
					return false, status
				}
			}
			for _, name := range counts.Names(queue) {
				if bridges[0].owns(name) == bridges[1].owns(name) {
					return false, name + " is not owned by one: " + status
				}
			}
			return true, ""
		})
		if names, err := Queues(t.Context(), c, prefix); err != nil || fmt.Sprint(names) != fmt.Sprint([]string{queue}) {
			t.Errorf("queues: %v, %v", names, err)
		}

		p = newProducer(t, c, prefix) // a new producer, which knows the new count
		ms := make([]producer.Message, 20*count)
		for i := range ms {
			ms[i] = producer.Message{Delay: 50 * time.Millisecond}
			if i%2 == 0 {
				ms[i].ID = fmt.Sprint("own-", i)
			}
		}
		results, err := p.ScheduleBatch(t.Context(), queue, ms)
		if err != nil {
			t.Fatal(err)
		}
		want := map[int]int{}
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			want[counts.Of(r.ID)]++
		}
		for partition, n := range want {
			name := lua.PartitionName(queue, partition)
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				got := queuetest.Entries(t, c, prefix, name)
				for _, e := range got {
					if counts.Of(e.ID) != partition {
						t.Fatalf("%s is in %s", e.ID, name)
					}
				}
				return len(got) == n, fmt.Sprint(name, " has ", len(got), " of ", n)
			})
		}
	})
}

// If the registry is lost, or overwritten by a program that does not know partitions, the schedulers must register
// every count again that they know.
func TestForgottenCountsAreRegisteredAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	b := start(t, s, prefix, func(c *Config) { seldom(c); c.RegistryInterval = 100 * time.Millisecond })
	for queue, count := range map[string]int{"grown": 4, "plain": 1} {
		queuetest.PublishCount(t, c, prefix, queue, count)
	}
	queuetest.PublishCount(t, c, prefix, "grown", 2)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		st := b.Status()
		return st.Queues == 2 && st.Partitions == 5, fmt.Sprintf("%+v", st)
	})
	queuetest.EventuallyRegistered(t, c, prefix, "grown", "1,2,4")
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		b.owners.mu.Lock()
		defer b.owners.mu.Unlock()
		known := b.owners.counts["grown"].String()
		return known == "1,2,4", known
	})
	key := lua.NewGlobals(prefix).Queues
	for _, command := range [][]string{{"DEL", key}, {"HSET", key, "grown", "1"}, {"HSET", key, "grown", "1,4"},
		{"HDEL", key, "plain"}, {"HSET", key, "grown", "8"}} {
		queuetest.Do(t, c, command...)
		queuetest.EventuallyRegistered(t, c, prefix, "plain", "1")
		if command[len(command)-1] == "8" {
			queuetest.EventuallyRegistered(t, c, prefix, "grown", "1,2,4,8")
		} else {
			queuetest.EventuallyRegistered(t, c, prefix, "grown", "1,2,4")
		}
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		st := b.Status()
		return st.Partitions == 9 && st.Owned == 9, fmt.Sprintf("%+v", st)
	})
}

// If the registry is lost and no process knows the counts any more, the counts must come back from the partitions that
// a growth prepared. A partition counts if it, and each partition before it, has the groups and the settings of
// partition 0. Messages in other partitions are moved to the partitions of their IDs.
func TestLostCountsComeBackFromPreparedPartitions(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t) // an empty server is scanned in one step
	c, prefix := s.Client(t), s.Prefix(t)
	for _, name := range []string{"lost/2", "lost/5", "grown/3", "grown/6", "whole/1", "odd/x", "odd/0", "odd/256"} {
		queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, name).Due, "1", "a")
	}
	for queue, n := range map[string]int{"lost": 6, "grown": 4} {
		for _, name := range (lua.Counts{n}).Names(queue) {
			queuetest.Do(t, c, "XGROUP", "CREATE", lua.NewKeys(prefix, name).Stream, "g", "0", "MKSTREAM")
			queuetest.Do(t, c, "HSET", lua.NewKeys(prefix, name).Policy, "max_attempts", "5")
		}
	}
	// These two partitions do not count.
	queuetest.Do(t, c, "XGROUP", "CREATE", lua.NewKeys(prefix, "grown/4").Stream, "g", "0", "MKSTREAM") // without settings
	queuetest.Do(t, c, "XGROUP", "CREATE", lua.NewKeys(prefix, "grown/6").Stream, "g", "0", "MKSTREAM") // behind a gap
	queuetest.PublishCount(t, c, prefix, "whole", 8)
	b := start(t, s, prefix, func(c *Config) { seldom(c); c.DiscoverInterval = 100 * time.Millisecond })
	queuetest.EventuallyRegistered(t, c, prefix, "lost", "1,6")
	queuetest.EventuallyRegistered(t, c, prefix, "grown", "1,4")
	grown := lua.PartitionName("grown", lua.Counts{1, 4}.Of("a"))
	for name, n := range map[string]int{"lost/2": 1, "lost/5": 1, "grown/3": 1, grown: 1, "whole/1": 1} {
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return len(queuetest.Entries(t, c, prefix, name)) >= n, name + " is not drained"
		})
	}
	queuetest.EventuallyRegistered(t, c, prefix, "whole", "1,8")
	if st := b.Status(); st.Queues != 3 || st.Partitions != 6+4+8 {
		t.Errorf("status %+v", st)
	}
}

// Partition 0 may have a group or a setting that the other partitions lack, because it was added later. If the registry
// is then lost, a partition must still count if it is proved to have been published. The proof is a stream that has a
// group, and also entries or dead letters. Groups alone are no proof, because a growth may have stopped half-way.
// Entries in a stream without a group are no proof either. Regression: such partitions did not count, and nobody read
// them.
func TestLostCountsComeBackFromWhatPartitionsHold(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	key := func(name string) lua.Keys { return lua.NewKeys(prefix, name) }
	for queue, n := range map[string]int{"group": 4, "settings": 4, "asleep": 3, "buried": 2, "half": 3, "none": 2} {
		for _, name := range (lua.Counts{n}).Names(queue) {
			queuetest.Do(t, c, "XGROUP", "CREATE", key(name).Stream, "g", "0", "MKSTREAM")
		}
		queuetest.Do(t, c, "ZADD", key(queue).Due, "1", "a")
	}
	queuetest.Do(t, c, "XGROUP", "CREATE", key("group").Stream, "later", "0")
	queuetest.Do(t, c, "HSET", key("settings").Policy, "max_attempts", "5")
	for _, name := range []string{"group/3", "settings/3"} {
		queuetest.Do(t, c, "XADD", key(name).Stream, "1-1", "id", "ready")
		queuetest.Do(t, c, "ZADD", key(name).Due, "1", "b")
	}
	queuetest.Do(t, c, "XADD", key("asleep/2").Stream, "1-1", "id", "ready") // has no schedule
	queuetest.Do(t, c, "XGROUP", "CREATE", key("buried").Stream, "later", "0")
	queuetest.Do(t, c, "XADD", key("buried/1").Dead, "1-1", "id", "dead")
	queuetest.Do(t, c, "XGROUP", "CREATE", key("half").Stream, "later", "0")
	queuetest.Do(t, c, "ZADD", key("half/1").Due, "1", "b")
	queuetest.Do(t, c, "XADD", key("none/2").Stream, "1-1", "id", "ready")
	start(t, s, prefix, func(c *Config) { seldom(c); c.DiscoverInterval = 100 * time.Millisecond })
	for queue, counts := range map[string]string{"group": "1,4", "settings": "1,4", "asleep": "1,3", "buried": "1,2", "half": "1",
		"none": "1,2"} {
		queuetest.EventuallyRegistered(t, c, prefix, queue, counts)
		if n, err := GrownTo(t.Context(), c, prefix, queue); err != nil || n != lua.ParseCounts(counts).Latest() {
			t.Errorf("%s has grown to %d, %v; the registry says %s", queue, n, err, counts)
		}
	}
	for name, n := range map[string]int{"group/3": 2, "settings/3": 2, "half": 2, "none": 1, "none/2": 1} {
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return len(queuetest.Entries(t, c, prefix, name)) == n, fmt.Sprint(len(queuetest.Entries(t, c, prefix, name)),
				" entries in ", name)
		})
	}
}

// A count may have been published that this scheduler does not know yet. Discovery must read the registry before it
// makes up a count from the partitions that it finds.
func TestDiscoveryAsksBeforeItMakesACount(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	b, err := New(Config{Client: c, Blocking: c, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	b.owners.live = []string{b.owners.self}
	ctx, cancel := context.WithCancel(t.Context())
	defer b.loops.Wait()
	defer cancel()
	queuetest.PublishCount(t, c, prefix, "fresh", 16)
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, "fresh/3").Due, "1", "a")
	if err := b.Discover(ctx); err != nil {
		t.Fatal(err)
	}
	queuetest.EventuallyRegistered(t, c, prefix, "fresh", "1,16")
	if st := b.Status(); st.Partitions != 16 {
		t.Errorf("status %+v", st)
	}
}

// However many partitions a queue has, any scheduler must drain an overdue one. A survey looks at some of the
// partitions, and the next survey at the following ones.
func TestOverduePartitionIsDrainedByAnyone(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	queuetest.PublishCount(t, c, prefix, "wide", lua.MaxPartitions)
	queuetest.PublishCount(t, c, prefix, "other", 2)
	// This scheduler does not run, so it owns nothing.
	b, err := New(Config{Client: c, Blocking: c, Prefix: prefix, Overdue: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.readRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := lua.PartitionName("wide", lua.MaxPartitions-1)
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, late).Due, "1", "a")
	for range 2 { // 258 partitions take two surveys
		if err := b.Survey(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(queuetest.Entries(t, c, prefix, late)); n != 1 {
		t.Errorf("%d entries in %s", n, late)
	}
}
