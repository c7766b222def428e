package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// A replica that a client has never heard of becomes the master of the client's queue. The server answers with MOVED,
// and commands on a dedicated connection must follow it too. Regression: such calls failed at once: those that wait
// for a replica, changes of targets and tokens, and the deletion of a queue.
func TestAMasterThatNobodyKnewIsFollowed(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 1, redistest.FailsOver...)
	probe := newStack(t, c.Server())
	slot := c.Slot(probe.keys().Due)
	master := c.Owner(slot)
	replica := c.Replica(master)
	replica.Kill()
	c.Forgets(replica)
	calls := []struct {
		name string
		do   func(ctx context.Context, s *stack) error
	}{
		{"Schedule", func(ctx context.Context, s *stack) error {
			_, err := s.mustClientWith(bridge.Replicated(1)).Schedule(ctx, s.queue, nil, bridge.WithID("m"), bridge.In(time.Hour))
			return err
		}},
		{"CancelRetries", func(ctx context.Context, s *stack) error {
			err := s.mustClientWith(bridge.Accepted).Cancel(ctx, s.queue, "nobody", bridge.RetriesOf("g"))
			if errors.Is(err, bridge.ErrNotScheduled) {
				err = nil
			}
			return err
		}},
		{"SetPushTarget", func(ctx context.Context, s *stack) error {
			_, err := s.operator().SetPushTarget(ctx, admin.PushTarget{Queue: s.queue, Group: "g",
				URL: "https://example.com/"})
			return err
		}},
		{"Bulk", func(ctx context.Context, s *stack) error {
			result, err := s.operator().Bulk().Cancel(ctx, s.queue, admin.BulkFilter{Prefix: "before"},
				admin.BulkOptions{})
			return want(err, "cancelled", result.Changed, 3)
		}},
		{"DeleteQueue", func(ctx context.Context, s *stack) error {
			_, err := s.operator().DeleteQueue(ctx, s.queue, true)
			return err
		}},
	}
	stacks := make([]*stack, len(calls))
	for i := range calls { // each call has a client of its own, which connects while the replica is down
		one := *probe
		one.redis = probe.dial(c.URL())
		stacks[i] = &one
	}
	stacks[0].mustSchedule(stacks[0].mustClientWith(bridge.Accepted), "before", 3)
	replica.Start()
	c.Follows(replica, master) // waits until the replica is in sync
	c.Switch(slot)             // starts the failover
	c.Promoted(slot, master)   // waits until the replica is the master
	c.Follows(master, replica) // waits until the old master is a replica of the new one
	for i, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := call.do(ctx, stacks[i]); err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
		cancel()
	}
}
