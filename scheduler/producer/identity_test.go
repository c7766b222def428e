package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// identityRig is a queue with eight partitions.
type identityRig struct {
	*testing.T
	c      rueidis.Client
	p      *Producer
	prefix string
	queue  string
}

func newIdentityRig(t *testing.T, s *redistest.Server) *identityRig {
	t.Helper()
	r := &identityRig{T: t, c: s.Client(t), prefix: s.Prefix(t), queue: redistest.Queue(t)}
	queuetest.PublishCount(t, r.c, r.prefix, r.queue, 8)
	r.p = newProducer(t, r.c, r.prefix)
	return r
}

// keyOf returns an ordering key of a partition.
func keyOf(partition int) string { return queuetest.IDOf(lua.Counts{1, 8}, partition) }

func (r *identityRig) keys(partition int) lua.Keys {
	return lua.NewKeys(r.prefix, lua.PartitionName(r.queue, partition))
}

// mustSchedule schedules a message, and fails the test unless it was stored.
func (r *identityRig) mustSchedule(m Message) Receipt {
	r.Helper()
	receipt, err := r.p.Schedule(r.Context(), r.queue, m)
	if err != nil {
		r.Fatalf("%s with key %q: %v", m.ID, m.Key, err)
	}
	return receipt
}

// mustRefuse schedules a message, and fails the test unless it was refused as a duplicate.
func (r *identityRig) mustRefuse(m Message) {
	r.Helper()
	if _, err := r.p.Schedule(r.Context(), r.queue, m); !errors.Is(err, ErrDuplicate) {
		r.Errorf("%s with key %q: %v, want ErrDuplicate", m.ID, m.Key, err)
	}
}

// wantScheduled checks that an ID is scheduled with a payload in one partition, and nowhere else; -1 = nowhere at all.
func (r *identityRig) wantScheduled(id string, partition int, payload string) {
	r.Helper()
	for i := range 8 {
		k := r.keys(i)
		_, err := r.c.Do(r.Context(), r.c.B().Zscore().Key(k.Due).Member(id).Build()).AsFloat64()
		if there := err == nil; there != (i == partition) {
			r.Errorf("%s is scheduled in partition %d: %t, want partition %d", id, i, there, partition)
		}
		got, _ := r.c.Do(r.Context(), r.c.B().Hget().Key(k.Payload).Field(id).Build()).ToString()
		if want := map[bool]string{true: payload}[i == partition]; got != want {
			r.Errorf("%s has the payload %q in partition %d, want %q", id, got, i, want)
		}
		meta := queuetest.Integer(r.T, r.c, "HEXISTS", k.Meta, id)
		if meta == 1 && i != partition {
			r.Errorf("%s has left meta in partition %d", id, i)
		}
	}
}

// An ID must be unique in its queue, although the ordering key of a message decides its partition. Regression: the same
// ID with two keys went to two partitions, and both messages were delivered. A dedup window let the ID pass once for
// each key, and cancel removed one of the two.
func TestAnIDBelongsToItsQueueWhateverItsKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newIdentityRig(t, s)
		a, b := keyOf(3), keyOf(5)
		r.mustSchedule(Message{ID: "x", Key: a, Delay: time.Hour, Payload: []byte("a")})
		r.mustRefuse(Message{ID: "x", Key: b, Delay: time.Hour})
		r.mustRefuse(Message{ID: "x", Delay: time.Hour})
		r.wantScheduled("x", 3, "a")
		id := keyOf(6)
		r.mustSchedule(Message{ID: id, Delay: time.Hour, Payload: []byte("plain")})
		r.mustRefuse(Message{ID: id, Key: a, Delay: time.Hour})
		r.wantScheduled(id, 6, "plain")

		r.mustSchedule(Message{ID: "once", Key: a, Dedup: time.Hour})
		if d, err := lua.Drain(t.Context(), r.c, r.keys(3), 10, 1<<20); err != nil || d.Moved != 1 {
			t.Fatalf("drain: %+v, %v", d, err)
		}
		r.mustRefuse(Message{ID: "once", Key: b, Dedup: time.Hour})
		r.mustRefuse(Message{ID: "once"})
	})
}

// If a batch names an ID twice, with keys of two partitions, the second message must be compared with the first.
func TestAnIDBelongsToItsQueueWithinABatch(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	a, b, c := keyOf(3), keyOf(5), keyOf(7)
	results, err := r.p.ScheduleBatch(t.Context(), r.queue, []Message{
		{ID: "x", Key: a, Delay: time.Hour, Payload: []byte("a")},
		{ID: "x", Key: b, Delay: time.Hour, Payload: []byte("b")},
		{ID: "y", Key: b, Delay: time.Hour, Payload: []byte("first")},
		{ID: "y", Key: c, Delay: time.Hour, Payload: []byte("second"), Replace: lua.Replace},
		{ID: "y", Key: a, Delay: time.Hour, Payload: []byte("third"), Replace: lua.Replace},
		{ID: "z", Key: "\x01", Delay: time.Hour},
		{ID: "z", Key: b, Delay: time.Hour, Payload: []byte("z")},
	})
	if err != nil {
		t.Fatal(err)
	}
	var invalid *lua.InvalidError
	for i, holds := range []bool{results[0].Err == nil, errors.Is(results[1].Err, ErrDuplicate), results[2].Err == nil,
		results[3].Err == nil && results[3].Replaced, results[4].Err == nil && results[4].Replaced,
		errors.As(results[5].Err, &invalid), results[6].Err == nil} {
		if !holds {
			t.Errorf("result %d: %+v", i, results[i])
		}
	}
	r.wantScheduled("x", 3, "a")
	r.wantScheduled("y", 3, "third")
	r.wantScheduled("z", 5, "z")
}

// A replacement with another key must go to the partition of its key, where it takes its turn, and the old message must
// be cancelled where it is. Regression: it replaced nothing, and both were delivered.
func TestReplaceTakesThePlaceOfAnotherKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newIdentityRig(t, s)
		a, b, id := keyOf(3), keyOf(5), keyOf(2)
		replaces := func(m Message, partition int, payload string) {
			t.Helper()
			m.Payload = []byte(payload)
			if receipt := r.mustSchedule(m); !receipt.Replaced {
				t.Errorf("%s with key %q: the receipt says it replaced nothing", m.ID, m.Key)
			}
			r.wantScheduled(m.ID, partition, payload)
		}
		r.mustSchedule(Message{ID: id, Key: a, Delay: time.Hour})
		replaces(Message{ID: id, Key: b, Delay: time.Minute, Replace: lua.Replace}, 5, "another key")
		replaces(Message{ID: id, Key: b, Delay: time.Hour, Replace: lua.Replace}, 5, "the same key")
		replaces(Message{ID: id, Key: a, Delay: 2 * time.Hour, Replace: lua.ReplaceLater}, 3, "later")
		replaces(Message{ID: id, Key: b, Delay: time.Hour, Replace: lua.ReplaceEarlier}, 5, "earlier")
		r.mustRefuse(Message{ID: id, Key: a, Delay: time.Minute, Replace: lua.ReplaceLater})
		r.mustRefuse(Message{ID: id, Key: a, Delay: 2 * time.Hour, Replace: lua.ReplaceEarlier})
		r.wantScheduled(id, 5, "earlier")
		// A message without a key takes no turn, so it replaces the old message in the partition of the old one.
		replaces(Message{ID: id, Delay: time.Hour, Replace: lua.Replace}, 5, "no key")
		replaces(Message{ID: id, Key: a, Delay: time.Hour, Replace: lua.Replace}, 3, "a key again")

		// As if a producer had stopped between adding a new message and cancelling the old one. The next call cancels
		// both.
		queuetest.Do(t, r.c, "ZADD", r.keys(5).Due, "1e13", id)
		replaces(Message{ID: id, Key: a, Delay: time.Hour, Replace: lua.Replace}, 3, "both")

		// The dedup window of the old message goes on with the new one.
		r.mustSchedule(Message{ID: "window", Key: a, Delay: time.Hour, Dedup: 2 * time.Hour})
		replaces(Message{ID: "window", Key: b, Replace: lua.Replace}, 5, "now")
		if d, err := lua.Drain(t.Context(), r.c, r.keys(5), 10, 1<<20); err != nil || d.Moved != 1 {
			t.Fatalf("drain: %+v, %v", d, err)
		}
		r.mustRefuse(Message{ID: "window", Key: a, Dedup: time.Hour})
		r.mustRefuse(Message{ID: "window", Key: b, Replace: lua.Replace})
	})
}

// Regression: a replacement with the same key, of a message scheduled before the queue grew, stayed in the partition of
// the older count, where no other message of its key comes.
func TestReplaceAfterGrowthGoesWhereTheKeyBelongs(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	key := keyOf(5)
	old := newProducer(t, c, prefix)
	if _, err := old.Schedule(t.Context(), queue, Message{ID: "x", Key: key, Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	queuetest.PublishCount(t, c, prefix, queue, 8)
	r := &identityRig{T: t, c: c, p: newProducer(t, c, prefix), prefix: prefix, queue: queue}
	receipt := r.mustSchedule(Message{ID: "x", Key: key, Delay: time.Hour, Payload: []byte("new"), Replace: lua.Replace})
	redistest.Want(t, "replaced", receipt.Replaced, true)
	r.wantScheduled("x", 5, "new")
}

// Regression: cancel and reschedule answered for the first message that they found, and a message of the same ID with a
// key in another partition was delivered.
func TestCancelAndRescheduleReachEveryKeyOfAnID(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	at := time.UnixMilli(queuetest.Now(t, r.c).UnixMilli()).Add(time.Minute)
	scheduleEverywhere := func() {
		for i := range 8 {
			queuetest.Do(t, r.c, "ZADD", r.keys(i).Due, "1e13", "x")
		}
	}
	scheduleEverywhere()
	if due, err := r.p.Reschedule(t.Context(), r.queue, "x", 0, at); err != nil || !due.Equal(at) {
		t.Errorf("reschedule: %v, %v", due, err)
	}
	for i := range 8 {
		redistest.Want(t, fmt.Sprint("due in partition ", i), queuetest.Integer(t, r.c, "ZSCORE", r.keys(i).Due, "x"),
			at.UnixMilli())
	}
	if done, err := r.p.Cancel(t.Context(), r.queue, "x"); err != nil || !done {
		t.Errorf("cancel: %v, %v", done, err)
	}
	r.wantScheduled("x", -1, "")
}

// A chosen ID must be looked up in all partitions, and a generated ID in none.
func TestLookingForIDsCostsNothingWhereNobodyChoseThem(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newIdentityRig(t, s)
	r.mustSchedule(Message{Delay: time.Hour}) // loads the script, and reads the partitions
	r.mustSchedule(Message{ID: "warm", Key: "k", Delay: time.Hour})
	monitor := s.Monitor(t)
	lookups := func(m Message) int {
		t.Helper()
		monitor.Reset()
		r.mustSchedule(m)
		commands := monitor.Commands()
		return commands["ZSCORE"] + commands["ZMSCORE"]
	}
	redistest.Want(t, "looks for a generated ID", lookups(Message{Delay: time.Hour}), 0)
	redistest.Want(t, "looks for a generated ID with a key", lookups(Message{Key: keyOf(3), Delay: time.Hour}), 0)
	redistest.Want(t, "looks for a chosen ID", lookups(Message{ID: "x", Delay: time.Hour}), 2*7)
	redistest.Want(t, "looks for a chosen ID with a key", lookups(Message{ID: "y", Key: keyOf(3), Delay: time.Hour}), 2*7)
}

// If several calls replace one ID at the same moment, with keys of different partitions, one message must be left.
// Regression: the calls cancelled each other's new message, and nothing was delivered. Or no call saw the other one,
// and both messages were delivered.
func TestReplacementsAtTheSameMomentLeaveOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newIdentityRig(t, s)
		at := queuetest.Now(t, r.c).Add(time.Hour)
		var others []*Producer
		for range 4 {
			others = append(others, newProducer(t, s.Client(t), r.prefix))
		}
		for n := range 20 {
			id := fmt.Sprint("x", n)
			for partition := range n % 5 % 3 { // as if producers had stopped before they cancelled the old ones
				queuetest.Do(t, r.c, "ZADD", r.keys(partition).Due, "1e13", id)
			}
			if n%5 > 0 {
				queuetest.Do(t, r.c, "ZADD", r.keys(7).Due, "1e13", id)
			}
			var all sync.WaitGroup
			for partition, p := range others {
				all.Go(func() {
					m := Message{ID: id, Key: keyOf(partition), At: at, Replace: lua.Replace}
					if _, err := p.Schedule(t.Context(), r.queue, m); err != nil {
						t.Errorf("%s with the key of partition %d: %v", id, partition, err)
					}
				})
			}
			all.Wait()
			if left := r.partitionsOf(id); len(left) != 1 {
				t.Errorf("%s: all calls have returned nil, and the message is scheduled in the partitions %v", id, left)
			}
		}
	})
}

// Regression: while cancel asked the partitions, a replacement with another key went to a partition that had answered,
// and the old message was cancelled in one that had not. Cancel returned "not scheduled", and the message was
// delivered.
func TestAMessageThatMovesWhileItIsLookedForIsFound(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	r.mustSchedule(Message{ID: "x", Key: keyOf(3), Delay: time.Hour})
	answered := make(chan struct{})
	var moved sync.Once
	found, err := r.p.lookup(t.Context(), r.queue, []string{"x"}, observe.Cancelled,
		func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error) {
			switch k.Due {
			case r.keys(5).Due:
				done, err := lua.Cancel(ctx, r.c, k, ids, lua.Durability{})
				moved.Do(func() {
					r.mustSchedule(Message{ID: "x", Key: keyOf(5), Delay: time.Hour, Replace: lua.Replace})
					close(answered)
				})
				return done, err
			case r.keys(3).Due:
				<-answered
			}
			return lua.Cancel(ctx, r.c, k, ids, lua.Durability{})
		})
	if err != nil || !found[0] {
		t.Errorf("cancel: %v, %v, want true", found, err)
	}
	r.wantScheduled("x", -1, "")
}
