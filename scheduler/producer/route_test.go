package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

const toTheEnd = 1_000_000 // number of cuts that no test reaches, so that all matching commands fail

// A producer in use must learn of a growth within seconds, and no call may wait for that.
func TestProducerHearsOfGrowth(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p := newProducer(t, c, prefix)
	if _, err := p.Schedule(t.Context(), queue, Message{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	queuetest.EventuallyRegistered(t, c, prefix, queue, "1")
	queuetest.PublishCount(t, c, prefix, queue, 8)
	grown := time.Now()
	redistest.Eventually(t, registerEvery+5*time.Second, func() (bool, string) {
		r, err := p.Schedule(t.Context(), queue, Message{Delay: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		name := lua.PartitionName(queue, lua.Counts{1, 8}.Of(r.ID))
		n := queuetest.Integer(t, c, "EXISTS", lua.NewKeys(prefix, name).Due)
		return n == 1 && name != queue, fmt.Sprint(r.ID, " is not in ", name)
	})
	t.Logf("after %v", time.Since(grown))
	// If the registry loses the counts, the producer must keep them and register them again.
	queuetest.Do(t, c, "DEL", lua.NewGlobals(prefix).Queues)
	redistest.Eventually(t, registerEvery+5*time.Second, func() (bool, string) {
		if _, err := p.Schedule(t.Context(), queue, Message{Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		return queuetest.Integer(t, c, "HLEN", lua.NewGlobals(prefix).Queues) == 1, "not registered again"
	})
	queuetest.EventuallyRegistered(t, c, prefix, queue, "1,8")
}

// Close must register a queue that could not be registered before. Regression: a program ended soon after its only
// message, and its single try to register failed on a slow server. Nobody knew the queue until the discovery found it.
func TestCloseRegistersWhatCouldNotBeRegistered(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p := newProducer(t, c, prefix)
	if _, err := p.Schedule(t.Context(), queue, Message{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	queuetest.EventuallyRegistered(t, c, prefix, queue, "1")
	queuetest.Do(t, c, "DEL", lua.NewGlobals(prefix).Queues)
	p.routes[queue].state.Report(lua.ErrUnavailable)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "registered", queuetest.Integer(t, c, "HLEN", lua.NewGlobals(prefix).Queues), int64(1))
}

// The messages of one caller must keep their order within a partition, also if they are due at once.
func TestPartitionKeepsTheOrderOfItsMessages(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	queuetest.PublishCount(t, c, prefix, queue, 4)
	p := newProducer(t, c, prefix)
	made := map[int][]string{}
	for range 100 {
		results, err := p.ScheduleBatch(t.Context(), queue, make([]Message, 10))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			at := lua.Counts{1, 4}.Of(r.ID)
			made[at] = append(made[at], r.ID)
		}
	}
	for partition, ids := range made {
		var got []string
		for _, e := range queuetest.Entries(t, c, prefix, lua.PartitionName(queue, partition)) {
			got = append(got, e.ID)
		}
		if !slices.Equal(got, ids) || !slices.IsSorted(ids) {
			t.Errorf("partition %d: %v, made as %v", partition, got, ids)
		}
	}
	if len(made) != 4 {
		t.Errorf("%d partitions were used", len(made))
	}
}

// A chosen ID must be refused if the partition of an older count has it scheduled or in a dedup window.
func TestDuplicateIsRefusedAcrossGrowth(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		count := 1
		var ids []string
		for _, next := range []int{2, 8, 16} {
			p := newProducer(t, c, prefix)
			for i := range 8 {
				scheduled, window := fmt.Sprint("scheduled-", count, "-", i), fmt.Sprint("window-", count, "-", i)
				for _, m := range []Message{{ID: scheduled, Delay: time.Hour}, {ID: window, Dedup: time.Hour}} {
					if _, err := p.Schedule(t.Context(), queue, m); err != nil {
						t.Fatal(err)
					}
				}
				ids = append(ids, scheduled, window)
			}
			queuetest.PublishCount(t, c, prefix, queue, next)
			count = next
		}
		p := newProducer(t, c, prefix)
		for _, id := range ids {
			for _, m := range []Message{{ID: id}, {ID: id, Delay: time.Minute, Dedup: time.Minute}} {
				if _, err := p.Schedule(t.Context(), queue, m); !errors.Is(err, ErrDuplicate) {
					t.Errorf("%s: %v", id, err)
				}
			}
		}
		ended := queuetest.IDOf(lua.Counts{1, 2, 8, 16}, 5)
		queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queue).Seen, fmt.Sprint(queuetest.Now(t, c).UnixMilli()), ended)
		if _, err := p.Schedule(t.Context(), queue, Message{ID: ended}); err != nil {
			t.Errorf("its window has ended: %v", err)
		}
		// One batch with more chosen IDs than one pipeline takes, and with other messages among them.
		ms := []Message{{}, {ID: "new"}, {ID: "new\x1f"}}
		for i := range 2 * duplicatesChunk {
			ms = append(ms, Message{ID: fmt.Sprint("batch-", i)})
		}
		for _, id := range ids {
			ms = append(ms, Message{ID: id})
		}
		results, err := p.ScheduleBatch(t.Context(), queue, ms)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			var want error
			if slices.Contains(ids, ms[i].ID) {
				want = ErrDuplicate
			} else if i == 2 {
				want = lua.ErrInvalid
			}
			if !errors.Is(r.Err, want) || (want == nil) != (r.Err == nil) || ms[i].ID != "" && r.ID != ms[i].ID {
				t.Errorf("%q: %q, %v", ms[i].ID, r.ID, r.Err)
			}
		}
	})
}

// A call may replace a message in the partition of an older count. The message must be replaced in that partition,
// where it is found as before. Regression: the call was refused as a duplicate.
func TestReplaceGoesWhereTheMessageIs(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		counts := lua.Counts{1, 4, 8}
		id, window, both := queuetest.IDOf(counts, 5), queuetest.IDOf(counts, 6), queuetest.IDOf(counts, 7)
		old := newProducer(t, c, prefix)
		for _, m := range []Message{{ID: id, Delay: time.Hour, Payload: []byte("old")}, {ID: window, Dedup: time.Hour},
			{ID: both, Delay: time.Hour, Dedup: time.Hour, Payload: []byte("old")}} {
			if _, err := old.Schedule(t.Context(), queue, m); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range counts[1:] {
			queuetest.PublishCount(t, c, prefix, queue, n)
		}
		p := newProducer(t, c, prefix)
		for _, one := range []struct {
			id       string
			how      lua.Dedup
			delay    time.Duration
			replaced bool
			left     string // payload in partition 0 afterwards
		}{
			{id, lua.Replace, 2 * time.Hour, true, "1"},
			{id, lua.ReplaceLater, time.Hour, false, "1"},
			{id, lua.ReplaceEarlier, time.Minute, true, "3"},
			{window, lua.Replace, time.Hour, false, ""},
			{both, lua.ReplaceLater, 2 * time.Hour, true, "5"},
		} {
			payload := []byte(fmt.Sprint(map[string]int{"1": 1, "3": 3, "5": 5}[one.left]))
			r, err := p.Schedule(t.Context(), queue, Message{ID: one.id, Delay: one.delay, Payload: payload, Replace: one.how})
			if r.Replaced != one.replaced || (err == nil) != one.replaced || err != nil && !errors.Is(err, ErrDuplicate) {
				t.Errorf("%s of %s: replaced %v, %v", one.how, one.id, r.Replaced, err)
			}
			k := lua.NewKeys(prefix, queue)
			got, _ := c.Do(t.Context(), c.B().Hget().Key(k.Payload).Field(one.id).Build()).ToString()
			redistest.Want(t, "payload in partition 0", got, one.left)
		}
		scheduled := func(partition int) int64 {
			n, err := c.Do(t.Context(), c.B().Zcard().Key(lua.NewKeys(prefix, lua.PartitionName(queue, partition)).Due).Build()).
				AsInt64()
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		for partition := 1; partition < counts.Latest(); partition++ {
			redistest.Want(t, "messages in another partition", scheduled(partition), int64(0))
		}
		done, err := p.Cancel(t.Context(), queue, id)
		redistest.Want(t, "cancelled", fmt.Sprint(done, err), "true <nil>")
		if _, err := p.Schedule(t.Context(), queue, Message{ID: id, Delay: time.Hour, Replace: lua.Replace}); err != nil {
			t.Error("nothing is there to replace:", err)
		}
		redistest.Want(t, "messages in the partition of the newest count", scheduled(5), int64(1))
	})
}

// A message that is refused as a duplicate must be as durable as the caller asked, or the error must say that it is
// not.
func TestDuplicateInAnOlderPartitionWaitsForItsDurability(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	durably := func(c *Config) { c.Durability = lua.Durability{Replicas: 1, Timeout: 10 * time.Millisecond} } // no replica
	id := queuetest.IDOf(lua.Counts{1, 8}, 5)
	if _, err := newProducer(t, c, prefix, durably).Schedule(t.Context(), queue,
		Message{ID: id, Delay: time.Hour}); !errors.Is(err, lua.ErrNotDurable) {
		t.Fatal(err)
	}
	queuetest.PublishCount(t, c, prefix, queue, 8)
	p := newProducer(t, c, prefix, durably)
	if _, err := p.Schedule(t.Context(), queue, Message{ID: id}); !errors.Is(err, ErrDuplicate) ||
		!errors.Is(err, lua.ErrNotDurable) {
		t.Errorf("scheduled again: %v", err)
	}
	_ = p.Close()
	// The token of the first producer, which is not closed, may still be there.
	if n := queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, queue).Seen); n > 1 {
		t.Errorf("%d tokens are left", n)
	}
}

// Cancel and Reschedule must find a message in the partition of any count that the queue ever had. A producer that does
// not know of a growth yet must not answer "not scheduled".
func TestCancelAndRescheduleFindMessagesAcrossGrowth(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		old := newProducer(t, c, prefix) // knows no growth, because it is not used until the end
		if _, err := old.Schedule(t.Context(), queue, Message{ID: "first", Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, count := range []int{1, 2, 8, 32} {
			queuetest.PublishCount(t, c, prefix, queue, count)
			p := newProducer(t, c, prefix)
			for i := range 8 {
				id := fmt.Sprint("of-", count, "-", i)
				if _, err := p.Schedule(t.Context(), queue, Message{ID: id, Delay: time.Hour}); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
		}
		p, at := newProducer(t, c, prefix), time.UnixMilli(queuetest.Now(t, c).UnixMilli()).Add(time.Minute)
		for i, id := range ids {
			by := []*Producer{p, old}[i%2]
			if due, err := by.Reschedule(t.Context(), queue, id, 0, at); err != nil || !due.Equal(at) {
				t.Errorf("reschedule %s: %v, %v", id, due, err)
			}
			if i%4 < 2 {
				if done, err := by.Cancel(t.Context(), queue, id); err != nil || !done {
					t.Errorf("cancel %s: %v, %v", id, done, err)
				}
			}
		}
		done, err := p.cancel(t.Context(), queue, append([]string{"unknown"}, ids...))
		for i, yes := range done {
			if yes != (i > 0 && (i-1)%4 >= 2) {
				t.Errorf("cancel all: %d is %v", i, yes)
			}
		}
		if err != nil {
			t.Error(err)
		}
		if _, err := p.Reschedule(t.Context(), queue, ids[0], time.Hour, time.Time{}); !errors.Is(err, ErrNotScheduled) {
			t.Errorf("reschedule what was cancelled: %v", err)
		}
	})
}

// If a producer that does not know of a growth finds no message, it must read the registry and look once more.
func TestStaleCountsMakeNoDefiniteNo(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	old := newProducer(t, c, prefix)
	if _, err := old.Schedule(t.Context(), queue, Message{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	queuetest.PublishCount(t, c, prefix, queue, 8)
	id := queuetest.IDOf(lua.Counts{1, 8}, 5)
	if _, err := newProducer(t, c, prefix).Schedule(t.Context(), queue, Message{ID: id, Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if done, err := old.Cancel(t.Context(), queue, id); err != nil || !done {
		t.Errorf("cancel: %v, %v", done, err)
	}
	if done, err := old.Cancel(t.Context(), queue, id); err != nil || done {
		t.Errorf("cancel again: %v, %v", done, err)
	}
}

// While the registry cannot be read, messages must go to partition 0, which always exists. A message that is not found
// there may be in another partition, so the answer must not be "not scheduled".
func TestUnreadRegistryMakesNoDefiniteNo(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	queuetest.PublishCount(t, c, prefix, queue, 8)
	id := queuetest.IDOf(lua.Counts{1, 8}, 5)
	if _, err := newProducer(t, c, prefix).Schedule(t.Context(), queue, Message{ID: id, Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	proxy.CutBeforeForward(toTheEnd, "HGET")
	p := newProducer(t, proxy.Client(t, queuetest.WithoutPings), prefix, func(c *Config) { c.RetryTimeout = 2 * time.Second })
	asked := time.Now()
	r, err := p.Schedule(t.Context(), queue, Message{Delay: time.Hour})
	if err != nil || time.Since(asked) > registerTimeout+time.Second {
		t.Errorf("%v after %v", err, time.Since(asked))
	}
	if due := queuetest.Integer(t, c, "ZSCORE", lua.NewKeys(prefix, queue).Due, r.ID); due != r.Due.UnixMilli() {
		t.Errorf("due at %d, the receipt says %v", due, r.Due)
	}
	asked = time.Now()
	if _, err := p.Schedule(t.Context(), queue, Message{Delay: time.Hour}); err != nil || time.Since(asked) > registerTimeout/2 {
		t.Errorf("the second message waits as well: %v after %v", err, time.Since(asked))
	}
	for what, err := range map[string]error{
		"cancel":     func() error { _, err := p.Cancel(t.Context(), queue, id); return err }(),
		"reschedule": func() error { _, err := p.Reschedule(t.Context(), queue, id, time.Minute, time.Time{}); return err }(),
	} {
		if !errors.Is(err, lua.ErrUnavailable) || errors.Is(err, ErrNotScheduled) || errors.Is(err, ErrUncertain) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The same ID may be in another partition as well, so even this answer needs the registry.
	if done, err := p.Cancel(t.Context(), queue, r.ID); !errors.Is(err, lua.ErrUnavailable) || errors.Is(err, ErrUncertain) ||
		!done {
		t.Errorf("cancel what is in partition 0: %v, %v", done, err)
	}
	proxy.CutBeforeForward(0, "HGET")
	if done, err := p.Cancel(t.Context(), queue, id); err != nil || !done {
		t.Errorf("cancel, with the registry: %v, %v", done, err)
	}
}

// An ordering key decides the partition, so a message with a key must wait for the registry. In partition 0 it could
// overtake others of its key.
func TestAKeyWaitsForTheRegistry(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	queuetest.PublishCount(t, c, prefix, queue, 8)
	counts, key := lua.Counts{1, 8}, ""
	for n := 0; counts.Of(key) == 0; n++ {
		key = fmt.Sprint("key-", n)
	}
	proxy.CutBeforeForward(toTheEnd, "HGET")
	impatient := func(c *Config) { c.RetryTimeout = 2 * time.Second }
	p := newProducer(t, proxy.Client(t, queuetest.WithoutPings), prefix, impatient)
	results, err := p.ScheduleBatch(t.Context(), queue, []Message{{Key: key, Delay: time.Hour}, {Delay: time.Hour}})
	if err != nil || !errors.Is(results[0].Err, lua.ErrUnavailable) || errors.Is(results[0].Err, ErrUncertain) {
		t.Errorf("without the registry: %+v, %v", results, err)
	}
	if results[1].Err != nil {
		t.Errorf("a message without a key: %v", results[1].Err)
	}
	scheduled := func(partition int) int64 {
		return queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, lua.PartitionName(queue, partition)).Due)
	}
	if n := scheduled(0); n != 1 {
		t.Errorf("%d messages are in partition 0", n)
	}
	patient := newProducer(t, proxy.Client(t, queuetest.WithoutPings), prefix)
	answer := make(chan error, 1)
	go func() {
		_, err := patient.Schedule(t.Context(), queue, Message{ID: "keyed", Key: key, Delay: time.Hour})
		answer <- err
	}()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		patient.mu.Lock()
		defer patient.mu.Unlock()
		r := patient.routes[queue]
		return r != nil && r.known.Load() != nil, "the registry was not asked for"
	})
	proxy.CutBeforeForward(0, "HGET")
	if err := <-answer; err != nil {
		t.Errorf("when the registry is back: %v", err)
	}
	if n := scheduled(counts.Of(key)); n != 1 {
		t.Errorf("%d messages are in the partition of the key", n)
	}
}

// A chosen ID is looked up in all partitions, so its message must wait for the registry. Regression: partition 0
// accepted the ID once more, while another partition held or remembered it.
func TestAChosenIDWaitsForTheRegistry(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	queuetest.PublishCount(t, c, prefix, queue, 8)
	counts := lua.Counts{1, 8}
	scheduled := Message{ID: queuetest.IDOf(counts, 5), Delay: time.Hour}
	remembered := Message{ID: queuetest.IDOf(counts, 6), Dedup: time.Hour}
	fresh := Message{ID: queuetest.IDOf(counts, 7), Delay: time.Hour}
	replacing := scheduled
	replacing.Replace = lua.Replace
	for _, m := range []Message{scheduled, remembered} {
		if _, err := newProducer(t, c, prefix).Schedule(t.Context(), queue, m); err != nil {
			t.Fatal(err)
		}
	}
	proxy.CutBeforeForward(toTheEnd, "HGET")
	ms := []Message{scheduled, remembered, fresh, replacing, {Delay: time.Hour}}
	p := newProducer(t, proxy.Client(t, queuetest.WithoutPings), prefix, func(c *Config) { c.RetryTimeout = 2 * time.Second })
	results, err := p.ScheduleBatch(t.Context(), queue, ms)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results[:len(ms)-1] {
		if !errors.Is(r.Err, lua.ErrUnavailable) || errors.Is(r.Err, ErrUncertain) || r.ID != ms[i].ID {
			t.Errorf("%d without the registry: %+v", i, r)
		}
	}
	if generated := results[len(ms)-1]; generated.Err != nil {
		t.Errorf("a message without an ID: %v", generated.Err)
	}
	redistest.Want(t, "in partition 0", queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, queue).Due), int64(1))

	user := "no-registry-" + queue
	queuetest.Do(t, c, "ACL", "SETUSER", user, "reset", "on", ">pw", "~"+prefix+":{*", "&*", "+@all")
	defer queuetest.Do(t, c, "ACL", "DELUSER", user)
	login := func(o *rueidis.ClientOption) { o.Username, o.Password = user, "pw" }
	results, err = newProducer(t, s.Client(t, login), prefix).ScheduleBatch(t.Context(), queue, ms)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if generated := ms[i].ID == ""; errors.Is(r.Err, lua.ErrDenied) == generated || generated && r.Err != nil {
			t.Errorf("%d where the registry is denied: %+v", i, r)
		}
	}
	redistest.Want(t, "in partition 0", queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, queue).Due), int64(2))

	patient := newProducer(t, proxy.Client(t, queuetest.WithoutPings), prefix)
	answer := make(chan []Result, 1)
	go func() {
		results, _ := patient.ScheduleBatch(t.Context(), queue, ms[:3])
		answer <- results
	}()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		patient.mu.Lock()
		defer patient.mu.Unlock()
		r := patient.routes[queue]
		return r != nil && r.known.Load() != nil, "the registry was not asked for"
	})
	proxy.CutBeforeForward(0, "HGET")
	results = <-answer
	for i, want := range []error{ErrDuplicate, ErrDuplicate, nil} {
		if len(results) != 3 || !errors.Is(results[i].Err, want) {
			t.Errorf("when the registry is back: %+v", results)
			break
		}
	}
	name := lua.PartitionName(queue, 7)
	redistest.Want(t, "in the partition of the ID", queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, name).Due),
		int64(1))
}

// If the reply of one partition is lost, the answer must be ErrUncertain, whatever the other partitions answer.
func TestLostReplyOfOnePartitionLeavesTheAnswerOpen(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	queuetest.PublishCount(t, c, prefix, queue, 8)
	p := newProducer(t, proxy.Client(t), prefix)
	counts := lua.Counts{1, 8}
	for _, id := range []string{queuetest.IDOf(counts, 3), queuetest.IDOf(counts, 0)} {
		if _, err := p.Schedule(t.Context(), queue, Message{ID: id, Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	// These calls load the scripts. Otherwise the reply that gets lost would only say that the script is not known.
	if done, err := p.Cancel(t.Context(), queue, "unknown"); done || err != nil {
		t.Errorf("cancel of none: %v, %v", done, err)
	}
	if _, err := p.Reschedule(t.Context(), queue, "unknown", time.Hour, time.Time{}); !errors.Is(err, ErrNotScheduled) {
		t.Errorf("reschedule of none: %v", err)
	}
	// Both partitions that may hold the message are asked at once. If the lost reply is that of partition 0, its repeat
	// finds nothing, and the answer is definite. So try until the reply of partition 3 is lost.
	for uncertain := false; !uncertain; {
		id := queuetest.IDOf(counts, 3)
		if _, err := p.Schedule(t.Context(), queue, Message{ID: id, Delay: time.Hour}); err != nil &&
			!errors.Is(err, ErrDuplicate) {
			t.Fatal(err)
		}
		loseReply(p, proxy)
		done, err := p.Cancel(t.Context(), queue, id)
		if uncertain = errors.Is(err, ErrUncertain); done == uncertain || !done && !uncertain {
			t.Fatalf("cancel after a lost reply: %v, %v", done, err)
		}
		if n := queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, lua.PartitionName(queue, 3)).Due); n != 0 {
			t.Fatalf("%d are left (%v, %v)", n, done, err)
		}
	}
	loseReply(p, proxy)
	if _, err := p.Reschedule(t.Context(), queue, "unknown", time.Hour, time.Time{}); !errors.Is(err, ErrUncertain) ||
		errors.Is(err, ErrNotScheduled) {
		t.Errorf("reschedule after a lost reply: %v", err)
	}
	if done, err := p.Cancel(t.Context(), queue, queuetest.IDOf(counts, 0)); !done || err != nil {
		t.Errorf("cancel of another: %v, %v", done, err)
	}
	// A partition that cannot be read may hold the same ID, so the error must be reported even if the message is found
	// elsewhere.
	minimal := queuetest.IDOf(counts, 4)
	// As by a producer that knows no partitions.
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queue).Due, "1e13", minimal)
	queuetest.Do(t, c, "SET", lua.NewKeys(prefix, lua.PartitionName(queue, 4)).Meta, "x")
	if done, err := p.cancel(t.Context(), queue, []string{minimal}); !errors.Is(err, lua.ErrWrongType) || !done[0] {
		t.Errorf("found in partition 0, though another one cannot be used: %v, %v", done, err)
	}
	if done, err := p.cancel(t.Context(), queue, []string{minimal}); !errors.Is(err, lua.ErrWrongType) || done[0] {
		t.Errorf("found nowhere, and another one cannot be used: %v, %v", done, err)
	}
}

// A caller that waits for the first read of the registry must end with its own context, and its message must not be
// stored.
func TestFirstLookEndsWithTheCallersContext(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	prefix, queue, proxy := s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	p := newProducer(t, proxy.Client(t), prefix)
	proxy.Stall(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := p.Schedule(ctx, queue, Message{ID: "a"}); !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, ErrUncertain) {
		t.Errorf("schedule: %v", err)
	}
	proxy.Stall(false)
	if _, err := p.Schedule(t.Context(), queue, Message{ID: "a"}); err != nil {
		t.Errorf("schedule when the server answers again: %v", err)
	}
}

// After a rest a producer must read the partition count again. Regression: it used the count of its last look, however
// old. After a growth, messages of one key were in two partitions, and an ID was taken twice.
func TestAProducerThatRestedReadsTheCountAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	counts := lua.Counts{1, 8}
	p := newProducer(t, proxy.Client(t, queuetest.WithoutPings), prefix)
	if _, err := p.Schedule(t.Context(), queue, Message{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	p.busy.Wait()
	queuetest.PublishCount(t, c, prefix, queue, 8)
	known := Message{ID: queuetest.IDOf(counts, 5), Delay: time.Hour}
	if _, err := newProducer(t, c, prefix).Schedule(t.Context(), queue, known); err != nil {
		t.Fatal(err)
	}
	r, err := p.enter(t.Context(), queue)
	if err != nil {
		t.Fatal(err)
	}
	p.busy.Done()
	expireCounts := func() {
		r.known.Store(&knownCounts{r.known.Load().counts, time.Now().Add(-maxCountsAge)})
	}

	expireCounts()
	if _, err := p.Schedule(t.Context(), queue, known); !errors.Is(err, ErrDuplicate) {
		t.Errorf("an ID that another partition holds: %v", err)
	}
	if _, err := p.Schedule(t.Context(), queue, Message{Key: queuetest.IDOf(counts, 6), Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "messages in the partition of the key",
		queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, lua.PartitionName(queue, 6)).Due), int64(1))

	// While the registry does not answer, one call waits for it, and the next ones do not.
	p.busy.Wait()
	expireCounts()
	proxy.CutBeforeForward(toTheEnd, "HGET")
	for range 20 {
		if _, err := p.Schedule(t.Context(), queue, Message{Key: "k", Delay: time.Hour}); err != nil {
			t.Fatalf("without the registry: %v", err)
		}
	}
}

// Regression: a producer or a gateway rested while its queue was deleted and created again. With its next message it
// registered the old partition count, and the message went to a partition without groups and settings.
func TestAProducerThatRestedForgetsThePartitionsOfADeletedQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	g, counts := lua.NewGlobals(prefix), lua.Counts{1, 8}
	for what, m := range map[string]Message{
		"a generated ID": {Delay: time.Hour},
		"a chosen ID":    {ID: queuetest.IDOf(counts, 5), Delay: time.Hour},
		"a key":          {Key: queuetest.IDOf(counts, 6), Delay: time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			queue := redistest.Queue(t)
			p := newProducer(t, c, prefix, func(c *Config) {
				c.NewID = func() string { return queuetest.IDOf(counts, 7) }
			})
			queuetest.PublishCount(t, c, prefix, queue, 8)
			if _, err := p.Schedule(t.Context(), queue, Message{Delay: time.Hour}); err != nil {
				t.Fatal(err)
			}
			p.busy.Wait()
			queuetest.Do(t, c, "DEL", lua.NewKeys(prefix, lua.PartitionName(queue, 7)).Due)
			if err := lua.Unregister(t.Context(), c, g, queue, counts); err != nil {
				t.Fatal(err)
			}
			queuetest.Do(t, c, "HSETNX", g.Queues, queue, "1")
			r, err := p.enter(t.Context(), queue)
			if err != nil {
				t.Fatal(err)
			}
			p.busy.Done()
			r.known.Store(&knownCounts{r.known.Load().counts, time.Now().Add(-maxCountsAge)})
			if _, err := p.Schedule(t.Context(), queue, m); err != nil {
				t.Fatal(err)
			}
			p.busy.Wait()
			scheduled := queuetest.Integer(t, c, "ZCARD", lua.NewKeys(prefix, queue).Due)
			redistest.Want(t, "in partition 0", scheduled, int64(1))
			queuetest.EventuallyRegistered(t, c, prefix, queue, "1")
			// The producer still learns of a growth, and registers the count again if the registry was lost.
			if _, err := lua.RegisterCounts(t.Context(), c, g, map[string]lua.Counts{queue: counts}); err != nil {
				t.Fatal(err)
			}
			if err := r.askRegistry(t.Context()); err != nil {
				t.Fatal(err)
			}
			queuetest.Do(t, c, "DEL", g.Queues)
			if err := r.askRegistry(t.Context()); err != nil {
				t.Fatal(err)
			}
			queuetest.EventuallyRegistered(t, c, prefix, queue, "1,8")
		})
	}
}

// A producer that only looks for messages remembers the partitions of a queue as well. Regression: it never forgot
// those of a deleted queue, and each look made them count as read just now.
func TestAProducerThatOnlyLooksForgetsThePartitionsOfADeletedQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	g, counts := lua.NewGlobals(prefix), lua.Counts{1, 8}
	p := newProducer(t, c, prefix)
	queuetest.PublishCount(t, c, prefix, queue, 8)
	look := func() {
		t.Helper()
		if found, err := p.Cancel(t.Context(), queue, "absent"); found || err != nil {
			t.Fatal(found, err)
		}
		p.busy.Wait()
	}
	look()
	if err := lua.Unregister(t.Context(), c, g, queue, counts); err != nil {
		t.Fatal(err)
	}
	r, err := p.enter(t.Context(), queue)
	if err != nil {
		t.Fatal(err)
	}
	p.busy.Done()
	redistest.Want(t, "known", r.known.Load().counts.String(), "1,8")
	if err := r.askRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "known", r.known.Load().counts.String(), "1")
	redistest.Want(t, "registered", queuetest.Integer(t, c, "HEXISTS", g.Queues, queue), int64(0))
}
