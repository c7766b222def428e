package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// Bounds of waits for results.
const (
	// shortWait limits the waits that may end before they have searched for the message. A shorter wait searches at its
	// end.
	shortWait = 3 * time.Second

	// maxTokenResults limits the waits for results of one token at the same time: a quarter of the limit of admin.Admin.
	maxTokenResults = 250
)

// resultOf is the result of a message that a group has done.
type resultOf struct {
	Queue   string        `json:"queue"`
	ID      string        `json:"id"`
	Group   string        `json:"group"`
	Value   admin.Payload `json:"value"` // "" if the handler set none
	Attempt int           `json:"attempt"`
	Done    time.Time     `json:"done"`
}

// result returns the result of a message. With wait_ms it waits for the result. While the message is not done, the
// answer has no content.
func result(c *call) (int, any, error) {
	group := c.query["group"]
	wait, err := c.query.integer("wait_ms", 0, 0, maxWait.Milliseconds())
	if err := errors.Join(err, lua.CheckGroup(group), lua.CheckID(c.id())); err != nil {
		return 0, nil, err
	}
	if _, err := c.Body(0); err != nil { // with an unread body the server does not notice that the caller hangs up
		return 0, nil, err
	}
	known, cancel := context.WithTimeout(c.Ctx, c.cfg.Timeout)
	err = c.op.CheckKnown(known, c.queue)
	cancel()
	if err != nil {
		return 0, nil, err
	}
	r, err := c.awaitResult(group, time.Duration(wait)*time.Millisecond)
	if wait > 0 {
		if err := c.stillMay(access.Inspect, []string{c.queue}); err != nil {
			return 0, nil, err
		}
	}
	var dead *bridge.DeadError
	switch {
	case errors.As(err, &dead):
		return 0, nil, deadMessage(dead.Reason)
	case errors.Is(err, admin.ErrNotDone):
		return http.StatusNoContent, nil, nil
	case err != nil:
		return 0, nil, err
	case wait > 0:
		if err := c.MayAnswer(); err != nil {
			return 0, nil, err
		}
	}
	value := append(admin.Payload{}, r.Value...) // not nil, which would say that the value was lost
	return http.StatusOK, resultOf{c.queue, c.id(), group, value, r.Attempt, r.Done}, nil
}

// awaitResult waits for a result. admin.ErrNotDone: the time is over, or the gateway stops.
func (c *call) awaitResult(group string, wait time.Duration) (r bridge.MessageResult, err error) {
	if wait > 0 {
		r, isOver, err := c.waitForResult(group, wait)
		if !isOver || err != nil {
			return r, err
		}
		if c.g.stopping.Err() != nil {
			return r, admin.ErrNotDone
		}
	}
	err = c.Poll(0, func(ctx context.Context) (err error) {
		if wait < shortWait {
			r, err = c.op.LookForResult(ctx, c.queue, c.id(), group)
			return err
		}
		// The wait went on while Redis did not answer, so ask once more.
		r, err = c.op.Result(ctx, c.queue, c.id(), group)
		if errors.Is(err, bridge.ErrNoResult) {
			err = admin.ErrNotDone // the wait has searched for the message
		}
		return err
	})
	return r, err
}

// waitForResult waits for a result, at most as long as wait. isOver reports that there is no result although this time
// has passed, or because the gateway stops.
func (c *call) waitForResult(group string, wait time.Duration) (r bridge.MessageResult, isOver bool, err error) {
	token := c.Grant.Name()
	defer c.results.end(token)
	if c.results.begin(token) {
		return r, false, busy(ErrBusy, "this token has reached its limit of waits for results: try again")
	}
	isOver = true // Poll returns nil also if the gateway stops
	err = c.Poll(wait, func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		found, err := c.op.WaitFor(limited, c.queue, c.id(), group, bridge.AwaitDone)
		if err != nil && limited.Err() != nil && errors.Is(err, limited.Err()) && c.Ctx.Err() == nil {
			return nil
		}
		r, isOver = found, false
		return err
	})
	return r, isOver, err
}

// deadMessage returns the problem of a message that the group gave up. Another program may have written the reason, so
// a reason that is unknown is shown as "other".
func deadMessage(reason string) *problem {
	if !slices.Contains(admin.Reasons(), reason) {
		reason = "other"
	}
	return &problem{Type: typeDead, Status: http.StatusGone, Reason: reason,
		Detail: "the message is a dead letter of the group, so it has no result"}
}
