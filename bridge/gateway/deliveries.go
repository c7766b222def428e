package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/ndjson"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/pull"
)

const (
	maxWait    = 60 * time.Second
	maxSettled = 100 // deliveries in one request
)

// delivery is the JSON form of a delivery.
type delivery struct {
	Token    pull.Token        `json:"token"`
	Queue    string            `json:"queue"`
	ID       string            `json:"id"`
	Attempt  int               `json:"attempt"`
	Due      time.Time         `json:"due,omitzero"`
	Within   int64             `json:"within_ms"` // visibility timeout, counted from the delivery
	Key      string            `json:"key,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
	Payload  admin.Payload     `json:"payload"`
	Error    string            `json:"error,omitempty"` // of the last attempt
	Lateness int64             `json:"late_ms"`
}

func deliveryOf(d *pull.Delivery) delivery {
	return delivery{Token: d.Token, Queue: d.Queue, ID: d.ID, Attempt: d.Attempt, Due: d.Due,
		Within: d.Within.Milliseconds(), Key: d.Extra[lua.FieldKey], Headers: d.Headers,
		Payload: admin.Payload(d.Payload), Error: d.Error, Lateness: d.Lateness().Milliseconds()}
}

func receive(c *call) (int, any, error) { return c.receive([]string{c.queue}, nil) }

// receiveOfSeveral receives from the queues in the query: in the order of the query, or by weights.
func receiveOfSeveral(c *call) (int, any, error) {
	queues := strings.SplitN(c.query["queues"], ",", pull.MaxQueues+2)
	if len(queues) > pull.MaxQueues {
		return 0, nil, lua.Invalid("queues", "", "must be 1 to %d names", pull.MaxQueues)
	}
	if err := c.mayAll(access.Consume, queues); err != nil {
		return 0, nil, err
	}
	var weights []int
	if text, is := c.query["weights"]; is {
		for _, one := range strings.SplitN(text, ",", pull.MaxQueues+2) {
			n, err := strconv.Atoi(one)
			if err != nil || len(weights) == len(queues) {
				return 0, nil, lua.Invalid("weights", cut(text), "must be a whole number for each queue, with commas between")
			}
			weights = append(weights, n)
		}
	}
	return c.receive(queues, weights)
}

func (c *call) receive(queues []string, weights []int) (int, any, error) {
	count, errCount := c.query.integer("count", 1, 1, pull.MaxCount)
	within, errWithin := c.query.millis("within_ms")
	wait, errWait := c.query.integer("wait_ms", 0, 0, maxWait.Milliseconds())
	if err := errors.Join(errCount, errWithin, errWait); err != nil {
		return 0, nil, err
	}
	if _, err := c.Body(0); err != nil { // with an unread body the server does not notice that the caller hangs up
		return 0, nil, err
	}
	found, err := c.pull(pull.Request{Queues: queues, Weights: weights, Group: c.query["group"], Count: int(count),
		Within: within, Wait: time.Duration(wait) * time.Millisecond})
	if err != nil {
		return 0, nil, err
	}
	if wait > 0 && len(found) > 0 {
		err := c.stillMay(access.Consume, queues)
		if err == nil {
			err = c.MayAnswer()
		}
		if err != nil {
			c.puller.GiveBack(c.Ctx, found)
			return 0, nil, err
		}
	}
	if c.Ctx.Err() != nil { // the caller hung up: an answer would still go into the buffers of its connection
		c.puller.GiveBack(c.Ctx, found)
		return 0, nil, context.Cause(c.Ctx)
	}
	leave, err := c.HoldBytes(pull.PayloadBytes(found))
	if err != nil { // without GiveBack the messages would stay pending, and lose an attempt
		c.puller.GiveBack(c.Ctx, found)
		return 0, nil, err
	}
	defer leave()
	all := make([]delivery, len(found))
	for i := range found {
		all[i] = deliveryOf(&found[i])
	}
	c.w.json(http.StatusOK, map[string]any{"deliveries": all})
	if err := http.NewResponseController(c.w).Flush(); err != nil { // the caller is gone
		c.puller.GiveBack(c.Ctx, found)
	}
	return 0, nil, nil
}

// pull pulls messages. If there are none, it waits for a message as long as the request says.
func (c *call) pull(r pull.Request) (found []pull.Delivery, err error) {
	err = c.Poll(r.Wait, func(ctx context.Context) (err error) {
		found, err = c.puller.Pull(ctx, r)
		return err
	})
	return found, err
}

// settlement is a caller's request to settle or extend a delivery.
type settlement struct {
	Token   pull.Token `json:"token"`
	Outcome string     `json:"outcome"` // one of outcomes; default ack
	In      *int64     `json:"in_ms"`   // delay of a retry or a snooze
	Within  int64      `json:"within_ms"`
	Error   string     `json:"error"`

	ticket pull.Ticket
}

const outcomes = "ack, retry, snooze, dead, release, extend"

// outcome is the answer to a settlement.
type outcome struct {
	Outcome stream.Settlement `json:"outcome"`
}

// extended is the answer for a delivery that was extended, and is still pending.
const extended stream.Settlement = "extended"

// settle settles all deliveries in the body. If an item is invalid or not allowed, it settles none.
func settle(c *call) (int, any, error) {
	text, err := c.Body(1 << 20)
	if err != nil {
		return 0, nil, err
	}
	var raw []json.RawMessage
	if json.Unmarshal(text, &raw) != nil || len(raw) < 1 {
		return 0, nil, malformed("the body is not a JSON array with an object for each delivery")
	}
	if len(raw) > maxSettled {
		return 0, nil, lua.Invalid("deliveries", strconv.Itoa(len(raw)), "must be at most %d", maxSettled)
	}
	all := make([]settlement, len(raw))
	for i, one := range raw {
		if err := ndjson.Decode(one, &all[i]); err != nil {
			return 0, nil, malformed("item %d is not an object of known fields: %s", i, shape(err))
		}
		if err := all[i].check(); err != nil {
			return 0, nil, err
		}
		if !c.Grant.May(access.Consume, all[i].ticket.Queue) {
			return 0, nil, forbidden(access.Consume)
		}
	}
	results := make([]outcome, len(all))
	// Extends come first: if one is refused for an invalid time, nothing must be settled. Any other error of a queue
	// or its server does not stop the deliveries of other queues from being settled.
	failed := c.extend(all, results)
	if errors.Is(failed, bridge.ErrInvalid) {
		return 0, nil, failed
	}
	var acknowledged, failures error
	var settling sync.WaitGroup
	settling.Go(func() { acknowledged = c.acknowledge(all, results) })
	settling.Go(func() { failures = c.fail(all, results) })
	settling.Wait()
	if failed = errors.Join(failed, acknowledged, failures); failed != nil {
		return 0, nil, failed
	}
	return http.StatusOK, map[string]any{"settled": results}, nil
}

func (s *settlement) check() (err error) {
	if s.ticket, err = s.Token.Read(); err != nil {
		return err
	}
	if s.Outcome == "" {
		s.Outcome = "ack"
	}
	if !strings.Contains(", "+outcomes+",", ", "+s.Outcome+",") {
		return lua.Invalid("outcome", cut(s.Outcome), "must be one of %s", outcomes)
	}
	if s.In != nil && s.Outcome != "retry" && s.Outcome != "snooze" {
		return lua.Invalid("in_ms", strconv.FormatInt(*s.In, 10), "is allowed only with the outcomes retry and snooze")
	}
	if s.In == nil && s.Outcome == "snooze" {
		return lua.Invalid("in_ms", "", "must be given with the outcome snooze")
	}
	if s.Within != 0 && s.Outcome != "extend" {
		return lua.Invalid("within_ms", strconv.FormatInt(s.Within, 10), "is allowed only with the outcome extend")
	}
	for name, ms := range map[string]*int64{"in_ms": s.In, "within_ms": &s.Within} {
		if ms != nil && (*ms < 0 || *ms > lua.MaxDelay.Milliseconds()) {
			return lua.Invalid(name, strconv.FormatInt(*ms, 10), "must be between 0 and %d", lua.MaxDelay.Milliseconds())
		}
	}
	return nil
}

// withOutcome returns the tokens of the deliveries with a matching outcome, and their indexes in all.
func withOutcome(all []settlement, matches func(outcome string) bool) (tokens []pull.Token, indexes []int) {
	for i, one := range all {
		if matches(one.Outcome) {
			tokens, indexes = append(tokens, one.Token), append(indexes, i)
		}
	}
	return tokens, indexes
}

// acknowledge settles the deliveries with the outcome ack.
func (c *call) acknowledge(all []settlement, results []outcome) error {
	tokens, indexes := withOutcome(all, func(outcome string) bool { return outcome == "ack" })
	won, err := c.puller.Ack(c.Ctx, tokens)
	for i, ok := range won {
		results[indexes[i]].Outcome = bridge.Lost
		if ok {
			results[indexes[i]].Outcome = bridge.Acknowledged
		}
	}
	return err
}

// extend extends the deliveries with the outcome extend.
func (c *call) extend(all []settlement, results []outcome) error {
	tokens, indexes := withOutcome(all, func(outcome string) bool { return outcome == "extend" })
	timeouts := make([]time.Duration, len(indexes))
	for i, index := range indexes {
		timeouts[i] = time.Duration(all[index].Within) * time.Millisecond
	}
	answers, err := c.puller.Extend(c.Ctx, tokens, timeouts)
	for i, answer := range answers {
		result := &results[indexes[i]]
		switch answer {
		case lua.StillHeld:
			result.Outcome = extended
		case lua.HeldCancelled:
			result.Outcome = bridge.Cancelled
		default:
			result.Outcome = bridge.Lost
		}
	}
	return err
}

// fail settles the deliveries with an outcome other than ack and extend.
func (c *call) fail(all []settlement, results []outcome) error {
	tokens, indexes := withOutcome(all, func(outcome string) bool { return outcome != "ack" && outcome != "extend" })
	reasons := make([]error, len(indexes))
	for i, index := range indexes {
		reasons[i] = all[index].reason()
	}
	outcomes, err := c.puller.Fail(c.Ctx, tokens, reasons)
	for i, outcome := range outcomes {
		results[indexes[i]].Outcome = outcome
	}
	return err
}

// reason returns the error that a handler would return for the same outcome.
func (s *settlement) reason() error {
	var reason error
	if s.Error != "" {
		reason = errors.New(s.Error)
	}
	switch {
	case s.Outcome == "dead":
		return bridge.DeadLetter(reason)
	case s.Outcome == "release":
		return bridge.Release(nil)
	case s.Outcome == "snooze":
		return bridge.Snooze(time.Duration(*s.In) * time.Millisecond)
	case s.In != nil:
		return bridge.RetryAfter(time.Duration(*s.In)*time.Millisecond, reason)
	case reason == nil:
		return errors.New("retry requested")
	}
	return reason
}
