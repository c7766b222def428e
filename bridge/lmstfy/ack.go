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

// finish makes sure that no consumer gets a job any more, whatever the state of the job. It looks for the job in four
// places: the deliveries of this gateway, the schedule (which is fast), the jobs in flight, and last the whole queue.
func (c *call) finish(name, id string) error {
	if lua.CheckID(id) != nil {
		return nil // no job can have this ID
	}
	if job, ok := c.delivered.take(name, id); ok {
		won, err := c.parts.Puller.Ack(c.Ctx, []pull.Token{job.token})
		if err != nil {
			c.delivered.putBack(jobKey{name, id}, job)
		}
		if err != nil || won[0] {
			return err
		}
	}
	attempts := []func(name, id string) (done bool, err error){c.finishScheduled, c.finishInFlight}
	if _, _, _, ok := ParseID(id); !ok {
		// Another producer chose the ID, and may have scheduled a new job with the ID of the job in flight.
		slices.Reverse(attempts)
	}
	for _, attempt := range attempts {
		if done, err := attempt(name, id); err != nil || done {
			return err
		}
	}
	places, err := c.parts.Admin.Locate(c.Ctx, name, id)
	if errors.Is(err, admin.ErrNotFound) {
		return nil
	}
	for _, one := range places {
		err = errors.Join(err, c.finishAt(name, id, one))
	}
	return err
}

// finishScheduled cancels the job if it is scheduled.
func (c *call) finishScheduled(name, id string) (done bool, err error) {
	err = c.parts.Client.Cancel(c.Ctx, name, id)
	if errors.Is(err, bridge.ErrNotScheduled) {
		return false, nil
	}
	return err == nil, err
}

// finishInFlight acknowledges the job if it is among the first maxSweepJobs pending entries.
func (c *call) finishInFlight(name, id string) (done bool, err error) {
	list, err := c.parts.Admin.Pending(c.Ctx, name, Group, admin.PendingFilter{}, maxSweepJobs)
	if err != nil && !errors.Is(err, admin.ErrNoGroup) {
		return false, err
	}
	for _, one := range list {
		if one.ID != id {
			continue
		}
		token := tokenOf(name, one.Partition, one.Entry, id)
		if won, err := c.parts.Puller.Ack(c.Ctx, []pull.Token{token}); err != nil || won[0] {
			return err == nil, err
		}
	}
	return false, nil
}

// finishAt finishes the job in one of the places where Locate found it.
func (c *call) finishAt(name, id string, p admin.Place) error {
	switch p.State {
	case admin.StateDead:
		_, err := c.parts.Admin.DeadLetters().Purge(c.Ctx, name, []string{p.Letter})
		return err
	case admin.StatePending:
		_, err := c.parts.Puller.Ack(c.Ctx, []pull.Token{tokenOf(name, p.Partition, p.Entry, id)})
		return err
	case admin.StateScheduled:
		if err := c.parts.Client.Cancel(c.Ctx, name, id); !errors.Is(err, bridge.ErrNotScheduled) {
			return err
		}
	}
	// CancelRunning ends a retry for every gateway, because a retry belongs to this group alone. It cannot end a
	// message that waits for its first delivery, because other groups may need the message.
	switch cancelled, err := c.parts.Client.CancelRunning(c.Ctx, name, Group, id); {
	case errors.Is(err, bridge.ErrOldBridge):
	case err != nil:
		return err
	case cancelled[0].Verdict == bridge.VerdictCancelled, cancelled[0].Verdict == bridge.VerdictCancelling:
		return nil
	}
	rememberUntil := p.Expires // no consumer gets an expired job
	if rememberUntil.IsZero() || time.Until(rememberUntil) > MaxTTR {
		rememberUntil = time.Now().Add(MaxTTR)
	}
	c.acknowledged.add(name, id, rememberUntil.Add(time.Hour)) // an hour more, because clocks may differ
	return nil
}

// destroy deletes all jobs of a queue. The queue itself stays, with as many partitions, because clients go on using it.
// destroy continues after its caller has hung up, because a partition that has lost its settings would serve jobs by
// the defaults. After a failed deletion it tries to restore the groups and settings of all partitions. A caller may
// repeat it.
func destroy(c *call) (int, any, error) {
	counts, known, err := c.registered(c.Ctx)
	if err == nil && !known { // an earlier call may have failed between the deletion and the registration
		counts, err = lua.ReadDeletedCounts(c.Ctx, c.parts.Redis.Client, lua.NewGlobals(c.parts.Prefix), c.name)
	}
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := c.beyondCaller()
	had, deleteErr := c.parts.Admin.DeleteQueue(ctx, c.name, true)
	cancel()
	if errors.Is(deleteErr, admin.ErrNoQueue) {
		deleteErr = nil
	} else {
		c.forget([]string{c.name})
	}
	// An unregistered queue with one partition has nothing to keep. After a failed deletion of an unregistered queue,
	// the caller's next attempt keeps it.
	if !known && (counts.Latest() == 1 || deleteErr != nil) {
		return http.StatusNoContent, nil, deleteErr
	}
	ctx, cancel = c.beyondCaller()
	defer cancel()
	return http.StatusNoContent, nil, c.keepQueue(ctx, counts, had.Groups, deleteErr)
}

// keepQueue registers the partition counts of a queue again after its deletion. If the deletion failed, it restores the
// groups and settings that some partitions may have lost, and returns the deletion's error.
func (c *call) keepQueue(ctx context.Context, counts lua.Counts, groups []string, deleteErr error) error {
	_, err := lua.RegisterCounts(ctx, c.parts.Redis.Client, lua.NewGlobals(c.parts.Prefix),
		map[string]lua.Counts{c.name: counts})
	// Consumers that are waiting need the right ttr for the next job.
	err = errors.Join(deleteErr, err, writeSettings(ctx, c.parts.Admin, c.name))
	if deleteErr != nil {
		for _, group := range groups {
			_, groupErr := stream.EnsureGroup(ctx, c.parts.Redis.Client, c.parts.Prefix, c.name, group)
			err = errors.Join(err, groupErr)
		}
	}
	return err
}

// registered returns the partition counts of the queue in the registry. known is false if the queue is not registered.
func (c *call) registered(ctx context.Context) (counts lua.Counts, known bool, err error) {
	globals, client := lua.NewGlobals(c.parts.Prefix), c.parts.Redis.Client
	known, err = client.Do(ctx, client.B().Hexists().Key(globals.Queues).Field(c.name).Build()).AsBool()
	if err != nil {
		return nil, false, lua.Classify("HEXISTS "+globals.Queues, err)
	}
	counts, err = lua.ReadCounts(ctx, client, globals, c.name)
	return counts, known, err
}

// beyondCaller returns a context that ends after the time of one request, even if the caller hangs up before.
func (c *call) beyondCaller() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.Ctx), c.parts.Timeout)
}
