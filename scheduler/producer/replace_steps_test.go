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

// replacer is a call that replaces an ID, step by step: it looks up the ID, adds its message, cancels the versions that
// it saw, and looks once more, which may start another round.
type replacer struct {
	*identityRig
	p       *Producer
	ms      []Message
	round   batchRoute
	refused map[int]error
	results []Result
	steps   int // done in this round
	over    bool
}

const replacerSteps = 4 // of a round

// round returns the batchRoute of a batch.
func (r *identityRig) round(p *Producer, ms []Message) batchRoute {
	r.Helper()
	way, err := p.enter(r.Context(), r.queue)
	if err != nil {
		r.Fatal(err)
	}
	p.busy.Done() // no step outlives the test
	round, err := way.batchRoute(r.Context(), ms, time.Now())
	if err != nil {
		r.Fatal(err)
	}
	return round
}

func (r *identityRig) replacer(p *Producer, m Message) *replacer {
	r.Helper()
	ms := []Message{m}
	return &replacer{identityRig: r, p: p, ms: ms, round: r.round(p, ms)}
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
		c.round.takeAway(ctx, c.ms, c.results)
	case 3:
		some := c.round.contested(ctx, c.ms, c.results)
		if c.over = len(some) == 0; !c.over {
			c.round, c.ms = c.round.anew(c.ms, some, c.results)
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
			c.Fatal("it begins again and again")
		}
		c.step()
	}
}

// Of messages with one ID and one key in a batch the last one stays. When the batch had to start again, it used to do
// so in any order, and the first one was left. And when the last one was drained before the second look, the first one,
// which it had replaced, was scheduled again.
func TestTheLastOfABatchStaysWhenItBeginsAgain(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	batch := func(id string, last time.Duration) []Message {
		r.takes(Message{ID: id, Key: keyOf(7), Delay: time.Hour})
		return []Message{
			{ID: id, Key: keyOf(3), Delay: time.Hour, Payload: []byte("first"), Replace: lua.Replace},
			{ID: id, Key: keyOf(3), Delay: 2 * time.Hour, Payload: []byte("second"), Replace: lua.Replace},
			{ID: id, Key: keyOf(3), Delay: last, Payload: []byte("last"), Replace: lua.Replace},
		}
	}
	look := func(ms []Message, meanwhile func()) []int {
		round := r.round(r.p, ms)
		results := round.store(t.Context(), ms, round.duplicates(t.Context(), ms), time.Now())
		round.takeAway(t.Context(), ms, results)
		meanwhile()
		return round.contested(t.Context(), ms, results)
	}
	some := look(batch("beside", 3*time.Hour), func() {
		queuetest.Do(t, r.c, "ZADD", r.keys(5).Due, "1e13", "beside") // by a call that has not seen this one
	})
	if !slices.Equal(some, []int{2}) {
		t.Errorf("beside another one these begin again: %v", some)
	}
	some = look(batch("due", 0), func() {
		if d, err := lua.Drain(t.Context(), r.c, r.keys(3), 10, 1<<20); err != nil || d.Moved != 1 {
			t.Fatal(d, err)
		}
	})
	if len(some) > 0 {
		t.Errorf("these begin again, though the last one was delivered: %v", some)
	}
}

// A message without a key goes to the partition in which its ID is scheduled, which is not that of an earlier message
// of the batch with a key. Both used to go out together if key and ID belonged to one partition, and the earlier one
// was left.
func TestAMessageWithoutAKeyTakesThePlaceOfOneInTheSameBatch(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	id, key := keyOf(3), ""
	for i := 0; key == ""; i++ {
		if one := fmt.Sprint("key-", i); (lua.Counts{1, 8}).Of(one) == 3 {
			key = one
		}
	}
	r.takes(Message{ID: id, Key: keyOf(7), Delay: time.Hour})
	results, err := r.p.ScheduleBatch(t.Context(), r.queue, []Message{
		{ID: id, Key: key, Delay: time.Hour, Payload: []byte("first"), Replace: lua.Replace},
		{ID: id, Delay: time.Hour, Payload: []byte("last"), Replace: lua.Replace},
	})
	if err != nil || results[0].Err != nil || results[1].Err != nil {
		t.Fatal(results, err)
	}
	r.scheduled(id, 3, "last")
}

// The due time was read before the version. A call that may only replace an earlier message used to cancel a version
// that is later.
func TestLaterIsComparedWithTheVersionThatGoes(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	now := queuetest.Now(t, r.c)
	r.takes(Message{ID: "x", Key: keyOf(7), At: now.Add(time.Hour)})
	ms := []Message{{ID: "x", Key: keyOf(3), At: now.Add(2 * time.Hour), Replace: lua.ReplaceLater}}
	round, asked := r.round(r.p, ms), []batchMessage{{0, "x"}}
	held, err := holds(t.Context(), r.c, r.keys(7), asked)
	if err != nil || held[0].refuses(&ms[0]) {
		t.Fatal(held, err)
	}
	r.takes(Message{ID: "x", Key: keyOf(7), At: now.Add(3 * time.Hour), Replace: lua.ReplaceLater})
	if err := round.versions(t.Context(), 7, ms, asked, held); err != nil {
		t.Fatal(err)
	}
	if !held[0].refuses(&ms[0]) {
		t.Errorf("%+v is to be replaced by what is due an hour earlier", held[0])
	}
}

// A message that replaces a message of another partition copies its dedup window. Regression: if the ID had come to the
// new message's own partition meanwhile, this window refused the new message, and an older version stayed.
func TestAReplacementIsNotRefusedByTheWindowThatItBrings(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	r.takes(Message{ID: "x", Key: keyOf(7), Delay: time.Hour, Dedup: time.Hour})
	results, err := r.p.ScheduleBatch(t.Context(), r.queue, []Message{
		{ID: "x", Key: keyOf(3), Delay: time.Hour, Payload: []byte("first"), Replace: lua.Replace},
		{ID: "x", Key: keyOf(3), Delay: 2 * time.Hour, Payload: []byte("last"), Replace: lua.Replace},
	})
	if err != nil || results[0].Err != nil || results[1].Err != nil {
		t.Fatal(results, err)
	}
	r.scheduled("x", 3, "last")
	if left := r.partitionsOf("x"); len(left) != 1 {
		t.Errorf("scheduled in the partitions %v", left)
	}
}

// A large batch takes longer than the time limit for repeats. A message of it that was contested once used to return
// ErrUncertain at once, as if other calls had replaced it again and again.
func TestAContestedMessageOfALongBatchBeginsAgain(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	r.takes(Message{ID: "x", Key: keyOf(7), Delay: time.Hour, Dedup: time.Hour})
	ms := []Message{
		{ID: "x", Key: keyOf(3), Delay: time.Hour, Payload: []byte("first"), Replace: lua.Replace},
		{ID: "x", Key: keyOf(3), Delay: 2 * time.Hour, Payload: []byte("last"), Replace: lua.Replace},
	}
	round := r.round(r.p, ms)
	for _, result := range round.schedule(t.Context(), ms, time.Now().Add(-time.Hour)) {
		redistest.Want(t, "result", result.Err, nil)
	}
	r.scheduled("x", 3, "last")
}

// A call that replaced nothing in its own partition begins again only if another partition has a version. If there is
// none, another call has cancelled the message, and its caller was told that the message is never delivered.
func TestACancelIsNotUndoneByAReplacement(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	for _, before := range [][]Message{nil, {{ID: "y", Key: keyOf(7), Delay: time.Hour}}} {
		for _, m := range before {
			r.takes(m)
		}
		ms := []Message{{ID: "x", Key: keyOf(3), Delay: time.Hour, Replace: lua.Replace}}
		if before != nil {
			ms[0].ID = "y"
		}
		round := r.round(r.p, ms)
		refused := round.duplicates(t.Context(), ms)
		results := round.store(t.Context(), ms, refused, time.Now())
		if results[0].Err != nil {
			t.Fatal(results)
		}
		round.takeAway(t.Context(), ms, results)
		if found, err := r.p.Cancel(t.Context(), r.queue, ms[0].ID); err != nil || !found {
			t.Fatal(found, err)
		}
		if some := round.contested(t.Context(), ms, results); len(some) > 0 {
			t.Errorf("%s begins again, although it was cancelled", ms[0].ID)
		}
	}
}

// A partition does not answer the last look of a call. If it is not the partition of the message, it may hold a message
// of a concurrent call. Regression: the call returned no error. If it is the partition of the message, and refused the
// message, the call does not know whether the message is there. Regression: the call returned ErrDuplicate.
func TestAReplacementSaysThatAPartitionDidNotAnswer(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	replace := func(id string, silent int, refused bool) error {
		t.Helper()
		r.takes(Message{ID: id, Key: keyOf(7), Delay: time.Hour, Dedup: time.Hour})
		ms := []Message{{ID: id, Key: keyOf(3), Delay: time.Hour, Replace: lua.Replace}}
		round := r.round(r.p, ms)
		duplicates := round.duplicates(t.Context(), ms)
		if refused {
			queuetest.Do(t, r.c, "ZADD", r.keys(3).Seen, "9e12", id)
		}
		results := round.store(t.Context(), ms, duplicates, time.Now())
		round.takeAway(t.Context(), ms, results)
		queuetest.Do(t, r.c, "SET", r.keys(silent).Due, "no sorted set")
		defer queuetest.Do(t, r.c, "DEL", r.keys(silent).Due)
		if some := round.contested(t.Context(), ms, results); len(some) > 0 {
			t.Errorf("%s begins again", id)
		}
		return results[0].Err
	}
	if err := replace("refused", 3, true); errors.Is(err, ErrDuplicate) || !errors.Is(err, lua.ErrWrongType) {
		t.Errorf("its own partition is silent: %v", err)
	}
	if err := replace("taken", 5, false); !errors.Is(err, ErrUncertain) {
		t.Errorf("another partition is silent: %v", err)
	}
}

// A replacement that began again used to return Replaced, although no message with its ID was left.
func TestAMessageThatBeginsAgainSaysWhetherItReplacedOne(t *testing.T) {
	t.Parallel()
	r := newIdentityRig(t, redistest.Shared(t))
	for _, replaced := range []bool{false, true} {
		ms := []Message{{ID: fmt.Sprint("replaced-", replaced), Key: keyOf(3), Delay: time.Hour, Replace: lua.Replace}}
		results := []Result{{Receipt: Receipt{ID: ms[0].ID, Replaced: replaced}}}
		round := r.round(r.p, ms)
		round.again(t.Context(), ms, []int{0}, results)
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

// Two calls that replaced one ID in two partitions used to cancel each other's message. If one of them had already
// looked once more, and the other one died before its look, nothing was left: a lost message. Now a call cancels only
// versions that it saw before it added its own, so the last version that was added stays. Here two calls make their
// steps in every order, and either of them dies after any of its steps.
func TestReplacementsLeaveOneWhereverTheyStop(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	for _, one := range []struct{ before, to []int }{ // partitions of the scheduled ID; of the calls' keys
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

// contest is two calls that replace one ID. All messages are equal, and due at the same time.
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

// inOrder makes the calls take the steps of their first round in an order. A call that has made all of them finishes;
// but if call who starts again, it makes more further steps and dies, or with more = 0 finishes last.
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
		calls = append(calls, c.replacer(p, m))
	}
	steps := make([]int, len(calls))
	check := func() {
		c.Helper()
		added := len(c.before) > 0 || slices.Max(steps) > 1
		if added && len(c.partitionsOf(id)) == 0 {
			c.Errorf("%s: it is scheduled nowhere", about)
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
		c.Errorf("%s: both calls have returned, and it is scheduled in the partitions %v", about, left)
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
