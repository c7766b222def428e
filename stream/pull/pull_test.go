package pull

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/keeper"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// rig is a queue on a server, with a Puller that runs until the test ends.
type rig struct {
	*queuetest.Rig
	*Puller
}

func newRig(t *testing.T, s *redistest.Server) *rig {
	t.Helper()
	r := queuetest.New(t, s)
	return &rig{r, newPuller(t, r)}
}

func newPuller(t *testing.T, r *queuetest.Rig) *Puller {
	t.Helper()
	p := redistest.Must(New(Config{Client: r.Client, Blocking: r.Blocking, Prefix: r.Prefix}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return p
}

func (r *rig) request(count int, wait time.Duration) Request {
	return Request{Queues: []string{r.Queue}, Group: "g", Count: count, Wait: wait}
}

func (r *rig) pull(count int, wait time.Duration) []Delivery {
	r.T.Helper()
	found, err := r.Pull(r.T.Context(), r.request(count, wait))
	if err != nil {
		r.T.Fatal(err)
	}
	return found
}

func idsOf(all []Delivery) (ids []string) {
	for _, d := range all {
		ids = append(ids, d.ID)
	}
	return ids
}

// failWith fails a delivery with an error, and checks the settlement.
func (r *rig) failWith(d Delivery, with error, want stream.Settlement) {
	r.T.Helper()
	got, err := r.Fail(r.T.Context(), []Token{d.Token}, []error{with})
	if err != nil || got[0] != want {
		r.T.Errorf("%v: %s, %v; want %s", with, got, err, want)
	}
}

// By its token, a caller must be able to settle a delivery in every way in which a worker's handler can, and only once.
func TestDeliveriesAreSettledByTheirTokens(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		if got := r.pull(10, 0); len(got) != 0 {
			t.Errorf("of an empty queue: %v", idsOf(got))
		}
		r.Ready("a", "b", "c", "d", "e")
		all := append(r.pull(2, 0), r.pull(10, 0)...)
		redistest.Want(t, "given", fmt.Sprint(idsOf(all)), "[a b c d e]")
		for round, want := range []string{"[true true]", "[false false]"} { // the second round has nothing to acknowledge
			won, err := r.Ack(t.Context(), []Token{all[0].Token, all[1].Token})
			if err != nil || fmt.Sprint(won) != want {
				t.Errorf("round %d: %v, %v", round, won, err)
			}
		}
		r.failWith(all[2], errors.New("no"), stream.Retried)
		r.failWith(all[2], errors.New("no"), stream.Lost)
		r.failWith(all[3], stream.DeadLetter(errors.New("never")), stream.Dead)
		r.failWith(all[4], stream.Release(nil), stream.Released)
		if ok, err := r.Extend(t.Context(), []Token{all[4].Token}, []time.Duration{0}); err != nil || ok[0] != lua.NotHeld {
			t.Error("extended what was given back", err)
		}
		r.DrainAll()
		again := append(r.pull(10, 0), r.pull(10, 0)...)
		redistest.Want(t, "again", len(again), 2)
		for _, d := range again {
			if want := map[string]int{"c": 2, "e": 1}[d.ID]; d.Attempt != want {
				t.Errorf("%s: attempt %d", d.ID, d.Attempt)
			}
			ok, err := r.Extend(t.Context(), []Token{d.Token}, []time.Duration{time.Second})
			if err != nil || ok[0] != lua.StillHeld {
				t.Error("not extended", err)
			}
			r.failWith(d, stream.Snooze(0), stream.Snoozed)
		}
		redistest.Want(t, "pending, dead", fmt.Sprint(r.Pending("g"), r.Length(r.Keys.Dead)), "0 1")
	})
}

// A delivery that is not settled within its own time must be reclaimed at the end of that time. A delivery with a
// longer time must not be reclaimed with it.
func TestEachDeliveryHasItsOwnTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Ready("short", "long")
	request := r.request(1, 0)
	request.Within = 50 * time.Millisecond
	if _, err := r.Pull(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	long := r.pull(1, 0)[0]
	redistest.Want(t, "time", long.Within, policy.DefaultVisibilityTimeout)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		done, err := lua.Reclaim(t.Context(), r.Client, r.Keys, lua.ReclaimArgs{Group: "g", Limit: 10, MaxBytes: 1 << 20,
			MinIdle: policy.DefaultVisibilityTimeout, Attempts: lua.Attempts{Max: 3, Delays: []time.Duration{0}}})
		return done.Retried == 1, fmt.Sprint(done, err)
	})
	r.DrainAll()
	redistest.Want(t, "comes back", fmt.Sprint(idsOf(r.pull(10, 0))), "[short]")
	won, err := r.Ack(t.Context(), []Token{long.Token})
	if err != nil || !won[0] {
		t.Error(won, err)
	}
	request.Within = time.Hour
	if _, err := r.Pull(t.Context(), request); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("longer than the visibility timeout: %v", err)
	}
	if _, err := r.Extend(t.Context(), []Token{long.Token}, []time.Duration{time.Hour}); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("longer than the visibility timeout: %v", err)
	}
}

// Many callers wait for messages of two queues, by two Pullers as in two processes. Each message must go to exactly one
// of the callers.
func TestWaitingCallersGetWhatBecomesReady(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		other := r.On(r.Queue + "-other")
		const n = 60
		pullers := []*Puller{r.Puller, newPuller(t, r.Rig)}
		given := make(chan string, 2*n)
		var waiting sync.WaitGroup
		for i := range n {
			waiting.Go(func() {
				request := Request{Queues: []string{r.Queue, other.Queue}, Group: "g", Count: 1, Wait: time.Minute}
				found, err := pullers[i%2].Pull(t.Context(), request)
				if err != nil || len(found) != 1 {
					t.Errorf("%v, %v", found, err)
				}
				for _, d := range found {
					given <- d.ID
				}
			})
		}
		for i := range n {
			[]*queuetest.Rig{r.Rig, other}[i%2].Ready(fmt.Sprint("m-", i))
		}
		waiting.Wait()
		close(given)
		var ids []string
		for id := range given {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		redistest.Want(t, "given", len(slices.Compact(ids)), n)
	})
}

// A caller that hangs up must take no message, and use no attempt of a message, even if the message becomes ready at
// the same moment.
func TestWhoHangsUpTakesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const n = 40
	for i := range n {
		ctx, hangUp := context.WithCancel(t.Context())
		ended := make(chan []Delivery)
		go func() {
			found, _ := r.Pull(ctx, r.request(1, time.Minute))
			ended <- found
		}()
		go hangUp()
		r.Ready(fmt.Sprint("m-", i))
		found := <-ended
		if len(found) == 0 {
			r.DrainAll()
			found = r.pull(1, 10*time.Second)
		}
		if len(found) != 1 || found[0].Attempt != 1 {
			t.Fatalf("round %d: %v", i, found)
		}
		if won, err := r.Ack(t.Context(), []Token{found[0].Token}); err != nil || !won[0] {
			t.Fatal(won, err)
		}
		hangUp()
	}
	redistest.Want(t, "left", fmt.Sprint(r.Length(r.Keys.Stream), r.Pending("g")), "0 0")
}

// However many callers wait for an idle queue, the server must get only an occasional request: here at most 15 in 3 s
// for 500 callers.
func TestWaitingCostsNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	var waiting sync.WaitGroup
	var began atomic.Int32
	ctx, hangUp := context.WithCancel(t.Context())
	for range 500 {
		waiting.Go(func() {
			began.Add(1)
			_, _ = r.Pull(ctx, r.request(1, time.Minute))
		})
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		r.Puller.mu.Lock()
		defer r.Puller.mu.Unlock()
		s := r.sources[sourceKey{r.Queue, "g"}]
		return s != nil && len(s.lines[0].waiters) == 500, fmt.Sprint(began.Load(), " began")
	})
	before := requests(s.Calls(t))
	<-time.After(3 * time.Second) // idle time in which requests are counted
	if n := requests(s.Calls(t)) - before; n > 15 {
		t.Errorf("%d requests in 3 s", n)
	}
	hangUp()
	waiting.Wait()
}

// requests adds up the calls of all commands except INFO and PING, which the test and the connections send.
func requests(calls map[string]int) (n int) {
	for command, times := range calls {
		if !slices.Contains([]string{"info", "ping"}, command) {
			n += times
		}
	}
	return n
}

// All partitions of a queue must be read, including those that the queue gets after the first call.
func TestAllPartitionsAreRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Part(0).Ready("first")
	redistest.Want(t, "given", len(r.pull(1, 0)), 1)
	r.Do("HSET", lua.NewGlobals(r.Prefix).Queues, r.Queue, "1,4")
	r.Puller.mu.Lock()
	r.sources[sourceKey{r.Queue, "g"}].lastRead = time.Time{}
	r.Puller.mu.Unlock()
	for i := range 4 {
		r.Part(i).Ready(fmt.Sprint("m-", i))
	}
	found := r.pull(10, 0)
	redistest.Want(t, "given", len(found), 4)
	for _, d := range found {
		if d.ID != fmt.Sprint("m-", d.Partition) {
			t.Errorf("%s is in partition %d", d.ID, d.Partition)
		}
		if won, err := r.Ack(t.Context(), []Token{d.Token}); err != nil || !won[0] {
			t.Error(won, err)
		}
	}
}

// A delivery must survive a growth of its queue. It can be settled in its partition, or its message comes back there
// when its time is over.
func TestLeasesOutliveAGrowth(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Ready("settled", "abandoned")
	pullWithin := func(within time.Duration) Delivery {
		t.Helper()
		request := r.request(1, 0)
		request.Within = within
		found, err := r.Pull(t.Context(), request)
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		return found[0]
	}
	settled, abandoned := pullWithin(20*time.Second), pullWithin(100*time.Millisecond)
	if _, err := stream.Grow(t.Context(), r.Client, r.Prefix, r.Queue, 4, nil); err != nil {
		t.Fatal(err)
	}
	if won, err := r.Ack(t.Context(), []Token{settled.Token}); err != nil || !won[0] {
		t.Error(won, err)
	}
	reclaimer := keeper.NewReclaimer(keeper.ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue, Watched: true})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		done, err := reclaimer.Reclaim(t.Context())
		return err == nil && r.Pending("g") == 0, fmt.Sprint(done, err)
	})
	redistest.Want(t, "scheduled again", r.Number("ZCARD", r.Keys.Due), 1)
	if won, err := r.Ack(t.Context(), []Token{abandoned.Token}); err != nil || won[0] {
		t.Error("a message that has come back is acknowledged by its old token: ", won, err)
	}
}

// A retry is an entry for one group. Callers of another group must not get it.
func TestRetriesOfOtherGroupsAreSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g", "h")
	r.Ready("m")
	redistest.Want(t, "given", len(r.pull(1, 0)), 1)
	h := Request{Queues: []string{r.Queue}, Group: "h", Count: 1}
	found, err := r.Pull(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	r.failWith(found[0], stream.RetryAfter(0, errors.New("no")), stream.Retried)
	r.DrainAll()
	if got := r.pull(5, 0); len(got) != 0 {
		t.Errorf("given %v", idsOf(got))
	}
	redistest.Want(t, "pending", r.Pending("g"), int64(1))
	if found, err = r.Pull(t.Context(), h); err != nil || len(found) != 1 || found[0].Attempt != 2 {
		t.Errorf("%v, %v", found, err)
	}
}

// If a server loses all data, and with it the group, while a caller waits, the caller must still get later messages.
// The same holds after a pause of the workers, and after an outage.
func TestWhoWaitsOutlastsAFlushAndAPause(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	for _, c := range []struct {
		name   string
		before func() // the caller begins to wait
		during func() // while it waits
	}{
		{"flush", func() {}, func() { r.Do("FLUSHALL"); r.Ready("m") }},
		{"pause", func() { r.Do("HSET", r.Keys.Policy, "held_workers", "1"); r.Ready("m") },
			func() { r.Do("DEL", r.Keys.Policy) }},
		{"outage", func() {}, func() { s.Stop(); s.Start(); r.waitForAllConnections(); r.Ready("m") }},
	} {
		c.before()
		ended := make(chan []Delivery)
		go func() {
			found, err := r.Pull(t.Context(), r.request(1, time.Minute))
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			ended <- found
		}()
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			r.Puller.mu.Lock()
			defer r.Puller.mu.Unlock()
			s := r.sources[sourceKey{r.Queue, "g"}]
			return s != nil && len(s.lines[0].waiters) == 1, c.name + ": nobody waits"
		})
		c.during()
		found := <-ended
		if len(found) != 1 {
			t.Fatalf("%s: %d deliveries, want 1", c.name, len(found))
		}
		if won, err := r.Ack(t.Context(), []Token{found[0].Token}); err != nil || !won[0] {
			t.Error(won, err)
		}
	}
}

// A receive must not create a group beyond the limit of 100, because each group keeps all messages of its queue.
// Regression: callers created any number of groups just by receiving.
func TestAReceiveMakesNoGroupBeyondTheLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 2)
	receive := func(group string) error {
		t.Helper()
		request := r.request(1, 0)
		request.Group = group
		_, err := r.Pull(t.Context(), request)
		return err
	}
	var refused atomic.Int64
	var all sync.WaitGroup
	const most = 100
	for i := range most + 10 {
		all.Go(func() {
			if err := receive(fmt.Sprint("group-", i)); errors.Is(err, lua.ErrInvalid) {
				refused.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	redistest.Want(t, "refused", refused.Load(), int64(10))
	there := r.GroupNames()
	redistest.Want(t, "groups of partition 0", len(there), most)
	redistest.Want(t, "groups of partition 1", len(r.Part(1).GroupNames()), most)
	var invalid *lua.InvalidError
	if err := receive("one more"); !errors.As(err, &invalid) || invalid.Field != "group" || invalid.Value != `"one more"` ||
		!strings.Contains(invalid.Rule, fmt.Sprint(most)) {
		t.Errorf("one more: %v", err)
	}
	r.Do("XGROUP", "DESTROY", r.Part(1).Keys.Stream, there[0]) // lost in one partition only
	if err := receive(there[0]); err != nil {
		t.Errorf("a group that is there: %v", err)
	}
	redistest.Want(t, "groups of partition 1 again", len(r.Part(1).GroupNames()), most)
	r.Groups("made by a worker") // group 101: a worker may create more groups than a receive
	if err := receive("made by a worker"); err != nil {
		t.Errorf("a group that a worker made: %v", err)
	}
}

// Regression: the first receive of a group created the group only in the partitions that it asked. Messages that
// another group acknowledged in the remaining partitions before the next receive never reached the group.
func TestAReceiveMakesItsGroupInEveryPartition(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const partitions = 4
	queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, partitions)
	for i := range partitions { // with a message in each, the first partition that is read has enough for the receive
		r.Part(i).Ready(fmt.Sprint("m", i))
	}
	if found, err := r.Pull(t.Context(), r.request(1, 0)); err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	for i := range partitions {
		redistest.Want(t, fmt.Sprint("groups of partition ", i), fmt.Sprint(r.Part(i).GroupNames()), "[g]")
	}
}

// A bad request must be refused before Redis is called.
func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	none := struct{ rueidis.Client }{} // a call of this client panics
	p := redistest.Must(New(Config{Client: none, Blocking: none}))
	good := Request{Queues: []string{"q"}, Group: "g", Count: 1}
	for field, change := range map[string]func(r *Request){
		"queues":  func(r *Request) { r.Queues = nil },
		"queue":   func(r *Request) { r.Queues = []string{"a/../b"} },
		"queues ": func(r *Request) { r.Queues = []string{"a", "a"} },
		"group":   func(r *Request) { r.Group = "" },
		"count":   func(r *Request) { r.Count = 101 },
		"wait":    func(r *Request) { r.Wait = -1 },
		"within":  func(r *Request) { r.Within = 1 },
		"weights": func(r *Request) { r.Weights = []int{1, 2} },
		"weight":  func(r *Request) { r.Weights = []int{0} },
	} {
		bad := good
		change(&bad)
		if _, err := p.Pull(t.Context(), bad); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A request with weights must read each queue first as often as its weight says. The limits of 20 % are far from
// chance.
func TestWeightsAreShares(t *testing.T) {
	t.Parallel()
	r := Request{Queues: []string{"a", "b", "c"}, Weights: []int{6, 3, 1}}
	first := map[string]int{}
	for range 5000 {
		order := r.order()
		first[order[0]]++
		if slices.Sort(order); !slices.Equal(order, r.Queues) {
			t.Fatal(order)
		}
	}
	for queue, want := range map[string]int{"a": 3000, "b": 1500, "c": 500} {
		if got := first[queue]; got < want*8/10 || got > want*12/10 {
			t.Errorf("%s came first %d times of 5000, want about %d", queue, got, want)
		}
	}
}

// A paused queue with a backlog must be looked at once a second, however many callers wait.
func TestAPausedBacklogCostsNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Do("HSET", r.Keys.Policy, "held_workers", "1")
	r.Fill(2000)
	ctx, hangUp := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range 20 {
		waiting.Go(func() { _, _ = r.Pull(ctx, r.request(1, time.Minute)) })
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		r.Puller.mu.Lock()
		defer r.Puller.mu.Unlock()
		s := r.sources[sourceKey{r.Queue, "g"}]
		return s != nil && len(s.lines[0].waiters) == 20, "not all callers wait"
	})
	before := requests(s.Calls(t))
	<-time.After(2 * time.Second) // time in which requests are counted
	if n := requests(s.Calls(t)) - before; n > 40 {
		t.Errorf("%d requests in 2 s", n)
	}
	hangUp()
	waiting.Wait()
}
