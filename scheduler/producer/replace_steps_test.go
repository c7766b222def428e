package producer

import (
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

// replacer is a call that replaces an ID step by step. In each round it looks up the ID, adds its message, cancels the
// versions that it saw, and looks once more. The last look may start another round.
type replacer struct {
	*identityRig
	p       *Producer
	ms      []Message
	round   batchRoute
	refused map[int]error
	results []Result
	steps   int // steps done in this round
	over    bool
}

const replacerSteps = 4 // steps of a round

// newRound returns the batchRoute of a batch, with which a test makes the steps of a round itself.
func (r *identityRig) newRound(p *Producer, ms []Message) batchRoute {
	r.Helper()
	way, err := p.enter(r.Context(), r.queue)
	if err != nil {
		r.Fatal(err)
	}
	p.busy.Done() // no step outlives the test
	round, err := way.newBatch(r.Context(), ms, time.Now())
	if err != nil {
		r.Fatal(err)
	}
	return round
}

// newReplacer returns a call that replaces the ID of a message, before its first step.
func (r *identityRig) newReplacer(p *Producer, m Message) *replacer {
	r.Helper()
	ms := []Message{m}
	return &replacer{identityRig: r, p: p, ms: ms, round: r.newRound(p, ms)}
}

// step makes one step.
func (c *replacer) step() {
	c.Helper()
	ctx := c.Context()
	switch c.steps {
	case 0:
		c.refused = c.round.duplicates(ctx, c.ms)
	case 1:
		c.results = c.round.store(ctx, c.ms, c.refused, time.Now())
	case 2:
		c.round.cancelReplaced(ctx, c.ms, c.results)
	case 3:
		some := c.round.contested(ctx, c.ms, c.results)
		if c.over = len(some) == 0; !c.over {
			c.round, c.ms = c.round.retryBatch(c.ms, some, c.results)
		}
	}
	if c.results != nil && c.results[0].Err != nil {
		c.Fatal(c.results[0].Err)
	}
	c.steps = (c.steps + 1) % replacerSteps
}

// finish makes all remaining steps.
func (c *replacer) finish() {
	c.Helper()
	for n := 0; !c.over; n++ {
		if n == 10*replacerSteps {
			c.Fatal("the call starts one round after another")
		}
		c.step()
	}
}

// If a batch has several messages with one ID and one key, the last one must stay. Regression: when the batch had to
// start again, it did so in any order, and the first message was left. And if the last message was drained before the
// second look, the first one, which it had replaced, was scheduled again.
func TestTheLastOfABatchStaysWhenItBeginsAgain(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	batch := func(id string, last time.Duration) []Message {
		r.mustSchedule(Message{ID: id, Key: keyOf(7), Delay: time.Hour})
		return []Message{
			{ID: id, Key: keyOf(3), Delay: time.Hour, Payload: []byte("first"), Replace: lua.Replace},
			{ID: id, Key: keyOf(3), Delay: 2 * time.Hour, Payload: []byte("second"), Replace: lua.Replace},
			{ID: id, Key: keyOf(3), Delay: last, Payload: []byte("last"), Replace: lua.Replace},
		}
	}
	// secondLook makes a round. It returns the indexes of the messages that the second look starts again.
	secondLook := func(ms []Message, meanwhile func()) []int {
		round := r.newRound(r.p, ms)
		results := round.store(t.Context(), ms, round.duplicates(t.Context(), ms), time.Now())
		round.cancelReplaced(t.Context(), ms, results)
		meanwhile()
		return round.contested(t.Context(), ms, results)
	}
	some := secondLook(batch("beside", 3*time.Hour), func() {
		queuetest.Do(t, r.c, "ZADD", r.keys(5).Due, "1e13", "beside") // as by a call that has not seen this one
	})
	if !slices.Equal(some, []int{2}) {
		t.Errorf("with a version in another partition, these start again: %v, want only the last, 2", some)
	}
	some = secondLook(batch("due", 0), func() {
		if d, err := lua.Drain(t.Context(), r.c, r.keys(3), 10, 1<<20); err != nil || d.Moved != 1 {
			t.Fatal(d, err)
		}
	})
	if len(some) > 0 {
		t.Errorf("these start again, although the last message was delivered: %v", some)
	}
}

// A message without a key goes to the partition in which its ID is scheduled. An earlier message of the same batch with
// a key may go to another one. Regression: if key and ID belonged to one partition, both messages went out together,
// and the earlier one was left.
func TestAMessageWithoutAKeyTakesThePlaceOfOneInTheSameBatch(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	id, key := keyOf(3), ""
	for i := 0; key == ""; i++ {
		if one := fmt.Sprint("key-", i); (lua.Counts{1, 8}).Of(one) == 3 {
			key = one
		}
	}
	r.mustSchedule(Message{ID: id, Key: keyOf(7), Delay: time.Hour})
	results, err := r.p.ScheduleBatch(t.Context(), r.queue, []Message{
		{ID: id, Key: key, Delay: time.Hour, Payload: []byte("first"), Replace: lua.Replace},
		{ID: id, Delay: time.Hour, Payload: []byte("last"), Replace: lua.Replace},
	})
	if err != nil || results[0].Err != nil || results[1].Err != nil {
		t.Fatal(results, err)
	}
	r.wantScheduled(id, 3, "last")
}

// Regression: a call read the due time of the old message before its version. If the message was replaced between the
// two reads, a call that may only replace an earlier message cancelled a version that is later.
func TestLaterIsComparedWithTheVersionThatGoes(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	now := queuetest.Now(t, r.c)
	r.mustSchedule(Message{ID: "x", Key: keyOf(7), At: now.Add(time.Hour)})
	ms := []Message{{ID: "x", Key: keyOf(3), At: now.Add(2 * time.Hour), Replace: lua.ReplaceLater}}
	round, asked := r.newRound(r.p, ms), []batchMessage{{0, "x"}}
	held, err := lookUpChunk(t.Context(), r.c, r.keys(7), asked)
	if err != nil || held[0].refuses(&ms[0]) {
		t.Fatal(held, err)
	}
	r.mustSchedule(Message{ID: "x", Key: keyOf(7), At: now.Add(3 * time.Hour), Replace: lua.ReplaceLater})
	if err := round.versions(t.Context(), 7, ms, asked, held); err != nil {
		t.Fatal(err)
	}
	if !held[0].refuses(&ms[0]) {
		t.Errorf("%+v is to be replaced by a message that is due an hour earlier", held[0])
	}
}

// A message that replaces a message of another partition copies its dedup window. Regression: if the ID had come to the
// new message's own partition meanwhile, this window refused the new message, and an older version stayed.
func TestAReplacementIsNotRefusedByTheWindowThatItBrings(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	r.mustSchedule(Message{ID: "x", Key: keyOf(7), Delay: time.Hour, Dedup: time.Hour})
	results, err := r.p.ScheduleBatch(t.Context(), r.queue, []Message{
		{ID: "x", Key: keyOf(3), Delay: time.Hour, Payload: []byte("first"), Replace: lua.Replace},
		{ID: "x", Key: keyOf(3), Delay: 2 * time.Hour, Payload: []byte("last"), Replace: lua.Replace},
	})
	if err != nil || results[0].Err != nil || results[1].Err != nil {
		t.Fatal(results, err)
	}
	r.wantScheduled("x", 3, "last")
	if left := r.partitionsOf("x"); len(left) != 1 {
		t.Errorf("scheduled in the partitions %v", left)
	}
}

// A large batch takes longer than the time limit for repeats. Regression: a message of such a batch that was contested
// once returned ErrUncertain at once, as if other calls had replaced it again and again.
func TestAContestedMessageOfALongBatchBeginsAgain(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	r.mustSchedule(Message{ID: "x", Key: keyOf(7), Delay: time.Hour, Dedup: time.Hour})
	ms := []Message{
		{ID: "x", Key: keyOf(3), Delay: time.Hour, Payload: []byte("first"), Replace: lua.Replace},
		{ID: "x", Key: keyOf(3), Delay: 2 * time.Hour, Payload: []byte("last"), Replace: lua.Replace},
	}
	round := r.newRound(r.p, ms)
	for _, result := range round.schedule(t.Context(), ms, time.Now().Add(-time.Hour)) {
		redistest.Want(t, "result", result.Err, nil)
	}
	r.wantScheduled("x", 3, "last")
}

// A call that replaced nothing in its own partition must start again only if another partition has a version. If there
// is none, another call has cancelled the message, and its caller was told that the message is never delivered.
func TestACancelIsNotUndoneByAReplacement(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	for _, before := range [][]Message{nil, {{ID: "y", Key: keyOf(7), Delay: time.Hour}}} {
		for _, m := range before {
			r.mustSchedule(m)
		}
		ms := []Message{{ID: "x", Key: keyOf(3), Delay: time.Hour, Replace: lua.Replace}}
		if before != nil {
			ms[0].ID = "y"
		}
		round := r.newRound(r.p, ms)
		refused := round.duplicates(t.Context(), ms)
		results := round.store(t.Context(), ms, refused, time.Now())
		if results[0].Err != nil {
			t.Fatal(results)
		}
		round.cancelReplaced(t.Context(), ms, results)
		if found, err := r.p.Cancel(t.Context(), r.queue, ms[0].ID); err != nil || !found {
			t.Fatal(found, err)
		}
		if some := round.contested(t.Context(), ms, results); len(some) > 0 {
			t.Errorf("%s begins again, although it was cancelled", ms[0].ID)
		}
	}
}

// If a partition does not answer the last look of a call, the call must return an error. Regression: if it was another
// partition than that of the message, it might have held a message of a concurrent call, and the call returned no
// error. If it was the partition of the message, and had refused the message, the call returned ErrDuplicate, although
// the message might have been there.
func TestAReplacementSaysThatAPartitionDidNotAnswer(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	replace := func(id string, silent int, refused bool) error {
		t.Helper()
		r.mustSchedule(Message{ID: id, Key: keyOf(7), Delay: time.Hour, Dedup: time.Hour})
		ms := []Message{{ID: id, Key: keyOf(3), Delay: time.Hour, Replace: lua.Replace}}
		round := r.newRound(r.p, ms)
		duplicates := round.duplicates(t.Context(), ms)
		if refused {
			queuetest.Do(t, r.c, "ZADD", r.keys(3).Seen, "9e12", id)
		}
		results := round.store(t.Context(), ms, duplicates, time.Now())
		round.cancelReplaced(t.Context(), ms, results)
		queuetest.Do(t, r.c, "SET", r.keys(silent).Due, "no sorted set")
		defer queuetest.Do(t, r.c, "DEL", r.keys(silent).Due)
		if some := round.contested(t.Context(), ms, results); len(some) > 0 {
			t.Errorf("%s begins again", id)
		}
		return results[0].Err
	}
	if err := replace("refused", 3, true); errors.Is(err, ErrDuplicate) || !errors.Is(err, lua.ErrWrongType) {
		t.Errorf("the partition of the message does not answer: %v", err)
	}
	if err := replace("taken", 5, false); !errors.Is(err, ErrUncertain) {
		t.Errorf("another partition does not answer: %v", err)
	}
}

// Regression: a replacement that started again returned Replaced, although no message with its ID was left to replace.
func TestAMessageThatBeginsAgainSaysWhetherItReplacedOne(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	for _, replaced := range []bool{false, true} {
		ms := []Message{{ID: fmt.Sprint("replaced-", replaced), Key: keyOf(3), Delay: time.Hour, Replace: lua.Replace}}
		results := []Result{{Receipt: Receipt{ID: ms[0].ID, Replaced: replaced}}}
		round := r.newRound(r.p, ms)
		round.scheduleAgain(t.Context(), ms, []int{0}, results)
		redistest.Want(t, ms[0].ID, fmt.Sprint(results[0].Replaced, results[0].Err), fmt.Sprint(replaced, nil))
	}
}

// interleavings returns the orders of two calls of a and b steps: for each step, the call that makes it.
func interleavings(a, b int) (orders [][]int) {
	if a == 0 && b == 0 {
		return [][]int{nil}
	}
	for who, left := range []int{a, b} {
		if left == 0 {
			continue
		}
		rest := []int{a, b}
		rest[who]--
		for _, order := range interleavings(rest[0], rest[1]) {
			orders = append(orders, append([]int{who}, order...))
		}
	}
	return orders
}

// Two calls replace one ID in two partitions. They make their steps in every order, and either of them dies after any
// of its steps. One message must always be left. So a call may cancel only versions that it saw before it added its
// own, and the last version that was added stays. Regression: each call cancelled the other's message. If one of them
// had made its last look, and the other one died before its look, nothing was left: a lost message.
func TestReplacementsLeaveOneWhereverTheyStop(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	// before = partitions in which the ID is scheduled; to = partitions of the keys of the two calls.
	for _, one := range []struct{ before, to []int }{
		{nil, []int{3, 5}}, {[]int{2}, []int{3, 5}},
		{[]int{3}, []int{3, 5}}, {[]int{3, 5}, []int{3, 5}}, {[]int{3, 5}, []int{3, 3}},
	} {
		t.Run(fmt.Sprint("from ", one.before, " to ", one.to), func(t *testing.T) {
			t.Parallel()
			r := newIdentityRig(t, s)
			c := contest{r, []*Producer{r.p, newProducer(t, s.Client(t), r.prefix)}, one.to, one.before}
			c.inEveryOrder()
		})
	}
}

// contest is two calls that replace one ID, in every order of their steps. All messages are equal, and due at one time.
type contest struct {
	*identityRig
	ps         []*Producer
	to, before []int
}

func (c *contest) inEveryOrder() {
	const all = replacerSteps
	at := time.UnixMilli(queuetest.Now(c.T, c.c).Add(time.Hour).UnixMilli())
	orders, deaths := 0, 0
	try := func(order []int, who, more int) (begunAgain bool) {
		orders++
		return c.inOrder(fmt.Sprint("x", orders), at, order, who, more)
	}
	for steps := range all {
		// One call dies in its first round.
		for _, order := range slices.Concat(interleavings(steps, all), interleavings(all, steps)) {
			try(order, 0, 0)
		}
	}
	for _, order := range interleavings(all, all) {
		for who := range c.ps {
			for more := 0; more < all && try(order, who, more); more++ { // one dies in its second round
				deaths++
			}
		}
	}
	c.Logf("%d orders, in %d of which a call died in its second round", orders, deaths)
	if deaths == 0 && c.to[0] != c.to[1] {
		c.Error("no call has begun again")
	}
}

// inOrder makes the two calls take the steps of their first round in an order. A call that has made all of them then
// makes its further rounds. If call who has to start again, it makes only `more` further steps and dies, or with more =
// 0 it finishes last.
func (c *contest) inOrder(id string, at time.Time, order []int, who, more int) (begunAgain bool) {
	c.Helper()
	about := fmt.Sprintf("%s, steps %v, then %d of call %d", id, order, more, who)
	for _, partition := range c.before {
		m := lua.Item{ID: id, When: lua.At(at), Payload: []byte("p"),
			Meta: lua.EncodeMeta(nil, 0, time.Time{}, lua.FieldValue{Field: lua.FieldKey, Value: keyOf(partition)})}
		_, err := lua.Enqueue(c.Context(), c.c, c.keys(partition), lua.Token{}, []lua.Item{m}, lua.Durability{})
		if err != nil {
			c.Fatal(err)
		}
	}
	var calls []*replacer
	for i, p := range c.ps {
		m := Message{ID: id, Key: keyOf(c.to[i]), At: at, Payload: []byte("p"), Replace: lua.Replace}
		calls = append(calls, c.newReplacer(p, m))
	}
	steps := make([]int, len(calls))
	check := func() {
		c.Helper()
		added := len(c.before) > 0 || slices.Max(steps) > 1
		if added && len(c.partitionsOf(id)) == 0 {
			c.Errorf("%s: the message is scheduled nowhere", about)
		}
	}
	for _, one := range order {
		calls[one].step()
		steps[one]++
		check()
	}
	begunAgain = steps[who] == replacerSteps && !calls[who].over
	dies := begunAgain && more > 0
	if dies {
		for range more {
			calls[who].step()
			check()
		}
	}
	for _, one := range []int{1 - who, who} {
		if steps[one] == replacerSteps && !(dies && one == who) {
			calls[one].finish()
			check()
		} else {
			dies = true
		}
	}
	if left := c.partitionsOf(id); len(left) > 1 && !dies {
		c.Errorf("%s: both calls have returned, and the message is scheduled in the partitions %v", about, left)
	}
	return begunAgain
}

// partitionsOf returns the partitions in which an ID is scheduled.
func (r *identityRig) partitionsOf(id string) (partitions []int) {
	r.Helper()
	var commands []rueidis.Completed
	for partition := range 8 {
		commands = append(commands, r.c.B().Zscore().Key(r.keys(partition).Due).Member(id).Build())
	}
	for partition, reply := range r.c.DoMulti(r.Context(), commands...) {
		switch err := reply.Error(); {
		case err == nil:
			partitions = append(partitions, partition)
		case !rueidis.IsRedisNil(err):
			r.Fatal(err)
		}
	}
	return partitions
}
