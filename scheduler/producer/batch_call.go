package producer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// batchCall is one ScheduleBatch with the results known so far.
type batchCall struct {
	ctx  context.Context
	mu   sync.Mutex
	open int // messages without an answer
	done chan struct{}

	results  []Result
	answered []bool
	one      [1]Result // most calls have one message
	first    [1]bool
}

func newBatchCall(ctx context.Context, n int) *batchCall {
	c := &batchCall{ctx: ctx, open: n, done: make(chan struct{})}
	c.results, c.answered = c.one[:], c.first[:]
	if n != 1 {
		c.results, c.answered = make([]Result, n), make([]bool, n)
	}
	if n == 0 {
		close(c.done)
	}
	return c
}

// answer sets the result of one message. The ID may be there already: add writes it before other goroutines see the
// message.
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
	ended := c.ctx.Done()
	if ended == nil { // a select with two channels costs more
		<-c.done
		return c.results
	}
	select {
	case <-c.done:
		return c.results
	case <-ended:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	results := slices.Clone(c.results) // the committer still writes to its own
	for i := range results {
		if !c.answered[i] {
			results[i].Err = wrap("schedule", queue, results[i].ID, joinUncertain(c.ctx.Err()))
		}
	}
	return results
}

// waiting is one message on its way into a commit.
type waiting struct {
	call  *batchCall
	at    int // index among the call's results
	item  lua.Item
	since time.Time

	spread time.Duration
	key    string // of the message; decides the partition
}

// answerAll gives each message of a commit its result. Messages of one call are adjacent, so each call is locked once.
func answerAll(batch []waiting, result func(i int) Result) {
	for i := 0; i < len(batch); {
		c := batch[i].call
		c.mu.Lock()
		for ; i < len(batch) && batch[i].call == c; i++ {
			c.results[batch[i].at], c.answered[batch[i].at] = result(i), true
			c.open--
		}
		if c.open == 0 {
			close(c.done)
		}
		c.mu.Unlock()
	}
}

// result returns the result of one message. waited is the error if the commit is not as durable as asked.
func result(id string, r lua.Receipt, waited error) Result {
	switch r.Verdict {
	case lua.Duplicate:
		if waited != nil { // then the stored message may not be durable, either
			return Result{Receipt{ID: id}, fmt.Errorf("%w: %w", ErrDuplicate, waited)}
		}
		return Result{Receipt{ID: id}, ErrDuplicate}
	case lua.Malformed:
		return Result{Receipt{ID: id}, lua.Invalid("headers", id, "the server cannot read them")}
	}
	return Result{Receipt{ID: id, Due: r.Due, Ready: r.Verdict == lua.Ready, Replaced: r.Verdict == lua.Replaced},
		waited}
}
