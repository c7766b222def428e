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

// keyOf returns a message key of a partition.
func keyOf(partition int) string { return queuetest.IDOf(lua.Counts{1, 8}, partition) }

func (r *identityRig) keys(partition int) lua.Keys {
	return lua.NewKeys(r.prefix, lua.PartitionName(r.queue, partition))
}

// takes schedules a message, and fails the test unless it was stored.
func (r *identityRig) takes(m Message) Receipt {
	r.Helper()
	receipt, err := r.p.Schedule(r.Context(), r.queue, m)
	if err != nil {
		r.Fatalf("%s with key %q: %v", m.ID, m.Key, err)
	}
	return receipt
}

// refuses schedules a message, and fails the test unless it was refused as a duplicate.
func (r *identityRig) refuses(m Message) {
	r.Helper()
	if _, err := r.p.Schedule(r.Context(), r.queue, m); !errors.Is(err, ErrDuplicate) {
		r.Errorf("%s with key %q: %v, want ErrDuplicate", m.ID, m.Key, err)
	}
}

// scheduled fails the test unless an ID is scheduled with a payload in one partition, and nowhere else.
func (r *identityRig) scheduled(id string, partition int, payload string) {
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

// The key of a message decides its partition, so the same ID with two keys used to go to two partitions: both were
// stored, and both delivered; a dedup window let the ID pass once for each key; and cancel removed one of them.
func TestAnIDBelongsToItsQueueWhateverItsKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newIdentityRig(t, s)
		a, b := keyOf(3), keyOf(5)
		r.takes(Message{ID: "x", Key: a, Delay: time.Hour, Payload: []byte("a")})
		r.refuses(Message{ID: "x", Key: b, Delay: time.Hour})
		r.refuses(Message{ID: "x", Delay: time.Hour})
		r.scheduled("x", 3, "a")
		id := keyOf(6)
		r.takes(Message{ID: id, Delay: time.Hour, Payload: []byte("plain")})
		r.refuses(Message{ID: id, Key: a, Delay: time.Hour})
		r.scheduled(id, 6, "plain")

		r.takes(Message{ID: "once", Key: a, Dedup: time.Hour})
		if d, err := lua.Drain(t.Context(), r.c, r.keys(3), 10, 1<<20); err != nil || d.Moved != 1 {
			t.Fatalf("drain: %+v, %v", d, err)
		}
		r.refuses(Message{ID: "once", Key: b, Dedup: time.Hour})
		r.refuses(Message{ID: "once"})
	})
}

// In a call that names an ID twice, with keys of two partitions, the second message is compared with the first.
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
	r.scheduled("x", 3, "a")
	r.scheduled("y", 3, "third")
	r.scheduled("z", 5, "z")
}

// A replacement with another key used to replace nothing: both were delivered. Now the new message goes to the
// partition of its key, where it takes its turn, and the old one is cancelled where it is.
func TestReplaceTakesThePlaceOfAnotherKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newIdentityRig(t, s)
		a, b, id := keyOf(3), keyOf(5), keyOf(2)
		replaces := func(m Message, partition int, payload string) {
			t.Helper()
			m.Payload = []byte(payload)
			if receipt := r.takes(m); !receipt.Replaced {
				t.Errorf("%s with key %q: the receipt says it replaced nothing", m.ID, m.Key)
			}
			r.scheduled(m.ID, partition, payload)
		}
		r.takes(Message{ID: id, Key: a, Delay: time.Hour})
		replaces(Message{ID: id, Key: b, Delay: time.Minute, Replace: lua.Replace}, 5, "another key")
		replaces(Message{ID: id, Key: b, Delay: time.Hour, Replace: lua.Replace}, 5, "the same key")
		replaces(Message{ID: id, Key: a, Delay: 2 * time.Hour, Replace: lua.ReplaceLater}, 3, "later")
		replaces(Message{ID: id, Key: b, Delay: time.Hour, Replace: lua.ReplaceEarlier}, 5, "earlier")
		r.refuses(Message{ID: id, Key: a, Delay: time.Minute, Replace: lua.ReplaceLater})
		r.refuses(Message{ID: id, Key: a, Delay: 2 * time.Hour, Replace: lua.ReplaceEarlier})
		r.scheduled(id, 5, "earlier")
		// A message without a key has no turn: it replaces the old one in its partition.
		replaces(Message{ID: id, Delay: time.Hour, Replace: lua.Replace}, 5, "no key")
		replaces(Message{ID: id, Key: a, Delay: time.Hour, Replace: lua.Replace}, 3, "a key again")

		// A producer stopped between adding the new one and cancelling the old one: the next call cancels it.
		queuetest.Do(t, r.c, "ZADD", r.keys(5).Due, "1e13", id)
		replaces(Message{ID: id, Key: a, Delay: time.Hour, Replace: lua.Replace}, 3, "both")

		// The dedup window of the old message goes on with the new one.
		r.takes(Message{ID: "window", Key: a, Delay: time.Hour, Dedup: 2 * time.Hour})
		replaces(Message{ID: "window", Key: b, Replace: lua.Replace}, 5, "now")
		if d, err := lua.Drain(t.Context(), r.c, r.keys(5), 10, 1<<20); err != nil || d.Moved != 1 {
			t.Fatalf("drain: %+v, %v", d, err)
		}
		r.refuses(Message{ID: "window", Key: a, Dedup: time.Hour})
		r.refuses(Message{ID: "window", Key: b, Replace: lua.Replace})
	})
}

// A replacement with the same key, of a message scheduled before the queue grew, used to stay in the partition of the
// older count, where no other message of its key comes.
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
	receipt := r.takes(Message{ID: "x", Key: key, Delay: time.Hour, Payload: []byte("new"), Replace: lua.Replace})
	redistest.Want(t, "replaced", receipt.Replaced, true)
	r.scheduled("x", 5, "new")
}

// Cancel and reschedule used to answer for the first message that they found, and one with a key in another partition
// was delivered.
func TestCancelAndRescheduleReachEveryKeyOfAnID(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	at := time.UnixMilli(queuetest.Now(t, r.c).UnixMilli()).Add(time.Minute)
	everywhere := func() {
		for i := range 8 {
			queuetest.Do(t, r.c, "ZADD", r.keys(i).Due, "1e13", "x")
		}
	}
	everywhere()
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
	r.scheduled("x", -1, "")
}

// A lookup of an ID in all partitions costs one round trip, whatever their number, and nothing if no caller has chosen
// the ID.
func TestLookingForIDsCostsNothingWhereNobodyChoseThem(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newIdentityRig(t, s)
	r.takes(Message{Delay: time.Hour}) // now the server knows the script, and the producer the partitions
	r.takes(Message{ID: "warm", Key: "k", Delay: time.Hour})
	monitor := s.Monitor(t)
	looks := func(m Message) int {
		t.Helper()
		monitor.Reset()
		r.takes(m)
		commands := monitor.Commands()
		return commands["ZSCORE"] + commands["ZMSCORE"]
	}
	redistest.Want(t, "looks for a generated ID", looks(Message{Delay: time.Hour}), 0)
	redistest.Want(t, "looks for a generated ID with a key", looks(Message{Key: keyOf(3), Delay: time.Hour}), 0)
	redistest.Want(t, "looks for a chosen ID", looks(Message{ID: "x", Delay: time.Hour}), 2*7)
	redistest.Want(t, "looks for a chosen ID with a key", looks(Message{ID: "y", Key: keyOf(3), Delay: time.Hour}), 2*7)
}

// Two calls that replaced one ID at the same moment, with keys of two partitions, used to cancel each other's new
// message: both were accepted, and nothing was delivered. Or neither saw the other one, and both were delivered.
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
			for partition := range n % 5 % 3 { // a producer stopped between adding a new one and cancelling the old one
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
				t.Errorf("%s: all calls have returned nil, and it is scheduled in the partitions %v", id, left)
			}
		}
	})
}

// While cancel asked the partitions, a replacement with another key went to a partition that had answered, and the old
// message was cancelled in one that had not. Cancel returned "not scheduled", and the message was delivered.
func TestAMessageThatMovesWhileItIsLookedForIsFound(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	r.takes(Message{ID: "x", Key: keyOf(3), Delay: time.Hour})
	answered := make(chan struct{})
	var moved sync.Once
	found, err := r.p.lookup(t.Context(), r.queue, []string{"x"}, observe.Cancelled,
		func(ctx context.Context, k lua.Keys, ids []string) ([]bool, error) {
			switch k.Due {
			case r.keys(5).Due:
				done, err := lua.Cancel(ctx, r.c, k, ids, lua.Durability{})
				moved.Do(func() {
					r.takes(Message{ID: "x", Key: keyOf(5), Delay: time.Hour, Replace: lua.Replace})
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
	r.scheduled("x", -1, "")
}
