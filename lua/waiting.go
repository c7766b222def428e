package lua

import (
	"context"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// Waiting is a retry, or a redriven letter, that was found in the schedule.
type Waiting struct {
	Member string
	ID     string
	Group  string    // the group that it is for; "" = redriven for all
	Due    time.Time // the former due time if it was cancelled, the new one if it was moved
}

// Walk is one step of a walk through the schedule. An empty Cursor begins a walk. A cursor is valid only in the server
// process that made it, so all steps of a walk use one connection. If the connection is lost, the walk must begin
// again.
type Walk struct {
	Cursor string
	Limit  int    // members to look at in this step
	Group  string // "" = every group
}

var (
	cancelRetriesScript = load("cancel_retries",
		[]string{"due", "payload", "meta", "turns", "wake", "policy", "history"}, []string{"cursor", "limit", "group"},
		[]string{"id"})
	rescheduleRetriesScript = load("reschedule_retries", []string{"due", "wake", "policy", "history", "meta", "turns"},
		[]string{"cursor", "limit", "group", "when"},
		[]string{"id"})
)

// WalkDone is the cursor of a walk that has looked at everything.
const WalkDone = "0"

// CancelRetries is a step of a walk that removes the retries of messages from the schedule. It returns the cursor of
// the next step. A retry that is in the schedule during the whole walk is found; other retries may be missed.
func CancelRetries(ctx context.Context, c rueidis.Client, k Keys, w Walk,
	ids []string) (next string, cancelled []Waiting, err error) {
	return cancelRetriesScript.walk(ctx, c, []string{k.Due, k.Payload, k.Meta, k.Turns, k.Wake, k.Policy, k.History},
		append(append(w.args(), ids...), k.Actor))
}

// RescheduleRetries is a step of a walk that changes the due times of the retries of messages.
func RescheduleRetries(ctx context.Context, c rueidis.Client, k Keys, w Walk, when When,
	ids []string) (next string, moved []Waiting, err error) {
	return rescheduleRetriesScript.walk(ctx, c, rescheduleKeys(k),
		append(append(append(w.args(), string(when)), ids...), k.Actor))
}

func (w Walk) args() []string {
	if w.Cursor == "" {
		w.Cursor = WalkDone // as in SCAN, this cursor also begins a walk
	}
	return []string{w.Cursor, strconv.Itoa(w.Limit), w.Group}
}

func (s *script) walk(ctx context.Context, c rueidis.Client, keys, args []string) (string, []Waiting, error) {
	list, err := s.list(ctx, c, keys, args, 1)
	if err != nil {
		return "", nil, err
	}
	words := make([]string, len(list))
	for i := range list {
		if words[i], err = list[i].ToString(); err != nil {
			return "", nil, s.unexpected(err)
		}
	}
	var found []Waiting
	for i := 1; i+3 < len(words); i += 4 {
		found = append(found, Waiting{words[i], words[i+1], words[i+2], dueTime(words[i+3])})
	}
	return words[0], found, nil
}

// dueTime parses a score. Scores may be fractions, exponents and infinities.
func dueTime(score string) time.Time {
	ms, _ := strconv.ParseFloat(score, 64)
	ms, _ = DueScore(ms) // the score of a message that waits for its ordering key has an offset
	return time.UnixMilli(int64(math.Ceil(max(-1e15, min(ms, 1e15)))))
}

// Pin returns a client that sends everything over one connection, to one server process, until release. After the
// connection breaks, its calls fail. If a call got no answer, release closes the connection: to reuse it, release would
// have to wait for the answer, which a server that hangs never gives.
func Pin(c rueidis.Client) (pinned rueidis.Client, release func()) {
	one, giveBack := c.Dedicate()
	p := &pinnedConn{Client: c, one: one}
	return p, func() {
		if p.unanswered.Load() {
			one.Close()
		}
		giveBack()
	}
}

type pinnedConn struct {
	rueidis.Client
	one        rueidis.DedicatedClient
	unanswered atomic.Bool // a call ended without an answer
}

func (p *pinnedConn) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	result := p.one.Do(ctx, cmd)
	p.heard(result)
	return result
}

func (p *pinnedConn) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	results := p.one.DoMulti(ctx, cmds...)
	p.heard(results...)
	return results
}

func (p *pinnedConn) heard(results ...rueidis.RedisResult) {
	for _, result := range results {
		if result.NonRedisError() != nil {
			p.unanswered.Store(true)
		}
	}
}

// Confirm waits for d after writes to key over the same connection. It returns nil if they are as durable as d asks.
func (d Durability) Confirm(ctx context.Context, pinned rueidis.Client, key string) error {
	if !d.Waits() {
		return nil
	}
	return d.confirmed(pinned.DoMulti(ctx, d.commands(pinned, key, d.Timeout)...))
}
