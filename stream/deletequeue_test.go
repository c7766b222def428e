package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Before DeleteQueue, nothing removed a queue with a misspelt name. Without force, a deletion must remove an empty
// queue with all its keys, and must leave a queue with messages complete.
func TestDeleteQueueRemovesWhatIsEmptyAndNothingElse(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		c, prefix, queue, k, second := r.Client, r.Prefix, r.Queue, r.Keys, r.Part(1).Keys
		r.Do("HSET", lua.NewGlobals(prefix).Queues, queue, "1,2", "other", "1")
		r.Do("XGROUP", "CREATE", k.Stream, "g", "0", "MKSTREAM")
		r.Do("XGROUP", "CREATECONSUMER", k.Stream, "g", "c")
		r.Do("HSET", k.Policy, "max_attempts", "3")
		r.Do("ZADD", k.Seen, "1e13", "window")
		r.Do("XADD", k.History, "*", "event", "scheduled")
		r.Do("SET", k.GroupRate("g"), "1 1")
		r.Do("HSET", k.Calm, "seen_ms", "1") // a bridge leaves this key if it stops while a group holds entries
		for _, hold := range [][]string{{"ZADD", second.Due, "1e13", "a"}, {"XADD", second.Stream, "*", "id", "a"},
			{"XADD", second.Dead, "*", "id", "a"}} {
			r.Do(hold...)
			if had, err := DeleteQueue(t.Context(), c, prefix, queue, false); !errors.Is(err, ErrNotEmpty) ||
				had.Messages() != 1 {
				t.Errorf("%v: %+v, %v", hold, had, err)
			}
			if n := r.Exists(k.Stream, k.Policy, k.Seen, hold[1]); n != 4 {
				t.Errorf("%v: %d keys are left of a queue that holds a message", hold, n)
			}
			r.Do("DEL", hold[1])
		}
		had, err := DeleteQueue(t.Context(), c, prefix, queue, false)
		if err != nil || had.Messages() != 0 || len(had.Groups) != 1 || len(had.Readers) != 1 || had.Readers[0] != "g/c" {
			t.Errorf("%+v, %v", had, err)
		}
		if n := r.Exists(append(append(k.All(), second.All()...), k.Calm, k.GroupRate("g"))...); n != 0 {
			t.Errorf("%d keys are left", n)
		}
		// Three fields stay in the registry: the other queue, the mark of deletions, and the partition counts that the
		// deleted queue had.
		names, err := c.Do(t.Context(), c.B().Hkeys().Key(lua.NewGlobals(prefix).Queues).Build()).AsStrSlice()
		if err != nil || len(names) != 3 {
			t.Errorf("registered: %q, %v", names, err)
		}
		if _, err := DeleteQueue(t.Context(), c, prefix, queue, true); !errors.Is(err, ErrUnknownQueue) {
			t.Errorf("again: %v", err)
		}
		r.Do("ZADD", second.Due, "1e13", "a")
		r.Do("HSET", lua.NewGlobals(prefix).Queues, queue, "1,2")
		if had, err := DeleteQueue(t.Context(), c, prefix, queue, true); err != nil || had.Scheduled != 1 ||
			r.Exists(second.Due) != 0 {
			t.Errorf("by force: %+v, %v", had, err)
		}
	})
}

// Regression: recurrences and push targets were deleted with an empty queue, without force.
func TestDeleteQueueKeepsRecurrencesAndPushTargets(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.grow(2)
		r.Do("HSET", r.Keys.Recurring, "nightly", "{}")
		r.Do("HSET", r.Keys.Push, "mailer", "{}")
		for _, c := range []struct{ field, key, says string }{
			{"", "", "it holds 1 recurrence (nightly), 1 push target (mailer)"},
			{"nightly", r.Keys.Recurring, "it holds 1 push target (mailer)"},
		} {
			if c.field != "" {
				r.Do("HDEL", c.key, c.field)
			}
			_, err := DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, false)
			if !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("without %q: %v", c.field, err)
			}
		}
		r.Do("HSET", r.Keys.Recurring, "weekly", "{}")
		had, err := DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, true)
		redistest.Want(t, "by force", fmt.Sprint(had.Recurrences, had.Targets, err), "[weekly] [mailer] <nil>")
		redistest.Want(t, "keys left", r.Exists(r.Keys.All()...), 0)
	})
}

// A message that arrives between the check and the removal makes the deletion fail. Regression: the partitions without
// messages had been deleted before, with their groups and the policy, and stayed so. A group without live workers then
// missed the messages that came to these partitions later.
func TestDeleteQueueThatIsRefusedKeepsGroupsAndPolicy(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Shared(t)
	refused := 0
	for _, part := range []int{0, 2} {
		for at, reached := 1, true; reached; at++ {
			r := newRig(t, s)
			r.Groups("a", "away")
			r.Policy(map[string]string{"max_attempts": "3"})
			r.grow(4)
			reached = false
			c := &stepClient{Client: r.Client, before: func(n int) error {
				if n == at {
					reached = true
					r.Do("ZADD", r.Part(part).Keys.Due, "1e13", "m")
				}
				return nil
			}}
			what := fmt.Sprintf("message in partition %d before command %d", part, at)
			had, err := DeleteQueue(t.Context(), c, r.Prefix, r.Queue, false)
			if !errors.Is(err, ErrNotEmpty) {
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
				continue
			}
			refused++
			if had.Scheduled != 1 || !strings.Contains(err.Error(), "it holds 1 scheduled") {
				t.Errorf("%s: %+v, %v", what, had, err)
			}
			r.wantAlike(what, 4, "a", "away")
			policy, err := r.Client.Do(t.Context(), r.Client.B().Hgetall().Key(r.Keys.Policy).Build()).AsStrMap()
			redistest.Want(t, what, fmt.Sprint(policy, err), "map[max_attempts:3] <nil>")
		}
	}
	if refused < 4 {
		t.Errorf("refused only %d times: does the message come between the check and the removal?", refused)
	}
}

// Regression: partitions that a growth had prepared but not published stayed when their queue was deleted.
func TestDeleteQueueRemovesWhatAKilledGrowthLeft(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Shared(t)
	for at, failed := 1, true; failed; at++ {
		r := newRig(t, s)
		r.Groups("a")
		r.Policy(map[string]string{"max_attempts": "3"})
		c := &stepClient{Client: r.Client, before: func(n int) error {
			if n >= at {
				return errors.New("gone")
			}
			return nil
		}}
		_, err := Grow(t.Context(), c, r.Prefix, r.Queue, 4, nil)
		failed = err != nil
		if had, err := DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, false); err != nil {
			t.Fatalf("after %d: %+v, %v", at, had, err)
		}
		for i := range 4 {
			what := fmt.Sprintf("after %d, keys of partition %d", at, i)
			redistest.Want(t, what, r.Exists(r.Part(i).Keys.All()...), 0)
		}
	}
}

// together is a client that delays the reply to the first look at a partition until a second look has begun. A look
// begins with ZCARD.
type together struct {
	rueidis.Client
	looks  atomic.Int64
	second chan struct{}
}

func (c *together) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if cmds[0].Commands()[0] == "ZCARD" {
		if c.looks.Add(1) == 2 {
			close(c.second)
		}
		select {
		case <-c.second:
		case <-ctx.Done():
		}
	}
	return c.Client.DoMulti(ctx, cmds...)
}

// Regression: a deletion looked at 256 partitions one after the other. Over a slow link, the destroy call of the lmstfy
// API always exceeded its time limit.
func TestDeleteQueueLooksAtSeveralPartitionsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.grow(2)
	c := &together{Client: r.Client, second: make(chan struct{})}
	had, err := DeleteQueue(t.Context(), c, r.Prefix, r.Queue, false)
	redistest.Want(t, "deleted", fmt.Sprint(had.Groups, err), "[g] <nil>")
	redistest.Want(t, "looks", c.looks.Load(), 2)
}

// Messages in a partition beyond the queue's count must count as messages of the queue, because a bridge is about to
// move them into its partitions.
func TestDeleteQueueLooksBeyondTheCount(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	stray := r.Part(lua.MaxPartitions - 1)
	r.Do("ZADD", stray.Keys.Due, "1e13", "m")
	had, err := DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, false)
	if !errors.Is(err, ErrNotEmpty) || had.Scheduled != 1 {
		t.Errorf("%+v, %v", had, err)
	}
	had, err = DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, true)
	redistest.Want(t, "deleted", fmt.Sprint(had.Scheduled, err), "1 <nil>")
	redistest.Want(t, "left", r.Exists(stray.Keys.Due), 0)
}

// Regression: a full server refused the deletion of a queue. Commands that free memory must work.
func TestQueuesAreDeletedOnAFullServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	c, prefix, queue, k, empty := r.Client, r.Prefix, r.Queue, r.Keys, r.On("empty").Keys
	r.Do("HSET", lua.NewGlobals(prefix).Queues, queue, "1", "empty", "1")
	r.Do("ZADD", k.Due, "1e13", "a")
	r.Do("XADD", k.Stream, "*", "id", "b")
	r.Do("HSET", empty.Policy, "max_attempts", "3")
	r.Do("XGROUP", "CREATE", empty.Stream, "g", "0", "MKSTREAM")
	r.Do("CONFIG", "SET", "maxmemory", "1")
	if had, err := DeleteQueue(t.Context(), c, prefix, "empty", false); err != nil || had.Messages() != 0 {
		t.Fatal(had, err)
	}
	if had, err := DeleteQueue(t.Context(), c, prefix, queue, true); err != nil || had.Messages() != 2 {
		t.Fatal(had, err)
	}
	redistest.Want(t, "keys left of the empty one", r.Exists(empty.All()...), 0)
	redistest.Want(t, "keys left", r.Exists(k.All()...), 0)
	registry, err := c.Do(t.Context(), c.B().Hgetall().Key(lua.NewGlobals(prefix).Queues).Build()).AsStrMap()
	want := map[string]string{lua.RegistryDeleted: queue}
	redistest.Want(t, "registry", fmt.Sprint(registry, err), fmt.Sprint(want, nil))
}

// A running worker creates a deleted queue again. Regression: it brought back all partitions, without the groups of
// other workers.
func TestAWorkerThatGoesOnBringsNoPartitionsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.grow(4)
	w, _ := r.start(WorkerConfig{Handler: func(context.Context, *Message) error { return nil }})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		n := w.pool.partitions.Load()
		return n == 4, fmt.Sprint(n, " partitions are served")
	})
	if _, err := DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, false); err != nil {
		t.Fatal(err)
	}
	w.queues[0].registerAgain() // the worker itself would do so within a minute
	queuetest.EventuallyRegistered(t, r.Client, r.Prefix, r.Queue, "1")
	redistest.Want(t, "grown again", r.grow(4).String(), "1,4")
}

// Regression: a message became ready in a partition that a deletion had removed, before the deletion was refused or
// killed. As soon as one group had been created again and had acknowledged the message, the message was freed, and the
// other groups never got it. It was also delivered in spite of a pause.
//
// In the three cases a message comes to partition 3 before each command of the deletion in turn. Then the deletion is
// refused because of another message in partition 2, or is killed and repeated, or is refused for a paused queue.
func TestNothingBecomesReadyWhileAQueueIsBeingDeleted(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Shared(t)
	for _, how := range []string{"refused", "killed", "paused"} {
		t.Run(how, func(t *testing.T) {
			checked := 0 // deletions during which the message came
			for at, reached := 1, true; reached; at++ {
				r := newRig(t, s)
				r.Groups("away", "mailer")
				if how == "paused" {
					r.Policy(map[string]string{"held": "1"})
				}
				r.grow(4)
				third := r.Part(3)
				reached = false
				c := &stepClient{Client: r.Client, before: func(n int) error {
					if n > at && how == "killed" {
						return errors.New("killed")
					}
					if n != at {
						return nil
					}
					reached = true
					third.Enqueue(lua.Item{ID: "m", When: "+0"})
					if how != "paused" {
						mailerRestoresItsGroup(t, third)
					}
					if how != "killed" {
						r.Part(2).Do("ZADD", r.Part(2).Keys.Due, "1e13", "n")
						return nil
					}
					return errors.New("killed")
				}}
				what := fmt.Sprintf("message before command %d", at)
				_, err := DeleteQueue(t.Context(), c, r.Prefix, r.Queue, false)
				if len(r.GroupNames()) == 0 { // the message came after the removal of partition 0, the last one
					continue
				}
				if how == "killed" && err != nil {
					_, err = DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, false)
				}
				if !errors.Is(err, ErrNotEmpty) {
					if reached {
						t.Errorf("%s: %v", what, err)
					}
					continue
				}
				checked++
				r.wantAlike(what, 4, "away", "mailer")
				if how == "paused" {
					redistest.Want(t, what+", ready in spite of the pause", third.Length(third.Keys.Stream), int64(0))
					continue
				}
				third.DrainAll()
				redistest.Want(t, what+", given to the group that was away", len(third.Take("away", "c", 10)), 1)
			}
			if checked == 0 {
				t.Error("the message never came while the queue was being deleted")
			}
		})
	}
}

// mailerRestoresItsGroup creates the group mailer if it is lost, and handles its entries, like a worker of this group.
func mailerRestoresItsGroup(t *testing.T, r *queuetest.Rig) {
	t.Helper()
	if _, err := lua.EnsureGroup(t.Context(), r.Client, r.Keys, "mailer"); err != nil {
		t.Fatal(err)
	}
	var held []lua.Held
	for _, entry := range r.Take("mailer", "c", 10) {
		held = append(held, lua.Held{Entry: entry})
	}
	if len(held) > 0 {
		if _, err := lua.Ack(t.Context(), r.Client, r.Keys, "mailer", held); err != nil {
			t.Fatal(err)
		}
	}
}

// A message may come to a removed partition before the end of a deletion. It stays scheduled, so that a bridge moves
// it. Regression: the deletion released the partition at its end. A bridge that still served the partition then put the
// message into its stream, which has no group, and from which nothing is moved.
func TestAMessageThatComesToARemovedPartitionStaysScheduled(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		r.Policy(map[string]string{"max_attempts": "7"})
		r.grow(4)
		late := r.Part(2)
		// The message comes to partition 2 after its removal, and before the script that removes partition 0 as the
		// last.
		c := &queuetest.BeforeScript{Client: r.Client, Key: r.Keys.Due}
		c.Run = func() { late.Enqueue(lua.Item{ID: "late", When: "+0"}) }
		if had, err := DeleteQueue(t.Context(), c, r.Prefix, r.Queue, false); err != nil {
			t.Fatal(had, err)
		}
		if _, err := lua.Drain(t.Context(), r.Client, late.Keys, 10, 1<<20); err != nil { // a bridge still serves it
			t.Fatal(err)
		}
		redistest.Want(t, "scheduled", r.Number("ZCARD", late.Keys.Due), int64(1))
		redistest.Want(t, "ready", late.Length(late.Keys.Stream), int64(0))
		for _, i := range []int{0, 1, 3} {
			redistest.Want(t, fmt.Sprint("keys of partition ", i), r.Exists(r.Part(i).Keys.All()...), 0)
		}
	})
}

// A deletion that was killed leaves partitions without groups. If a second deletion is refused, it must restore the
// groups, also if the queue was paused ("held") before.
func TestARefusedDeletionMendsPartitionsWithoutGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 4)
	for i := range 4 {
		r.Part(i).Groups("g", "stopped")
		r.Part(i).Policy(map[string]string{"held": "1"})
	}
	if deleted, err := lua.DeleteEmpty(t.Context(), r.Client, r.Part(1).Keys, true); !deleted || err != nil {
		t.Fatal(deleted, err)
	}
	r.Do("ZADD", r.Part(3).Keys.Due, "1", "m")
	_, err := DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, false)
	redistest.Want(t, "refused", errors.Is(err, ErrNotEmpty), true)
	groups := queuetest.Array(t, r.Do("XINFO", "GROUPS", r.Part(1).Keys.Stream))
	redistest.Want(t, "groups of the partition that was removed", len(groups), 2)
}

// A message in a partition beyond the queue's count must not bring back a group that an operator has destroyed.
// Regression: such a partition has no settings. If the queue was paused, the partition was taken for one that a killed
// deletion had removed, and got its groups back.
func TestARefusedDeletionBringsNoGroupBack(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprint("held ", held), func(t *testing.T) {
			r := newRig(t, redistest.Shared(t))
			queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 2)
			for i := range 2 {
				r.Part(i).Groups("kept", "destroyed")
				if held {
					r.Part(i).Policy(map[string]string{"held": "1"})
				}
			}
			r.Do("XGROUP", "DESTROY", r.Keys.Stream, "destroyed") // the operator begins with partition 0
			r.Do("ZADD", r.Part(7).Keys.Due, "1", "m")            // as by a producer with a wrong partition count
			_, err := DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, false)
			redistest.Want(t, "refused", errors.Is(err, ErrNotEmpty), true)
			redistest.Want(t, "groups", fmt.Sprint(r.GroupNames()), "[kept]")
		})
	}
}

// A deletion that was killed leaves partitions held (paused), although workers have created the groups again. If a
// second deletion is refused, it must end the holds.
func TestARefusedDeletionReleasesPartitionsThatWorkersHealed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 4)
	for i := range 4 {
		r.Part(i).Groups("g")
	}
	r.Policy(map[string]string{"max_attempts": "7"})
	r.Part(1).Policy(map[string]string{"held": "1"})
	r.Do("ZADD", r.Part(3).Keys.Due, "1", "m")
	_, err := DeleteQueue(t.Context(), r.Client, r.Prefix, r.Queue, false)
	redistest.Want(t, "refused", errors.Is(err, ErrNotEmpty), true)
	redistest.Want(t, "settings", fmt.Sprint(r.Texts("HKEYS", r.Part(1).Keys.Policy)), "[max_attempts]")
}
