package producer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// Schedule puts one message into a queue. Once it returns nil, the message is delivered at least once to every group,
// or cancelled, or dead-lettered. The receipt has the ID of the message even if there is an error.
//
// Schedule blocks until the server has answered. While the server is unavailable, it blocks for at most RetryTimeout
// plus 5s plus Durability.Timeout. If ctx ends first, the error is ErrUncertain, and the message may still be stored. A
// call whose reply was lost is repeated, and the message is not stored twice. Messages of concurrent calls share a
// script call. Schedule takes one round trip; the cost is O(log n) in the number of scheduled messages.
//
// The first call for a queue also asks the registry for the partition count of the queue. A message with neither an
// ordering key nor a chosen ID waits for the answer for a second at most, and then goes to partition 0. Any other
// message waits for RetryTimeout at most. Then it is refused, and nothing was sent. After the first call the producer
// asks the registry every 5s, in the background.
//
// An ID belongs to its queue, whatever the ordering key of its message. So in a queue with several partitions Schedule
// looks a chosen ID up in all of them, which takes one more round trip. A message with Replace and Key goes to the
// partition of its ordering key. If other partitions have messages with its ID, Schedule looks them up before it stores
// the message, and cancels them afterwards; each step takes a round trip. Then it looks the ID up once more, unless the
// ID was only scheduled in the message's own partition. If one of the last two steps fails, the error is ErrUncertain,
// and both messages may be delivered. If several calls replace an ID at the same moment, the message that was added
// last stays, even if any of the calls is interrupted at any step.
//
// In two cases a duplicate may be stored without ErrDuplicate. First, for some seconds after a growth a producer may
// not know the new partition count, and store an ID in its old partition while the ID is scheduled in its new one.
// Second, several concurrent calls with the same ID may succeed if they know different counts, or have ordering keys of
// different partitions.
//
// Errors: *lua.InvalidError before Redis is touched; ErrDuplicate; lua.ErrFull; ErrUncertain; ErrClosed;
// lua.ErrNotDurable if the message was stored, and then the receipt is complete; lua.ErrUnsupported if the server
// cannot give the durability, and then nothing was sent; and other errors of the server.
func (p *Producer) Schedule(ctx context.Context, queue string, m Message) (Receipt, error) {
	results, err := p.ScheduleBatch(ctx, queue, []Message{m})
	if err != nil {
		return Receipt{}, err
	}
	return results[0].Receipt, results[0].Err
}

// ScheduleBatch is Schedule for many messages. It returns one result for each message, in order. Messages with equal
// due times and without IDs keep their order within a partition. The error is set only if no message was sent: the
// queue name is illegal, there are more than lua.MaxBatch messages, the producer is closed, the context has ended
// before, the server cannot give the durability, or a message has ExpiresIn and the server's clock cannot be read. The
// batch is not atomic: it is sent in calls of at most MaxCommit messages.
func (p *Producer) ScheduleBatch(ctx context.Context, queue string, ms []Message) ([]Result, error) {
	if len(ms) > lua.MaxBatch {
		return nil, wrap("schedule", queue, "", lua.Invalid("batch", fmt.Sprint(len(ms)), "must be at most %d messages",
			lua.MaxBatch))
	}
	began := time.Now()
	r, err := p.enter(ctx, queue)
	if err != nil {
		return nil, wrap("schedule", queue, "", err)
	}
	defer p.busy.Done()
	b, err := r.newBatch(ctx, ms, began)
	if err == nil && slices.ContainsFunc(ms, needsServerTime) {
		ms, err = p.withExpiry(ctx, queue, ms)
	}
	if err != nil {
		return nil, wrap("schedule", queue, "", err)
	}
	if b.only == nil && len(ms) > 1 && slices.ContainsFunc(ms, hasID) {
		return b.scheduleApart(ctx, ms, began), nil
	}
	return b.schedule(ctx, ms, began), nil
}

func hasID(m Message) bool { return m.ID != "" }

func hasKey(m Message) bool { return m.Key != "" }

// needsPartitions reports whether a message must wait until the partition count of its queue is known. If a message
// with an ordering key went to partition 0, it could overtake other messages with the key. If a message with a chosen
// ID went there, the ID could be accepted although another partition has it scheduled, or in a dedup window.
func needsPartitions(m Message) bool { return m.Key != "" || m.ID != "" }

// batchRoute distributes messages that are sent at the same time to the group commits of their partitions. Messages
// that must be sent once more, or later than others, get a batchRoute of their own.
type batchRoute struct {
	route  *route
	counts lua.Counts
	only   *groupCommit   // the group commit of a queue with one partition; else nil
	used   []*groupCommit // the group commits to which messages were added, in a queue with several partitions

	unread error // why the partition counts are unknown although a message needs them (see needsPartitions); else nil

	replacements map[int]replacement // extra work of replacements, by index in the batch

	contestedSince time.Time // when messages of the call were first scheduled again; zero = never
}

// schedule sends messages, and waits for their results. RetryTimeout counts from since.
func (b *batchRoute) schedule(ctx context.Context, ms []Message, since time.Time) []Result {
	var refused map[int]error
	if b.only == nil {
		refused = b.duplicates(ctx, ms)
	}
	results := b.store(ctx, ms, refused, since)
	if len(b.replacements) == 0 {
		return results
	}
	b.cancelReplaced(ctx, ms, results)
	if some := b.contested(ctx, ms, results); len(some) > 0 {
		b.scheduleAgain(ctx, ms, some, results)
	}
	return results
}

// store sends the messages that are not refused, and waits for their results. refused has errors by index in the batch.
func (b *batchRoute) store(ctx context.Context, ms []Message, refused map[int]error, since time.Time) []Result {
	queue := b.route.queue
	var oldBridge error // set if a live bridge does not serve messages with an ordering key
	if b.unread == nil && slices.ContainsFunc(ms, hasKey) {
		oldBridge = b.route.producer.levels.Allow(ctx, lua.LevelKeys, "messages with a key")
	}
	call := newBatchCall(ctx, len(ms))
	var one [1]waiting
	accepted := one[:0]
	if len(ms) > 1 {
		accepted = make([]waiting, 0, len(ms))
	}
	copies := newPayloadCopies(ms)
	for i := range ms {
		m := &ms[i]
		item, err := m.item(copies)
		switch {
		case err != nil:
		case b.unread != nil && needsPartitions(*m):
			err = fmt.Errorf("a message with a key or a chosen ID needs the number of partitions, "+
				"which is not known: %w", b.unread)
		case oldBridge != nil && hasKey(*m):
			err = oldBridge
		default:
			err = refused[i]
		}
		if err != nil {
			call.answer(i, Result{Receipt{ID: m.ID}, wrap("schedule", queue, m.ID, err)})
			continue
		}
		accepted = append(accepted, waiting{
			call: call, index: i, item: item, since: since, spread: m.Spread, key: m.Key,
		})
	}
	if b.only != nil {
		b.only.add(accepted)
		b.only.commitInCaller(call)
		return call.wait(queue)
	}
	b.addEach(accepted)
	for _, commit := range b.used {
		commit.start()
	}
	return call.wait(queue)
}

// addEach adds each message to the group commit of its partition. It generates missing IDs, because an ID decides the
// partition.
func (b *batchRoute) addEach(messages []waiting) {
	for i := range messages {
		message := &messages[i]
		if message.item.ID == "" {
			var err error
			if message.item.ID, err = b.route.newID(); err != nil {
				id := message.item.ID
				message.call.answer(message.index, Result{Receipt{ID: id}, wrap("schedule", b.route.queue, id, err)})
				continue
			}
		}
		partition := b.counts.Of(cmp.Or(message.key, message.item.ID))
		if t, replaces := b.replacements[message.index]; replaces {
			partition, message.item.Meta = t.to, lua.Marked(message.item.Meta)
			if t.window > 0 {
				message.item.Dedup = lua.Window(t.window)
			}
		}
		commit := b.route.groupCommit(partition)
		if !slices.Contains(b.used, commit) {
			b.used = append(b.used, commit)
		}
		commit.add(messages[i : i+1])
	}
}

// batchCall holds the results of messages that were sent at the same time, as far as they are known.
type batchCall struct {
	ctx  context.Context
	mu   sync.Mutex
	open int // number of messages without a result
	done chan struct{}

	results  []Result
	answered []bool
	// Storage of results and answered for a call with one message, as most calls have. It saves two allocations.
	oneResult   [1]Result
	oneAnswered [1]bool
}

func newBatchCall(ctx context.Context, n int) *batchCall {
	c := &batchCall{ctx: ctx, open: n, done: make(chan struct{})}
	c.results, c.answered = c.oneResult[:], c.oneAnswered[:]
	if n != 1 {
		c.results, c.answered = make([]Result, n), make([]bool, n)
	}
	if n == 0 {
		close(c.done)
	}
	return c
}

// answer sets the result of one message.
func (c *batchCall) answer(i int, r Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[i], c.answered[i] = r, true
	if c.open--; c.open == 0 {
		close(c.done)
	}
}

// wait returns the results when all are known, or when the context has ended.
func (c *batchCall) wait(queue string) []Result {
	ctxDone := c.ctx.Done()
	if ctxDone == nil { // without this case, every call would pay for a select with two channels
		<-c.done
		return c.results
	}
	select {
	case <-c.done:
		return c.results
	case <-ctxDone:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	results := slices.Clone(c.results) // committers may still write to c.results
	for i := range results {
		if !c.answered[i] {
			results[i].Err = wrap("schedule", queue, results[i].ID, joinUncertain(c.ctx.Err()))
		}
	}
	return results
}

// waiting is a message that waits to be sent in a commit.
type waiting struct {
	call  *batchCall
	index int // of the message in call.results
	item  lua.Item
	since time.Time // RetryTimeout counts from it

	spread time.Duration
	key    string // ordering key
}

// answerAll sets the result of each message of a commit. Messages of one call are adjacent, so each call is locked
// once.
func answerAll(batch []waiting, result func(i int) Result) {
	for i := 0; i < len(batch); {
		c := batch[i].call
		c.mu.Lock()
		for ; i < len(batch) && batch[i].call == c; i++ {
			c.results[batch[i].index], c.answered[batch[i].index] = result(i), true
			c.open--
		}
		if c.open == 0 {
			close(c.done)
		}
		c.mu.Unlock()
	}
}

// result returns the result of one message. notDurable is set if the commit is less durable than the producer's
// Durability.
func result(id string, r lua.Receipt, notDurable error) Result {
	switch r.Verdict {
	case lua.Duplicate:
		if notDurable != nil { // the message that has the ID may not be durable, either
			return Result{Receipt{ID: id}, fmt.Errorf("%w: %w", ErrDuplicate, notDurable)}
		}
		return Result{Receipt{ID: id}, ErrDuplicate}
	case lua.Malformed:
		return Result{Receipt{ID: id}, lua.Invalid("headers", id, "the server cannot read them")}
	}
	return Result{Receipt{ID: id, Due: r.Due, Ready: r.Verdict == lua.Ready, Replaced: r.Verdict == lua.Replaced},
		notDurable}
}
