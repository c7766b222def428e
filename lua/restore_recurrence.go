package lua

import (
	"context"
	"errors"

	"github.com/redis/rueidis"
)

// RestoreRecurrence writes a recurrence with its spec and, unless that is "", its plan, in one transaction. done is
// false, and nothing was written, if the queue has a recurrence or a plan of this name. It begins again while other
// recurrences of the queue change. The queue must be registered.
func RestoreRecurrence(ctx context.Context, c rueidis.Client, k Keys, name, spec, plan string) (done bool, err error) {
	for {
		done, err = restoreRecurrence(ctx, c, k, name, spec, plan)
		switch {
		case errors.Is(err, errThere):
			return false, nil
		case !errors.Is(err, errChangedMeanwhile):
			return done, err
		}
	}
}

var (
	errThere            = errors.New("a recurrence or a plan of that name is there")
	errChangedMeanwhile = errors.New("another recurrence was changed meanwhile")
)

func restoreRecurrence(ctx context.Context, c rueidis.Client, k Keys, name, spec, plan string) (done bool, err error) {
	err = Dedicated(ctx, c, func(one rueidis.DedicatedClient) error {
		replies := one.DoMulti(ctx,
			one.B().Watch().Key(k.Recurring, k.Planned).Build(),
			one.B().Hexists().Key(k.Recurring).Field(name).Build(),
			one.B().Hexists().Key(k.Planned).Field(name).Build())
		if err := replies[0].Error(); err != nil {
			return Classify("WATCH "+k.Recurring, err)
		}
		for _, reply := range replies[1:] {
			there, err := reply.AsBool()
			if err != nil {
				return Classify("HEXISTS "+k.Recurring, err)
			}
			if there {
				return errThere
			}
		}
		commands := []rueidis.Completed{one.B().Hset().Key(k.Recurring).FieldValue().FieldValue(name, spec).Build()}
		if plan != "" {
			commands = append(commands, one.B().Hset().Key(k.Planned).FieldValue().FieldValue(name, plan).Build())
		}
		var err error
		done, err = Transact(ctx, one, k.Recurring, commands...)
		if err == nil && !done {
			return errChangedMeanwhile
		}
		if done {
			// This changes the revision, so that bridges read the recurrence at once. Without it, they find it within a
			// minute. So a failure does no harm; it fails, for example, if the field holds no number.
			_ = one.Do(ctx, one.B().Hincrby().Key(k.Planned).Field("").Increment(1).Build()).Error()
		}
		return err
	})
	return done, err
}
