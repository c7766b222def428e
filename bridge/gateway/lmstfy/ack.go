package lmstfy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/pull"
)

// ack finishes a job in any state.
func ack(c *call) (int, any, error) { return http.StatusNoContent, nil, c.finish(c.name, c.id) }

// finish makes sure that no consumer gets a job any more, whatever its state. It looks for the job in four places: the
// deliveries of this gateway, the schedule (which is fast), the jobs in flight, and last the whole queue.
func (c *call) finish(name, id string) error {
	if lua.CheckID(id) != nil {
		return nil // no such job can exist
	}
	if one, ok := c.delivered.take(name, id); ok {
		won, err := c.cfg.Puller.Ack(c.ctx, []pull.Token{one.token})
		if err != nil {
			c.delivered.putBack(jobKey{name, id}, one)
		}
		if err != nil || won[0] {
			return err
		}
	}
	looks := []func(name, id string) (done bool, err error){c.finishScheduled, c.finishInFlight}
	if _, _, _, ok := ParseID(id); !ok {
		slices.Reverse(looks) // another producer chose the ID, and may have scheduled it anew
	}
	for _, look := range looks {
		if done, err := look(name, id); err != nil || done {
			return err
		}
	}
	places, err := c.cfg.Admin.Locate(c.ctx, name, id)
	if errors.Is(err, admin.ErrNotFound) {
		return nil
	}
	for _, one := range places {
		err = errors.Join(err, c.finishAt(name, id, one))
	}
	return err
}

func (c *call) finishScheduled(name, id string) (done bool, err error) {
	err = c.cfg.Client.Cancel(c.ctx, name, id)
	if errors.Is(err, bridge.ErrNotScheduled) {
		return false, nil
	}
	return err == nil, err
}

func (c *call) finishInFlight(name, id string) (done bool, err error) {
	list, err := c.cfg.Admin.Pending(c.ctx, name, Group, admin.PendingFilter{}, mostSwept)
	if err != nil && !errors.Is(err, admin.ErrNoGroup) {
		return false, err
	}
	for _, one := range list {
		if one.ID != id {
			continue
		}
		token := ticket(name, one.Partition, one.Entry, id)
		if won, err := c.cfg.Puller.Ack(c.ctx, []pull.Token{token}); err != nil || won[0] {
			return err == nil, err
		}
	}
	return false, nil
}

func (c *call) finishAt(name, id string, p admin.Place) error {
	switch p.State {
	case admin.StateDead:
		_, err := c.cfg.Admin.DeadLetters().Purge(c.ctx, name, []string{p.Letter})
		return err
	case admin.StatePending:
		_, err := c.cfg.Puller.Ack(c.ctx, []pull.Token{ticket(name, p.Partition, p.Entry, id)})
		return err
	case admin.StateScheduled:
		if err := c.cfg.Client.Cancel(c.ctx, name, id); !errors.Is(err, bridge.ErrNotScheduled) {
			return err
		}
	}
	// A retry belongs to the group alone, and CancelRunning ends it for every gateway. A message that waits for its
	// first delivery may be for other groups as well.
	cancelled, err := c.cfg.Client.CancelRunning(c.ctx, name, Group, id)
	if err == nil &&
		(cancelled[0].Verdict == bridge.VerdictCancelled || cancelled[0].Verdict == bridge.VerdictCancelling) {
		return nil
	}
	if err != nil && !errors.Is(err, bridge.ErrOldBridge) {
		return err
	}
	until := p.Expires // after that no consumer gets the job anyway
	if until.IsZero() || time.Until(until) > MaxTTR {
		until = time.Now().Add(MaxTTR)
	}
	c.acknowledged.add(name, id, until.Add(time.Hour)) // a margin for clocks that differ
	return nil
}

// destroy deletes all jobs of a queue. The queue itself stays, with as many partitions: clients go on using it. It goes
// on when its caller hangs up, because a partition that has lost its settings would serve jobs by the defaults.
// Whatever fails, it tries to leave all partitions registered and with settings. It may be repeated.
func destroy(c *call) (int, any, error) {
	globals, client := lua.NewGlobals(c.cfg.Prefix), c.cfg.Redis.Client
	counts, err := lua.ReadCounts(c.ctx, client, globals, c.name)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := c.beyondCaller()
	_, deleteErr := c.cfg.Admin.DeleteQueue(ctx, c.name, true)
	cancel()
	unknown := errors.Is(deleteErr, admin.ErrNoQueue)
	if unknown {
		deleteErr = nil
	} else {
		c.forget([]string{c.name})
	}
	ctx, cancel = c.beyondCaller()
	defer cancel()
	// Read after the deletion: it may have deleted the count of a growth that was published meanwhile. An earlier call
	// may have failed to register the counts.
	deleted, readErr := lua.ReadDeletedCounts(ctx, client, globals, c.name)
	if unknown && deleted.Latest() == 1 {
		return http.StatusNoContent, nil, readErr
	}
	_, registerErr := lua.RegisterCounts(ctx, client, globals, map[string]lua.Counts{c.name: counts.With(deleted...)})
	// consumers that wait now need the right ttr for the next job
	settingsErr := writeSettings(ctx, c.cfg.Admin, c.name)
	return http.StatusNoContent, nil, errors.Join(deleteErr, readErr, registerErr, settingsErr)
}

// beyondCaller returns a context that ends after the time of one request, although the caller hangs up before.
func (c *call) beyondCaller() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.ctx), c.cfg.Timeout)
}
