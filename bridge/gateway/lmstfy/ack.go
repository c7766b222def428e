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
	"github.com/duestream/duestream/stream"
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
// After a failed deletion it tries to restore the groups and settings of all partitions. It may be repeated.
func destroy(c *call) (int, any, error) {
	counts, known, err := c.registered(c.ctx)
	if err == nil && !known { // an earlier call may have failed between the deletion and the registration
		counts, err = lua.ReadDeletedCounts(c.ctx, c.cfg.Redis.Client, lua.NewGlobals(c.cfg.Prefix), c.name)
	}
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := c.beyondCaller()
	had, deleteErr := c.cfg.Admin.DeleteQueue(ctx, c.name, true)
	cancel()
	if errors.Is(deleteErr, admin.ErrNoQueue) {
		deleteErr = nil
	} else {
		c.forget([]string{c.name})
	}
	if !known && (counts.Latest() == 1 || deleteErr != nil) { // there was nothing to keep, or it is left to a repetition
		return http.StatusNoContent, nil, deleteErr
	}
	ctx, cancel = c.beyondCaller()
	defer cancel()
	return http.StatusNoContent, nil, c.keepQueue(ctx, counts, had.Groups, deleteErr)
}

// keepQueue registers the partition counts of a queue again after its deletion. If the deletion failed, it restores the
// groups and settings that some partitions may have lost, and returns the deletion's error.
func (c *call) keepQueue(ctx context.Context, counts lua.Counts, groups []string, deleteErr error) error {
	_, err := lua.RegisterCounts(ctx, c.cfg.Redis.Client, lua.NewGlobals(c.cfg.Prefix),
		map[string]lua.Counts{c.name: counts})
	// consumers that wait now need the right ttr for the next job
	err = errors.Join(deleteErr, err, writeSettings(ctx, c.cfg.Admin, c.name))
	if deleteErr != nil {
		for _, group := range groups {
			_, groupErr := stream.EnsureGroup(ctx, c.cfg.Redis.Client, c.cfg.Prefix, c.name, group)
			err = errors.Join(err, groupErr)
		}
	}
	return err
}

// registered returns the partition counts of the queue in the registry; known is false if it is not there.
func (c *call) registered(ctx context.Context) (counts lua.Counts, known bool, err error) {
	globals, client := lua.NewGlobals(c.cfg.Prefix), c.cfg.Redis.Client
	known, err = client.Do(ctx, client.B().Hexists().Key(globals.Queues).Field(c.name).Build()).AsBool()
	if err != nil {
		return nil, false, lua.Classify("HEXISTS "+globals.Queues, err)
	}
	counts, err = lua.ReadCounts(ctx, client, globals, c.name)
	return counts, known, err
}

// beyondCaller returns a context that ends after the time of one request, although the caller hangs up before.
func (c *call) beyondCaller() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.ctx), c.cfg.Timeout)
}
